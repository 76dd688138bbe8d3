//! The live view: changes between two reads of the statistics.
//!
//! A [`View`] draws itself into any area: the terminal's screen while keys are read, or a buffer
//! that is printed as text to a pipe. Rates are differences over the daemon's clock, so a late read
//! shows no false peak. A low area shows the first rows of each part and the number of hidden ones;
//! NFs, the part that grows, get the remaining rows.

use std::collections::HashMap;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Row, Table, Widget};
use sluice_api::client::{Client, ClientError};
use sluice_api::model::{Chain, Distribution, Nf, Port, PortState, Stats};

use crate::show::{chain_word, cost, dropped, load, nf_word, share, way};
use sluice_cli::number::{age, bits, short, time};
use sluice_cli::screen::{self, table};
use sluice_cli::table::{Tone, colour_wanted};
use sluice_cli::top::{Sort, Top};

/// Width of a snapshot in a pipe.
const PIPE_WIDTH: u16 = 100;

/// Width from which an NF's core, load and slow bursts are shown.
const WIDE: u16 = 96;
/// Width from which an NF's time for a packet is shown too.
const WIDER: u16 = 110;

/// What the screen says of keys, and what it says once they are asked for.
const HINT: &str = "? keys";
const KEYS: &str = "q quit · s sort NFs by the next column · p pause · ↑ ↓ scroll the NFs · ? hide";

pub fn run(client: &mut Client, args: &Top, out: &mut dyn Write) -> anyhow::Result<()> {
    let interval = Duration::from_secs_f64(args.interval);
    let first = client.stats()?;
    if args.once || !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        std::thread::sleep(interval);
        let view = View { before: Some(first), now: client.stats()?, sort: args.sort, ..View::default() };
        return Ok(out.write_all(view.text().as_bytes())?);
    }
    let mut view = View { now: first, sort: args.sort, colour: colour_wanted(), is_live: true, ..View::default() };
    let mut terminal = ratatui::try_init()?;
    let ended = watch(&mut terminal, client, &mut view, interval);
    ratatui::restore();
    ended
}

fn watch(terminal: &mut ratatui::DefaultTerminal, client: &mut Client, view: &mut View, interval: Duration) -> anyhow::Result<()> {
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| frame.render_widget(&*view, frame.area()))?;
        if event::poll(next.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => match key.code {
                    KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(()),
                    KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                    KeyCode::Char('s') => view.sort = next_sort(view.sort),
                    KeyCode::Char('p') | KeyCode::Char(' ') => view.paused = !view.paused,
                    KeyCode::Up | KeyCode::Char('k') => view.scroll = view.scroll.saturating_sub(1),
                    KeyCode::Down | KeyCode::Char('j') => view.scroll = (view.scroll + 1).min(view.now.nfs.len().saturating_sub(1)),
                    KeyCode::Home => view.scroll = 0,
                    KeyCode::Char('?' | 'h') => view.names_keys = !view.names_keys,
                    _ => {}
                },
                _ => {}
            }
        }
        if Instant::now() < next {
            continue;
        }
        if !view.paused {
            match client.stats() {
                Ok(stats) => view.look(stats),
                // The daemon may come back; until then the last numbers stay, below a message.
                Err(error @ (ClientError::NotRunning { .. } | ClientError::Broken { .. })) => {
                    view.trouble = Some(error.to_string())
                }
                Err(error) => return Err(error.into()),
            }
        }
        next = Instant::now() + interval;
    }
}

fn next_sort(sort: Sort) -> Sort {
    match sort {
        Sort::Name => Sort::In,
        Sort::In => Sort::Queue,
        Sort::Queue => Sort::Cpu,
        Sort::Cpu => Sort::Drops,
        Sort::Drops => Sort::Name,
    }
}

