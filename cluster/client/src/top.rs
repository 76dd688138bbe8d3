//! `sluice top --cluster`: nodes, and how each keeps its SLOs.
//!
//! It is drawn again when the API server says that something has changed; nodes report their
//! numbers every half minute, and news at once. What is not kept comes first.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use anyhow::bail;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, Widget};
use sluice_cli::number::rate;
use sluice_cli::screen::{self, table};
use sluice_cli::table::{Tone, colour_wanted};
use sluice_cli::top::Top;
use sluice_cluster_types::{NodePlan, Slo};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::connect::Cluster;
use crate::feed::Feed;
use crate::rows::{self, OnNode, lag, micros, progress, state, tone};

/// Width of a snapshot in a pipe.
const PIPE_WIDTH: u16 = 110;
/// Rows of the view that are no rows of tables: two of the head, two blank ones, two headings.
const FRAME: u16 = 6;
const KEYS: &str = "q quit · p pause · ↑ ↓ scroll the SLOs";

pub async fn run(args: &Top, out: &mut dyn Write) -> anyhow::Result<()> {
    let cluster = Cluster::connect(&args.across.within.reach).await?;
    let namespace = cluster.across(&args.across);
    let (mut feed, denied) = Feed::start(&cluster, namespace).await?;
    if let Some(denied) = denied {
        bail!("{denied}");
    }
    let of = namespace.map_or("all namespaces".to_string(), |namespace| format!("namespace {namespace}"));
    let mut view = View { title: format!("{} · {of}", cluster.place.server), ..View::default() };
    view.look(&feed, namespace);
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Ok(out.write_all(view.text().as_bytes())?);
    }
    (view.has_colour, view.is_live) = (colour_wanted(), true);
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, &mut feed, &mut view, namespace).await;
    ratatui::restore();
    ended
}

/// Keys, as they are pressed. Its thread ends with the program.
fn keys() -> UnboundedReceiver<KeyEvent> {
    let (send, keys) = unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(event) = event::read() {
            let key = match event {
                Event::Key(key) if key.kind != KeyEventKind::Release => key,
                // The size has changed: it is drawn again.
                Event::Resize(..) => KeyEvent::from(KeyCode::Null),
                _ => continue,
            };
            if send.send(key).is_err() {
                return;
            }
        }
    });
    keys
}

async fn watch(terminal: &mut DefaultTerminal, feed: &mut Feed, view: &mut View, namespace: Option<&str>) -> anyhow::Result<()> {
    let mut keys = keys();
    loop {
        terminal.draw(|frame| frame.render_widget(&*view, frame.area()))?;
        tokio::select! {
            trouble = feed.change() => view.trouble = trouble,
            key = keys.recv() => {
                let Some(key) = key else { return Ok(()) };
                match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('p' | ' ') => view.is_paused = !view.is_paused,
                    KeyCode::Up | KeyCode::Char('k') => view.scroll = view.scroll.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => view.scroll = (view.scroll + 1).min(view.slos.len().saturating_sub(1)),
                    KeyCode::Home => view.scroll = 0,
                    _ => {}
                }
            }
        }
        // After a key, too: it may have come while changes were gathered.
        if !view.is_paused {
            view.look(feed, namespace);
        }
    }
}

/// A node in the view.
#[derive(Debug)]
struct NodeRow {
    name: String,
    progress: &'static str,
    lag: String,
    cores: (u32, u32),
    ways: (u32, u32),
    slos: usize,
}

/// What is shown.
#[derive(Debug, Default)]
struct View {
    title: String,
    counts: String,
    nodes: Vec<NodeRow>,
    slos: Vec<OnNode>,
    trouble: Option<String>,
    scroll: usize,
    is_paused: bool,
    has_colour: bool,
    /// Whether keys are read.
    is_live: bool,
}

impl View {
    fn look(&mut self, feed: &Feed, namespace: Option<&str>) {
        let (plans, slos) = (feed.plans(), feed.slos());
        let plans: Vec<&NodePlan> = plans.iter().map(Arc::as_ref).collect();
        self.show(&plans, &slos.iter().map(Arc::as_ref).collect::<Vec<_>>(), namespace);
    }

