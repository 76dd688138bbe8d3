//! `sluice nf upgrade`: at once, or with a canary first.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_api::change::CanaryRequest;
use sluice_api::client::Client;
use sluice_api::model::{Event, EventKind, Upgrade};

use crate::args::NfUpgrade;

/// Time between two requests for events while a canary is watched.
const LOOK: Duration = Duration::from_millis(250);

pub fn run(client: &mut Client, args: NfUpgrade, out: &mut dyn Write) -> anyhow::Result<()> {
    let NfUpgrade { service, exec, canary, lasts, max_drops, max_burst, no_wait, abort, args } = args;
    if abort {
        client.abort_canary(&service)?;
        return Ok(writeln!(out, "the canary of {service} leaves, and its flows go back")?);
    }
    let exec = found_from_anywhere(&exec.unwrap_or_default())?;
    let Some(percent) = canary else { return at_once(client, &service, &Upgrade { exec, args }, out) };
    let wanted = CanaryRequest { exec, args, percent, seconds: lasts, drops_percent: max_drops, burst_us: max_burst };
    let seen = client.events()?.last().map_or(0, |event| event.number);
    let begun = client.canary(&service, &wanted)?;
    let names = begun.instances.join(", ");
    writeln!(out, "canary {names} gets {percent} % of new flows for {lasts} s; `sluice nf upgrade {service} --abort` ends it")?;
    out.flush()?;
    if no_wait {
        return Ok(());
    }
    let end = end_of(client, &service, seen)?;
    anyhow::ensure!(!end.starts_with(FAILED), "{}", end.trim_start_matches(FAILED));
    Ok(writeln!(out, "{end}")?)
}

/// A path that the daemon can use, which may have another working directory.
fn found_from_anywhere(exec: &Path) -> anyhow::Result<String> {
    let is_path = exec.as_os_str().to_string_lossy().contains('/');
    let exec: PathBuf = if is_path { std::path::absolute(exec)? } else { exec.into() };
    Ok(exec.display().to_string())
}

fn at_once(client: &mut Client, service: &str, to: &Upgrade, out: &mut dyn Write) -> anyhow::Result<()> {
    let done = client.upgrade(service, to)?;
    let leaving = match done.leaving {
        0 => String::new(),
        1 => "; 1 of the old version leaves with its flow".into(),
        n => format!("; {n} of the old version leave, each with its flow"),
    };
    Ok(writeln!(out, "upgraded {} to {}: {}{leaving}", done.service, done.exec, done.instances.join(", "))?)
}

/// Begins the event of an upgrade that has failed.
const FAILED: &str = "failed: ";

/// The end of a canary in words, once there is one among the events after `seen`.
fn end_of(client: &mut Client, service: &str, seen: u64) -> anyhow::Result<String> {
    let subject = format!("service {service}");
    let is_its = |event: &Event| {
        let of_service = event.number > seen && event.event == EventKind::Upgrade && event.subject.as_ref() == Some(&subject);
        let text = event.text.clone().filter(|text| text.starts_with(FAILED) || text.starts_with("upgraded "));
        text.filter(|_| of_service)
    };
    loop {
        if let Some(text) = client.events()?.iter().find_map(is_its) {
            return Ok(text);
        }
        std::thread::sleep(LOOK);
    }
}