/// Two reads of the statistics, and how to show the difference.
#[derive(Debug)]
struct View {
    before: Option<Stats>,
    now: Stats,
    sort: Sort,
    paused: bool,
    scroll: usize,
    colour: bool,
    /// Whether keys are read.
    is_live: bool,
    /// Whether the keys are shown.
    names_keys: bool,
    trouble: Option<String>,
}

impl Default for View {
    fn default() -> Self {
        Self {
            before: None,
            now: Stats::default(),
            sort: Sort::Name,
            paused: false,
            scroll: 0,
            colour: false,
            is_live: false,
            names_keys: false,
            trouble: None,
        }
    }
}

/// Heading of the NFs' names, with the sort key.
fn sorted_by(sort: Sort) -> &'static str {
    match sort {
        Sort::Name => "NF (by name)",
        Sort::In => "NF (by in)",
        Sort::Queue => "NF (by queue)",
        Sort::Cpu => "NF (by CPU)",
        Sort::Drops => "NF (by drops)",
    }
}

fn fullness(part: f64) -> Tone {
    match part {
        0.9.. => Tone::Bad,
        0.5.. => Tone::Warn,
        _ => Tone::Plain,
    }
}

struct NfRates<'a> {
    nf: &'a Nf,
    rx: f64,
    tx: f64,
    drops: f64,
}

impl View {
    fn look(&mut self, stats: Stats) {
        self.trouble = None;
        let former = std::mem::replace(&mut self.now, stats);
        // A restarted daemon counts from 0.
        self.before = (former.status.pid == self.now.status.pid).then_some(former);
    }

    /// Events per second between the reads.
    fn rate(&self, now: u64, before: Option<u64>) -> f64 {
        let (Some(earlier), Some(before)) = (&self.before, before) else { return 0.0 };
        let seconds = self.now.time_ns.saturating_sub(earlier.time_ns) as f64 / 1e9;
        if seconds > 0.0 { now.saturating_sub(before) as f64 / seconds } else { 0.0 }
    }

    fn nfs(&self) -> Vec<NfRates<'_>> {
        let earlier = self.before.iter().flat_map(|s| &s.nfs);
        let earlier: HashMap<&str, &Nf> = earlier.map(|nf| (nf.name.as_str(), nf)).collect();
        let mut all: Vec<NfRates<'_>> = self
            .now
            .nfs
            .iter()
            .map(|nf| {
                let then = earlier.get(nf.name.as_str());
                NfRates {
                    nf,
                    rx: self.rate(nf.rx_packets, then.map(|n| n.rx_packets)),
                    tx: self.rate(nf.tx_packets, then.map(|n| n.tx_packets)),
                    drops: self.rate(dropped(nf), then.map(|n| dropped(n))),
                }
            })
            .collect();
        let most = |value: fn(&NfRates<'_>) -> f64| move |a: &NfRates<'_>, b: &NfRates<'_>| value(b).total_cmp(&value(a));
        match self.sort {
            Sort::Name => all.sort_by(|a, b| a.nf.name.cmp(&b.nf.name)),
            Sort::In => all.sort_by(most(|n| n.rx)),
            Sort::Queue => all.sort_by(most(|n| fill(n.nf))),
            Sort::Cpu => all.sort_by(most(|n| n.nf.cpu_percent)),
            Sort::Drops => all.sort_by(most(|n| n.drops)),
        }
        all
    }

    /// The whole view as lines of text.
    fn text(&self) -> String {
        let rows = 2 + self.now.nfs.len() + 2 + self.now.chains.len() + 2 + self.now.ports.len() + 2 + 1 + self.now.drops.len();
        screen::text(PIPE_WIDTH, rows, |area, buffer| self.render(area, buffer))
    }

    fn style(&self, tone: Tone) -> Style {
        screen::style(tone, self.colour)
    }