    fn show(&mut self, plans: &[&NodePlan], slos: &[&Slo], namespace: Option<&str>) {
        self.nodes = plans.iter().map(|plan| node_row(plan)).collect();
        self.nodes.sort_by_key(|node| node.progress == "ready");
        self.slos = rows::on_nodes(plans.iter().copied(), namespace);
        self.slos.sort_by(|a, b| {
            let key = |one: &OnNode| (rank(&one.state), one.namespace.clone(), one.slo.clone(), one.node.clone());
            key(a).cmp(&key(b))
        });
        // An SLO without a node has no other row.
        let placed = |slo: &Slo| slo.status.as_ref().is_some_and(|status| status.instances > 0);
        let is = |word: &str| slos.iter().filter(|slo| state(slo) == word).count();
        let words = ["kept", "violated", "exceeded", "degraded", "refused"];
        let states: Vec<String> =
            words.iter().map(|word| (is(word), word)).filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {word}")).collect();
        let without = slos.iter().filter(|slo| !placed(slo)).count();
        let without = if without > 0 { format!(" · {without} without a node: sluice slo list --cluster") } else { String::new() };
        let late = self.nodes.iter().filter(|node| node.progress != "ready").count();
        let late = if late > 0 { format!(", {late} not ready") } else { String::new() };
        let states = if states.is_empty() { String::new() } else { format!(": {}", states.join(", ")) };
        let of = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        self.counts = format!("{}{late} · {}{states}{without}", of(self.nodes.len(), "node"), of(slos.len(), "SLO"));
        self.scroll = self.scroll.min(self.slos.len().saturating_sub(1));
    }

    fn style(&self, tone: Tone) -> Style {
        screen::style(tone, self.has_colour)
    }

    /// The whole view as lines of text.
    fn text(&self) -> String {
        let rows = usize::from(FRAME) + self.nodes.len() + self.slos.len();
        screen::text(PIPE_WIDTH, rows, |area, buffer| self.draw(area, self.nodes.len(), buffer))
    }

    fn node_table(&self, rows: usize) -> Table<'static> {
        let row = |node: &NodeRow| {
            let part = |(used, all): (u32, u32)| Line::from(format!("{used}/{all}")).right_aligned();
            Row::new([
                Line::from(node.name.clone()),
                Line::styled(node.progress, self.style(tone(node.progress))),
                part(node.cores),
                part(node.ways),
                Line::from(node.slos.to_string()).right_aligned(),
                Line::from(node.lag.clone()),
            ])
        };
        let columns = [
            ("NODE", Constraint::Fill(1)),
            ("PLAN", Constraint::Length(8)),
            (">CORES", Constraint::Length(7)),
            (">WAYS", Constraint::Length(6)),
            (">SLOS", Constraint::Length(5)),
            ("", Constraint::Fill(3)),
        ];
        table(&columns, self.nodes.iter().take(rows).map(row).collect())
    }

    fn slo_table(&self, rows: usize) -> Table<'static> {
        let right = |text: String| Line::from(text).right_aligned();
        let row = |one: &OnNode| {
            Row::new([
                Line::from(format!("{}/{}", one.namespace, one.slo)),
                Line::from(one.node.clone()),
                Line::styled(one.state.clone(), self.style(tone(&one.state))),
                right(one.instances.to_string()),
                right(rate(one.given_pps)),
                right(rows::rate(one.offered_pps)),
                right(rows::rate(one.delivered_pps)),
                right(micros(one.latency_us)),
                right(micros(one.promise.map(|promise| promise.latency_us()))),
            ])
        };
        let columns = [
            ("SLO", Constraint::Fill(2)),
            ("NODE", Constraint::Fill(1)),
            ("STATE", Constraint::Length(8)),
            (">INST", Constraint::Length(4)),
            (">GIVEN", Constraint::Length(9)),
            (">OFFERED", Constraint::Length(9)),
            (">DELIVERED", Constraint::Length(9)),
            (">95 %", Constraint::Length(8)),
            (">OF", Constraint::Length(8)),
        ];
        let hidden = self.slos.len().saturating_sub(rows);
        table(&columns, self.slos.iter().skip(self.scroll.min(hidden)).take(rows).map(row).collect())
    }

    /// Draws into an area, of which `node_rows` are the most that nodes have.
    fn draw(&self, area: Rect, node_rows: usize, buffer: &mut Buffer) {
        let n = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        let node_rows = n(node_rows.min(self.nodes.len()));
        let slo_rows = area.height.saturating_sub(FRAME + node_rows).min(n(self.slos.len()));
        let mut y = area.y;
        let mut next = |height: u16| {
            let part = Rect::new(area.x, y.min(area.bottom()), area.width, height.min(area.bottom().saturating_sub(y)));
            y = y.saturating_add(height);
            part
        };
        let pause = if self.is_paused { " · PAUSED, p goes on" } else { "" };
        let (first, title) = (next(1), Line::from(format!("{}{pause}", self.title)));
        let used = title.width();
        title.render(first, buffer);
        if self.is_live && used + 2 + KEYS.chars().count() <= usize::from(area.width) {
            Line::from(KEYS).right_aligned().render(first, buffer);
        }
        let second = next(1);
        match &self.trouble {
            Some(trouble) => Line::styled(trouble.clone(), self.style(Tone::Bad)).render(second, buffer),
            None => Line::from(self.counts.clone()).render(second, buffer),
        }
        let parts = [
            (node_rows, self.nodes.len(), self.node_table(node_rows.into())),
            (slo_rows, self.slos.len(), self.slo_table(slo_rows.into())),
        ];
        for (rows, all, table) in parts {
            let gap = next(1);
            Widget::render(table, next(rows + 1), buffer);
            let hidden = all - usize::from(rows);
            if hidden > 0 {
                // Hidden rows of the part below this gap.
                Line::from(format!("{hidden} more ")).right_aligned().render(gap, buffer);
            }
        }
    }
}

