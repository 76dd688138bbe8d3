//! The daemon's log: events of `tracing` as lines on stderr.
//!
//! | stderr is | a line |
//! |---|---|
//! | a file, a pipe | `sluiced: ready; …` |
//! | a terminal | `2026-11-25T21:50:41.012Z INFO  sluiced: ready; …` |
//! | journald's | `<6>sluiced: ready; …`: the priority, which journald takes off |
//!
//! Lines of NFs' output begin with the NF's name, and problems of a configuration with their place,
//! instead of `sluiced`. As JSON, each event is an object with `time`, `level`, `target`, `message`
//! and, if there are any, `fields`.
//!
//! # Limits
//! A panic's message, and what the guard process writes after the daemon's death, are plain text.

use std::fmt::{Debug, Write};
use std::io::IsTerminal;
use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};
use sluice_manager::nf::output::TARGET as OUTPUT;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, reload};

/// Target of a configuration's problems: several lines each, with their place.
pub const CONFIG: &str = "config";

/// The format of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text, with time and level on a terminal, and priorities for journald
    Text,
    /// An object a line: time, level, target, message, fields
    Json,
}

/// Parses the least level that is logged, by target: `info`, or `warn,sluice_sdn=debug`.
///
/// # Errors
/// The part of the text that is not a level.
pub fn levels(text: &str) -> Result<Targets, String> {
    // `Targets` would take a lone word for a target, and silence all others.
    for level in text.split(',').map(|part| part.rsplit_once('=').map_or(part, |(_, level)| level)) {
        let help = "write error, warn, info, debug, trace or off, or TARGET=LEVEL, with commas between";
        level.parse::<LevelFilter>().ok().filter(|_| !level.is_empty()).ok_or_else(|| format!("{level:?} is no level: {help}"))?;
    }
    text.parse::<Targets>().map_err(|error| format!("{error}"))
}

/// The levels of a log that runs.
pub struct Levels {
    handle: reload::Handle<Targets, Registry>,
    /// Those of the command line.
    usual: Targets,
}

impl Levels {
    /// Uses other levels from now on; without any, or if they are none, those of the command line.
    pub fn set(&self, text: Option<&str>) {
        let wanted = text.and_then(|text| levels(text).ok()).unwrap_or_else(|| self.usual.clone());
        // It fails only if there is no log.
        let _ = self.handle.reload(wanted);
    }
}

/// Starts to write events of these levels to stderr.
pub fn start(format: Format, levels: Targets) -> Levels {
    let stderr = std::io::stderr();
    let journal = std::env::var("JOURNAL_STREAM").ok();
    let to_stderr = ToStderr {
        format,
        on_terminal: stderr.is_terminal(),
        to_journal: rustix::fs::fstat(&stderr).is_ok_and(|stat| journal == Some(format!("{}:{}", stat.st_dev, stat.st_ino))),
    };
    let (filter, handle) = reload::Layer::new(levels.clone());
    // Only a second start fails, and the first stays in force.
    let _ = tracing_subscriber::registry().with(filter).with(to_stderr).try_init();
    Levels { handle, usual: levels }
}

struct ToStderr {
    format: Format,
    on_terminal: bool,
    to_journal: bool,
}

impl<S: Subscriber> Layer<S> for ToStderr {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut said = Content::default();
        event.record(&mut said);
        let meta = event.metadata();
        sluice_host::notice::write(&self.line(*meta.level(), meta.target(), said, SystemTime::now()));
    }
}

impl ToStderr {
    fn line(&self, level: Level, target: &str, said: Content, now: SystemTime) -> String {
        let text = match self.format {
            Format::Text => self.text(level, target, said, now),
            Format::Json => json(level, target, said, now),
        };
        let priority = match level {
            Level::ERROR => "<3>",
            Level::WARN => "<4>",
            Level::INFO => "<6>",
            _ => "<7>",
        };
        let mut lines = String::with_capacity(text.len() + 8);
        for line in text.trim_end_matches('\n').split('\n') {
            lines.extend([if self.to_journal { priority } else { "" }, line, "\n"]);
        }
        lines
    }

    fn text(&self, level: Level, target: &str, mut said: Content, now: SystemTime) -> String {
        let mut text = if self.on_terminal { format!("{} {level:<5} ", rfc3339(now)) } else { String::new() };
        match target {
            OUTPUT => said.fields.remove("nf").iter().filter_map(Value::as_str).for_each(|nf| text.extend([nf, ": "])),
            CONFIG => {}
            _ => text.push_str("sluiced: "),
        }
        text.push_str(&said.message);
        for (name, value) in &said.fields {
            let _ = write!(text, " {name}={value}");
        }
        text
    }
}

fn json(level: Level, target: &str, said: Content, now: SystemTime) -> String {
    let level = level.as_str().to_ascii_lowercase();
    let mut object = serde_json::json!({ "time": rfc3339(now), "level": level, "target": target, "message": said.message });
    if !said.fields.is_empty() {
        object["fields"] = said.fields.into();
    }
    object.to_string()
}