    fn head(&self, width: u16) -> [Line<'static>; 2] {
        if let Some(trouble) = &self.trouble {
            return in_two(trouble, width.into()).map(|part| Line::styled(part.to_owned(), self.style(Tone::Bad)));
        }
        let status = &self.now.status;
        let busy: Vec<String> =
            status.threads.iter().map(|t| format!("{} core {} {:.0} %", t.role, t.core, t.busy_percent)).collect();
        let first = format!("sluiced {} · up {} · {}", status.version, age(status.uptime_s), busy.join(" · "));
        let mut frames = format!("frames {} of {} in use", short(status.frames.in_use as f64), short(status.frames.total as f64));
        let starved: u64 = status.memories.iter().map(|memory| memory.starved).sum();
        if starved > 0 {
            frames += &format!(", {} dropped for want of a tenant's", short(starved as f64));
        }
        let flows = short(status.flows as f64);
        let mut second = vec![Span::raw(format!("{frames} · flows {flows} · tuning {:.2} % of a core", status.tuning_percent))];
        if self.paused {
            second.push(Span::styled(" · PAUSED, p goes on", self.style(Tone::Warn)));
        }
        if self.names_keys {
            second = vec![Span::raw(KEYS)];
        }
        [Line::from(first), Line::from(second)]
    }

    fn nf_table(&self, rows: usize, width: u16) -> (Table<'static>, usize) {
        let earlier = self.before.iter().flat_map(|s| &s.nfs);
        let earlier: HashMap<&str, &Nf> = earlier.map(|nf| (nf.name.as_str(), nf)).collect();
        let name = sorted_by(self.sort);
        // Each with the width of the whole from which it is shown.
        let columns = [
            (0, (name, Constraint::Fill(1))),
            (0, ("STATE", Constraint::Length(10))),
            (WIDE, (">CORE", Constraint::Length(4))),
            (0, (">IN", Constraint::Length(6))),
            (0, (">OUT", Constraint::Length(6))),
            (0, (">QUEUE", Constraint::Length(12))),
            (0, (">CPU", Constraint::Length(5))),
            (0, (">SHARE", Constraint::Length(5))),
            (WIDE, (">LOAD", Constraint::Length(6))),
            (WIDER, (">COST", Constraint::Length(7))),
            (0, (">BURST", Constraint::Length(7))),
            (WIDE, (">P99", Constraint::Length(7))),
            (0, (">DROPS", Constraint::Length(6))),
        ];
        let all = self.nfs();
        let hidden = all.len().saturating_sub(rows);
        let shown = all.iter().skip(self.scroll.min(hidden)).take(rows).map(|n| {
            let nf = n.nf;
            let full = fill(nf);
            let (word, state) = nf_word(nf);
            let then = earlier.get(nf.name.as_str());
            let times = then.map_or(nf.service_ns.clone(), |then| nf.service_ns.since(&then.service_ns));
            let cells = [
                Line::from(nf.name.clone()),
                Line::styled(word, self.style(state)),
                Line::from(nf.core.to_string()).right_aligned(),
                number(n.rx),
                number(n.tx),
                Line::styled(format!("{}{:>4.0} %", bar(full), full * 100.0), self.style(fullness(full))),
                Line::from(format!("{:.0} %", nf.cpu_percent)).right_aligned(),
                Line::from(share(nf)).right_aligned(),
                Line::from(load(nf)).right_aligned(),
                Line::from(cost(nf)).right_aligned(),
                measured(&times, times.p50),
                measured(&times, times.p99),
                number(n.drops),
            ];
            let fits = cells.into_iter().zip(&columns).filter(|(_, (from, _))| *from <= width);
            Row::new(fits.map(|(cell, _)| cell))
        });
        let rows = shown.collect();
        let columns: Vec<_> = columns.iter().filter(|(from, _)| *from <= width).map(|(_, column)| *column).collect();
        (table(&columns, rows), hidden)
    }