impl Widget for &View {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        // Nodes have a third, unless the SLOs leave more.
        let room = usize::from(area.height.saturating_sub(FRAME));
        self.draw(area, room.saturating_sub(self.slos.len()).max(room.div_ceil(3)), buffer);
    }
}

fn node_row(plan: &NodePlan) -> NodeRow {
    let server = &plan.spec.server;
    let (cores, ways) = match server.room() {
        Ok(left) => (server.shape.cores - left.cores, server.shape.ways() - left.ways),
        Err(_) => (server.shape.cores, server.shape.ways()),
    };
    NodeRow {
        name: server.name.clone(),
        progress: progress(plan),
        lag: lag(plan).unwrap_or_default(),
        cores: (cores, server.shape.cores),
        ways: (ways, server.shape.ways()),
        slos: plan.spec.chains.len(),
    }
}

/// What is worst comes first.
fn rank(state: &str) -> usize {
    let order = ["refused", "violated", "waiting", "exceeded", "new"];
    order.iter().position(|known| *known == state).unwrap_or(order.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::tests::{plan, slo};

    fn view() -> View {
        let mut late = plan("n1", "violated");
        late.spec.revision = 4;
        let plans = [plan("n0", "kept"), late];
        let slos = [slo("acme", "web", "violated", "")];
        let mut view = View { title: "https://10.0.0.1".into(), ..View::default() };
        view.show(&plans.iter().collect::<Vec<_>>(), &slos.iter().collect::<Vec<_>>(), None);
        view
    }

    #[test]
    fn nodes_and_slos_are_shown_with_what_is_worst_first() {
        let text = view().text();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[..2], ["https://10.0.0.1", "2 nodes, 1 not ready · 1 SLO: 1 violated"], "{text}");
        assert!(lines[3].starts_with("NODE ") && lines[4].starts_with("n1 ") && lines[4].contains("waiting "), "{text}");
        assert!(lines[5].contains("ready ") && lines[5].contains("2/9") && lines[5].contains("8/18"), "{text}");
        assert!(lines[7].starts_with("SLO ") && lines[8].contains("n1 ") && lines[8].contains("violated"), "{text}");
        assert!(lines[9].starts_with("acme/web ") && lines[9].contains("kept") && lines[9].ends_with("55.0 µs   100 µs"), "{text}");
        assert_eq!(lines.len(), 10);
    }

    #[test]
    fn a_low_screen_says_how_much_it_hides() {
        let mut view = view();
        (view.is_live, view.trouble) = (true, Some("no answer".into()));
        let area = Rect::new(0, 0, 100, 8);
        let mut buffer = Buffer::empty(area);
        (&view).render(area, &mut buffer);
        let line = |y: u16| (0..area.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        assert!(line(1).starts_with("no answer"), "{}", line(1));
        assert!((0..area.height).any(|y| line(y).contains("1 more")), "nothing says what is hidden");
    }
}
