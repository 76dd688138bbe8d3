//! `sluice nf upgrade`: at once, or with a canary or a shadow first.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sluice_api::change::CanaryRequest;
use sluice_api::client::Client;
use sluice_api::model::{Event, EventKind, Upgrade};
use sluice_api::shadow::{DifferenceKind, ShadowReport, ShadowRequest};

use crate::args::{Allowed, NfUpgrade};

/// Time between two requests for events while a canary or shadow is watched.
const LOOK: Duration = Duration::from_millis(250);

pub fn run(client: &mut Client, args: NfUpgrade, out: &mut dyn Write) -> anyhow::Result<()> {
    let NfUpgrade { service, exec, canary, shadow, lasts, allow, core, max_drops, max_burst, no_wait, abort, args } = args;
    if abort {
        client.abort_canary(&service)?;
        return Ok(writeln!(out, "the version of {service} that is on trial leaves; the flows of a canary go back")?);
    }
    let exec = found_from_anywhere(&exec.unwrap_or_default())?;
    let (seen, begun, gets) = match canary {
        None if !shadow => return at_once(client, &service, &Upgrade { exec, args }, out),
        None => {
            let (allow, allow_percent) = match allow {
                Allowed::Packets(packets) => (packets, 0.0),
                Allowed::Percent(percent) => (0, percent),
            };
            let wanted = ShadowRequest { exec, args, seconds: lasts, allow, allow_percent, core };
            (last_event(client)?, client.shadow(&service, &wanted)?, String::from("copies of packets"))
        }
        Some(percent) => {
            let wanted = CanaryRequest { exec, args, percent, seconds: lasts, drops_percent: max_drops, burst_us: max_burst };
            (last_event(client)?, client.canary(&service, &wanted)?, format!("{percent} % of new flows"))
        }
    };
    let (what, names) = (if shadow { "shadow" } else { "canary" }, begun.instances.join(", "));
    writeln!(out, "{what} {names} gets {gets} for {lasts} s; `sluice nf upgrade {service} --abort` ends it")?;
    out.flush()?;
    if no_wait {
        return Ok(());
    }
    let end = end_of(client, &service, seen)?;
    if shadow {
        report(&client.shadow_report(&service)?, out)?;
    }
    anyhow::ensure!(!end.starts_with(FAILED), "{}", end.trim_start_matches(FAILED));
    Ok(writeln!(out, "{end}")?)
}

/// The number of the last event.
fn last_event(client: &mut Client) -> anyhow::Result<u64> {
    Ok(client.events()?.last().map_or(0, |event| event.number))
}

/// What was compared, and the first packets that differ.
fn report(report: &ShadowReport, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{}", report.counts)?;
    for one in &report.differences {
        let kind = match one.kind {
            DifferenceKind::Verdict => "verdict",
            DifferenceKind::Bytes => "bytes",
            DifferenceKind::Order => "order",
            DifferenceKind::Kept => "kept",
        };
        let from = one.first_byte().map_or(String::new(), |at| format!(", from byte {at}"));
        writeln!(out, "packet {} of {}: {kind}{from}", one.number, report.of)?;
        writeln!(out, "  got  {}", one.packet)?;
        for (which, verdict, bytes) in [("old", &one.old, &one.old_bytes), ("new", &one.new, &one.new_bytes)] {
            writeln!(out, "{}", format!("  {which}  {verdict} {bytes}").trim_end())?;
        }
    }
    Ok(out.flush()?)
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

/// The end of a canary or shadow in words, once there is one among the events after `seen`.
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