    fn chain_table(&self, rows: usize, _: u16) -> (Table<'static>, usize) {
        let earlier = self.before.iter().flat_map(|s| &s.chains);
        let earlier: HashMap<&str, &Chain> = earlier.map(|c| (c.name.as_str(), c)).collect();
        let shown = self.now.chains.iter().take(rows).map(|chain| {
            let then = earlier.get(chain.name.as_str());
            let dropped = |c: &Chain| c.drops.values().sum::<u64>();
            let (word, tone) = chain_word(chain);
            let latency = then.map_or(chain.latency_ns.clone(), |t| chain.latency_ns.since(&t.latency_ns));
            Row::new([
                Line::from(chain.name.clone()),
                Line::from(way(chain)),
                Line::styled(word, self.style(tone)),
                number(self.rate(chain.entry_packets, then.map(|t| t.entry_packets))),
                number(self.rate(chain.exit_packets, then.map(|t| t.exit_packets))),
                number(self.rate(dropped(chain), then.map(|t| dropped(t)))),
                number(self.rate(chain.wasted, then.map(|t| t.wasted))),
                measured(&latency, latency.p50),
                measured(&latency, latency.p99),
            ])
        });
        let columns = [
            ("CHAIN", Constraint::Fill(1)),
            ("WAY", Constraint::Fill(2)),
            ("STATE", Constraint::Length(9)),
            (">IN", Constraint::Length(6)),
            (">OUT", Constraint::Length(6)),
            (">DROPS", Constraint::Length(6)),
            (">WASTED", Constraint::Length(6)),
            (">P50", Constraint::Length(7)),
            (">P99", Constraint::Length(7)),
        ];
        (table(&columns, shown.collect()), self.now.chains.len().saturating_sub(rows))
    }

    fn port_table(&self, rows: usize, _: u16) -> (Table<'static>, usize) {
        let earlier = self.before.iter().flat_map(|s| &s.ports);
        let earlier: HashMap<&str, &Port> = earlier.map(|p| (p.name.as_str(), p)).collect();
        let shown = self.now.ports.iter().take(rows).map(|port| {
            let rate = |count: fn(&Port) -> u64| self.rate(count(port), earlier.get(port.name.as_str()).map(|p| count(p)));
            Row::new([
                Line::from(port.name.clone()),
                match port.state {
                    PortState::Up if port.finished && port.rx_packets > 0 => Line::from("finished"),
                    // A generator that cannot keep its rate.
                    PortState::Up if port.behind_pps > 0.0 => Line::styled("behind", self.style(Tone::Warn)),
                    PortState::Up => Line::from(port.kind.clone()),
                    other => Line::from(other.words()),
                },
                number(rate(|p| p.rx_packets)),
                Line::from(bits(rate(|p| p.rx_bytes))).right_aligned(),
                number(rate(|p| p.tx_packets)),
                Line::from(bits(rate(|p| p.tx_bytes))).right_aligned(),
                number(rate(Port::not_sent)),
                number(rate(|p| p.entry_drops)),
            ])
        });
        let columns = [
            ("PORT", Constraint::Fill(1)),
            ("KIND", Constraint::Length(9)),
            (">IN", Constraint::Length(6)),
            ("", Constraint::Length(9)),
            (">OUT", Constraint::Length(6)),
            ("", Constraint::Length(9)),
            (">DROPS", Constraint::Length(6)),
            (">ENTRY", Constraint::Length(6)),
        ];
        (table(&columns, shown.collect()), self.now.ports.len().saturating_sub(rows))
    }

    /// Drops since the last read, by reason, as many to a line as fit.
    fn drop_lines(&self, width: u16) -> Vec<Line<'static>> {
        let rates = self.now.drops.iter().map(|(reason, n)| {
            let before = self.before.as_ref().map(|s| s.drops.get(reason).copied().unwrap_or(0));
            (reason, *n, self.rate(*n, before))
        });
        let words: Vec<String> = rates
            .filter(|(_, n, _)| *n > 0)
            .map(|(reason, n, rate)| format!("{reason} {} ({})", sluice_cli::number::rate(rate.round()), short(n as f64)))
            .collect();
        let mut lines = vec![String::from("DROPS")];
        for word in if words.is_empty() { vec!["none".to_owned()] } else { words } {
            let last = lines.last_mut().expect("there is a first line");
            if last.chars().count() + 2 + word.chars().count() > usize::from(width) && last.trim() != "" {
                lines.push(format!("       {word}"));
            } else {
                last.push_str("  ");
                last.push_str(&word);
            }
        }
        lines.into_iter().map(Line::from).collect()
    }
}