/// A time in UTC, to the millisecond.
fn rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, of_day) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    // Years begin in March, so that a leap day is the last of its year; 719,468 days before 1970
    // was 0000-03-01. A period of the calendar has 400 years, which are 146,097 days.
    let (period, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month, in_next) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12 + 1, u64::from(month >= 10));
    let (year, hours, minutes, seconds) = (400 * period + year + in_next, of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{:03}Z", since.subsec_millis())
}

/// The content of an event.
#[derive(Default)]
struct Content {
    message: String,
    fields: Map<String, Value>,
}

impl Content {
    fn set(&mut self, field: &Field, value: Value) {
        self.fields.insert(field.name().into(), value);
    }
}

impl Visit for Content {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            _ => self.set(field, format!("{value:?}").into()),
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.into(),
            _ => self.set(field, value.into()),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value.into());
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::{debug, info, warn};

    fn said(message: &str, fields: &[(&str, Value)]) -> Content {
        let fields = fields.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
        Content { message: message.into(), fields }
    }

    fn lines(format: Format, on_terminal: bool, to_journal: bool) -> impl Fn(Level, &str, Content) -> String {
        let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_764_107_441_012);
        move |level, target, said| ToStderr { format, on_terminal, to_journal }.line(level, target, said, now)
    }

    #[test]
    fn text_is_for_its_reader() {
        let plain = lines(Format::Text, false, false);
        assert_eq!(plain(Level::INFO, "sluiced", said("ready", &[])), "sluiced: ready\n");
        assert_eq!(plain(Level::INFO, OUTPUT, said("12 rules", &[("nf", "fw.0".into())])), "fw.0: 12 rules\n");
        assert_eq!(plain(Level::WARN, CONFIG, said("a.toml:1:2: odd\n = help\n", &[])), "a.toml:1:2: odd\n = help\n");
        assert_eq!(plain(Level::WARN, "sluiced", said("late", &[("ms", 5.into())])), "sluiced: late ms=5\n");
        let terminal = lines(Format::Text, true, false);
        assert_eq!(terminal(Level::WARN, "sluiced", said("odd", &[])), "2025-11-25T21:50:41.012Z WARN  sluiced: odd\n");
        let journal = lines(Format::Text, false, true);
        assert_eq!(journal(Level::ERROR, "sluiced", said("broken", &[])), "<3>sluiced: broken\n");
        assert_eq!(journal(Level::WARN, CONFIG, said("odd\n = help", &[])), "<4>odd\n<4> = help\n");
        assert_eq!(journal(Level::INFO, OUTPUT, said("<0>", &[("nf", "a.0".into())])), "<6>a.0: <0>\n");
        assert_eq!(journal(Level::TRACE, "sluiced", said("seen", &[])), "<7>sluiced: seen\n");
    }

    #[test]
    fn json_is_an_object_a_line() {
        let json = lines(Format::Json, false, false);
        let line = json(Level::WARN, "sluice_sdn::agent", said("a\n\"b\"", &[]));
        let (time, target) = ("2025-11-25T21:50:41.012Z", "sluice_sdn::agent");
        let expected = serde_json::json!({ "time": time, "level": "warn", "target": target, "message": "a\n\"b\"" });
        assert_eq!(line.matches('\n').count(), 1);
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap(), expected);
        let line = json(Level::INFO, OUTPUT, said("x", &[("nf", "fw.0".into())]));
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["fields"], serde_json::json!({ "nf": "fw.0" }));
    }

    #[test]
    fn events_of_the_level_arrive_with_their_fields() {
        #[derive(Clone, Default)]
        struct Seen(std::sync::Arc<std::sync::Mutex<Vec<String>>>);
        impl<S: Subscriber> Layer<S> for Seen {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                let mut said = Content::default();
                event.record(&mut said);
                self.0.lock().unwrap().push(format!("{} {} {:?}", event.metadata().target(), said.message, said.fields));
            }
        }
        let seen = Seen::default();
        let log = tracing_subscriber::registry().with(levels("warn,loud=debug").unwrap()).with(seen.clone());
        tracing::subscriber::with_default(log, || {
            info!("not this");
            warn!("{} a", 1);
            debug!(target: "loud", n = 3, nf = "x", on = true, "b");
        });
        let expected = ["sluiced::log::tests 1 a {}", "loud b {\"n\": Number(3), \"nf\": String(\"x\"), \"on\": Bool(true)}"];
        assert_eq!(*seen.0.lock().unwrap(), expected);
    }

    #[test]
    fn a_word_that_is_no_level_is_refused() {
        assert!(["info", "warn,sluice_sdn=debug", "off", "output=off,info"].iter().all(|text| levels(text).is_ok()));
        assert!(["wran", "", "info,sluice_sdn", "a=b"].iter().all(|text| levels(text).is_err()));
    }

    #[test]
    fn times_are_of_the_calendar() {
        let at = |seconds| rfc3339(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59.000Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59.000Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000Z");
    }
}