impl Widget for &View {
    fn render(self, area: Rect, buffer: &mut Buffer) {
        let drops = self.drop_lines(area.width);
        let n = |len: usize| u16::try_from(len).unwrap_or(u16::MAX);
        // Rows left after the head (2) and, for each of four parts, a blank line and its first
        // line.
        let mut left = area.height.saturating_sub(2 + 3 * 2 + 2);
        let mut take = |wanted: u16, least: u16| {
            let taken = wanted.min(least.max(left / 3)).min(left);
            left -= taken;
            taken
        };
        let drop_rows = take(n(drops.len() - 1), 2);
        let port_rows = take(n(self.now.ports.len()), 2);
        let chain_rows = take(n(self.now.chains.len()), 2);
        let nf_rows = left.min(n(self.now.nfs.len()));

        let mut y = area.y;
        let mut next = |height: u16| {
            let part = Rect::new(area.x, y.min(area.bottom()), area.width, height.min(area.bottom().saturating_sub(y)));
            y = y.saturating_add(height);
            part
        };
        let [first, second] = self.head(area.width);
        let (top, used) = (next(1), first.width());
        first.render(top, buffer);
        if self.is_live && used + 2 + HINT.len() <= usize::from(area.width) {
            Line::from(HINT).right_aligned().render(top, buffer);
        }
        second.render(next(1), buffer);
        for (rows, make) in [
            (nf_rows, View::nf_table as fn(&View, usize, u16) -> (Table<'static>, usize)),
            (chain_rows, View::chain_table),
            (port_rows, View::port_table),
        ] {
            let gap = next(1);
            let (table, hidden) = make(self, usize::from(rows), area.width);
            Widget::render(table, next(rows + 1), buffer);
            if hidden > 0 {
                // Hidden rows of the part below this gap.
                Line::from(format!("{hidden} more ")).right_aligned().render(gap, buffer);
            }
        }
        next(1);
        for line in drops.into_iter().take(usize::from(drop_rows) + 1) {
            line.render(next(1), buffer);
        }
    }
}

/// A text in two lines, the first of which is as long as it may be.
fn in_two(text: &str, width: usize) -> [&str; 2] {
    let Some((most, _)) = text.char_indices().nth(width) else { return [text, ""] };
    match text[..most].rfind(' ') {
        Some(at) => [&text[..at], &text[at + 1..]],
        None => [&text[..most], &text[most..]],
    }
}

/// Share of an NF's rings that is in use, 0 to 1.
fn fill(nf: &Nf) -> f64 {
    if nf.queue_capacity == 0 { 0.0 } else { (nf.queue as f64 / nf.queue_capacity as f64).clamp(0.0, 1.0) }
}

/// Six cells: `██▌···`, in eighths of a cell.
fn bar(share: f64) -> String {
    const PARTS: [char; 8] = ['·', '▏', '▎', '▍', '▌', '▋', '▊', '▉'];
    let eighths = (share * 48.0).round() as usize;
    (0..6)
        .map(|cell| match eighths.saturating_sub(cell * 8) {
            8.. => '█',
            part => PARTS[part],
        })
        .collect()
}

fn short_rate(rate: f64) -> String {
    short(rate.round())
}

fn number(rate: f64) -> Line<'static> {
    Line::from(short_rate(rate)).right_aligned()
}

fn measured(times: &Distribution, ns: u64) -> Line<'static> {
    Line::from(if times.count == 0 { "-".into() } else { time(ns) }).right_aligned()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sluice_api::model::{ChainState, NfSched, NfState, Status, Thread};

    use super::*;

    fn stats(second: u64, nfs: usize) -> Stats {
        let nf = |i: usize| Nf {
            name: format!("nf.{i}"),
            state: NfState::Running,
            core: 1,
            rx_packets: second * 1_000_000 * (i as u64 + 1),
            tx_packets: second * 900_000,
            queue: 512,
            queue_capacity: 1024,
            cpu_percent: 40.0,
            service_ns: Distribution { count: 9, p50: 900, p99: 7_700, ..Default::default() },
            sched: NfSched { service_ns: 28.0, load: 0.61, share: 0.33, throttled: i == 1, held: i == 0, ..Default::default() },
            ..Default::default()
        };
        Stats {
            time_ns: second * 1_000_000_000,
            status: Status {
                version: "0.1.0".into(),
                pid: 7,
                threads: vec![Thread { role: "rx+tx+wakeup+monitor".into(), core: 0, busy_percent: 50.0, ..Default::default() }],
                ..Default::default()
            },
            ports: (0..3)
                .map(|i| Port { name: format!("p{i}"), kind: "gen".into(), rx_bytes: second * 125_000_000, ..Default::default() })
                .collect(),
            chains: vec![Chain {
                name: "web".into(),
                services: vec!["fw".into(), "nat".into()],
                egress: "out".into(),
                entry_packets: second * 12_345_678,
                state: ChainState::Refused,
                throttled: true,
                wasted: second * 4_321,
                ..Default::default()
            }],
            drops: BTreeMap::from([("entry".into(), second * 2_500), ("no_rule".into(), 0), ("ring_full".into(), 7)]),
            nfs: (0..nfs).map(nf).collect(),
            ..Default::default()
        }
    }

    fn screen(view: &View, width: u16, height: u16) -> Vec<String> {
        let area = Rect::new(0, 0, width, height);
        let mut buffer = Buffer::empty(area);
        view.render(area, &mut buffer);
        (0..height).map(|y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned()).collect()
    }

    #[test]
    fn eighty_by_twenty_four_shows_every_part() {
        let view = View { before: Some(stats(1, 40)), now: stats(2, 40), ..View::default() };
        let lines = screen(&view, 80, 24);
        let text = lines.join("\n");
        for word in ["sluiced 0.1.0", "NF (by name)", "CHAIN", "PORT", "DROPS", "12.3 M", "1.00 Gb/s", "███···", "50 %", "900 ns"]
        {
            assert!(text.contains(word), "{word} is not in\n{text}");
        }
        assert!(
            lines.iter().any(|l| l.starts_with("DROPS") && l.contains("entry 2.50 k/s (5.00 k)") && !l.contains("no_rule")),
            "{text}"
        );
        assert!(text.contains(" more"), "{text}");
        assert!(lines.iter().any(|l| l.starts_with("p2")), "{text}");
    }

    #[test]
    fn what_was_decided_is_seen_at_any_usual_width() {
        let view = View { before: Some(stats(1, 2)), now: stats(2, 2), ..View::default() };
        for (width, there, left_out) in [
            (80, &["SHARE", "33 %", "BURST"][..], &["CORE", "LOAD", "P99  DROPS", "COST"][..]),
            (100, &["SHARE", "33 %", "CORE", "LOAD", "0.61", "P99", "7.70 µs"], &["COST"]),
            (120, &["SHARE", "CORE", "LOAD", "0.61", "COST", "28 ns", "900 ns", "7.70 µs"], &[]),
        ] {
            let lines = screen(&view, width, 24);
            let nfs = lines[3..6].join("\n");
            assert!(there.iter().all(|word| nfs.contains(word)), "{width}:\n{nfs}");
            assert!(!left_out.iter().any(|word| nfs.contains(word)), "{width}:\n{nfs}");
            assert!(lines[4].starts_with("nf.0") && lines[4].contains("held"), "{nfs}");
            assert!(lines[5].starts_with("nf.1") && lines[5].contains("throttled"), "{nfs}");
            let chain = lines.iter().find(|line| line.starts_with("web")).unwrap();
            assert!(chain.contains("throttled") && chain.contains("4.32 k") && chain.contains("fw → nat → out"), "{chain}");
            assert!(lines[1].contains("tuning 0.00 % of a core"), "{}", lines[1]);
        }
    }

    #[test]
    fn a_generator_that_cannot_keep_its_rate_is_behind() {
        let mut now = stats(2, 1);
        now.ports[1].behind_pps = 35_000.0;
        let lines = screen(&View { now, ..View::default() }, 80, 24);
        let line = |name: &str| lines.iter().find(|line| line.starts_with(name)).unwrap();
        assert!(line("p1").contains(" behind ") && line("p0").contains(" gen "), "{lines:#?}");
    }

    #[test]
    fn a_screen_says_what_the_keys_do_and_all_of_what_is_wrong() {
        let mut view = View { now: stats(2, 1), is_live: true, ..View::default() };
        assert!(screen(&view, 80, 24)[0].ends_with("? keys") && !view.text().contains("q quit"));
        view.names_keys = true;
        assert!(screen(&view, 80, 24)[1].starts_with("q quit · s sort NFs"));
        let trouble =
            "no sluiced answers at /run/sluice/control.sock: start one with `sluiced CONFIG`, or name its socket by --socket";
        view.trouble = Some(trouble.into());
        let lines = screen(&view, 80, 24);
        let said = format!("{} {}", lines[0].trim_end_matches("? keys").trim_end(), lines[1]);
        assert_eq!(said, trouble);
        assert_eq!((in_two("ab cd", 5), in_two("ab cd", 4), in_two("abcd", 2)), (["ab cd", ""], ["ab", "cd"], ["ab", "cd"]));
    }

    #[test]
    fn any_size_can_be_drawn() {
        let view =
            View { before: Some(stats(1, 5)), now: stats(2, 5), trouble: Some("gone".into()), paused: true, ..View::default() };
        for width in [1, 20, 79, 300] {
            for height in [1, 2, 5, 9, 12, 60] {
                assert_eq!(screen(&view, width, height).len(), usize::from(height));
            }
        }
    }

    #[test]
    fn a_snapshot_shows_all_rows_and_no_escape() {
        let text = View { before: Some(stats(1, 30)), now: stats(3, 30), ..View::default() }.text();
        assert!((0..30).all(|i| text.contains(&format!("nf.{i} "))), "{text}");
        assert!(!text.contains('\x1b') && !text.contains(" more"));
    }

    #[test]
    fn sorting_puts_the_most_first() {
        let mut view = View { before: Some(stats(1, 3)), now: stats(2, 3), ..View::default() };
        view.sort = next_sort(view.sort);
        let names: Vec<&str> = view.nfs().iter().map(|n| n.nf.name.as_str()).collect();
        assert_eq!(names, ["nf.2", "nf.1", "nf.0"]);
        let mut sort = Sort::Name;
        (0..5).for_each(|_| sort = next_sort(sort));
        assert_eq!(sort, Sort::Name);
    }

    #[test]
    fn a_daemon_that_was_started_again_shows_no_false_rate() {
        let mut view = View { now: stats(9, 1), ..View::default() };
        let mut fresh = stats(10, 1);
        fresh.status.pid = 8;
        view.look(fresh);
        assert_eq!(view.nfs()[0].rx, 0.0);
    }

    #[test]
    fn a_bar_fills_from_the_left() {
        assert_eq!([0.0, 0.25, 0.5, 1.0].map(bar), ["······", "█▌····", "███···", "██████"]);
    }
}
