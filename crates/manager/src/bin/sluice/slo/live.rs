//! What `sluice slo` has to do with a running daemon: giving it its part of the plan, and telling how promises are kept.

use std::io::Write;

use anyhow::{Context, bail};
use sluice_manager::control::client::Client;
use sluice_manager::control::promise::{Placed, Promise, Promises};
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::watch::{By, Cause, What};

use crate::commands::json;
use crate::number;
use crate::plan::folder::{Admitted, Plan};
use crate::table::{Cell, Table, Tone, colour};

/// Gives the daemon the part of the plan that is for its server.
pub fn apply(plan: &Plan, server: Option<&str>, client: &mut Client, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let own = client.promises()?.server;
    let names: Vec<&str> = plan.placement.servers.iter().map(|server| server.name.as_str()).collect();
    let name = match (server.or(own.as_deref()), &names[..]) {
        (Some(name), _) => name,
        (None, [only]) => *only,
        (None, _) => {
            bail!("the plan has the servers {}: say which this is, by --server or `server` in [promises]", names.join(", "))
        }
    };
    let slos = plan.slos.iter().map(|Admitted { slo, profile }| Promised { slo: slo.clone(), profile: Some(profile.clone()) });
    let assignment = Assignment::of(&plan.placement, name, slos);
    let assignment = assignment.with_context(|| format!("the plan has no server \"{name}\"; it has {}", names.join(", ")))?;
    told(&client.place(&assignment)?, as_json, out)
}

/// Has the daemon keep nothing any more.
pub fn withdraw(client: &mut Client, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    told(&client.withdraw()?, as_json, out)
}

fn told(placed: &Placed, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if as_json {
        return json(out, placed);
    }
    for change in &placed.changes {
        writeln!(out, "{change}")?;
    }
    if placed.changes.is_empty() {
        writeln!(out, "nothing to change")?;
    }
    placed.notes.iter().try_for_each(|note| writeln!(out, "note: {note}"))?;
    Ok(())
}

/// Tells how all promises are kept.
pub fn list(promises: &Promises, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    if as_json {
        return json(out, promises);
    }
    if promises.promises.is_empty() {
        writeln!(out, "nothing is placed here")?;
    } else {
        table(&promises.promises).print(out, colour())?;
    }
    for line in promises.promises.iter().flat_map(lines).chain(promises.notes.iter().map(|note| format!("note: {note}"))) {
        writeln!(out, "{line}")?;
    }
    Ok(())
}

/// Tells how one promise is kept.
pub fn show(promises: &Promises, name: &str, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let Some(promise) = promises.promises.iter().find(|promise| promise.slo == name) else {
        let known: Vec<&str> = promises.promises.iter().map(|promise| promise.slo.as_str()).collect();
        bail!("no SLO \"{name}\" is placed here; there are: {}", if known.is_empty() { "none".into() } else { known.join(", ") });
    };
    if as_json {
        return json(out, promise);
    }
    table(std::slice::from_ref(promise)).print(out, colour())?;
    lines(promise).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    writeln!(out, "runs {} ({})", promise.services.join(", "), promise.nfs.join(", "))?;
    if let Some(burst) = promise.burst {
        writeln!(out, "{burst} packets may come at once; {} were too many so far", number::grouped(promise.policed))?;
    }
    let windows = format!(
        "{} windows: throughput not kept in {}, latency in {}; sent too much in {}",
        promise.windows, promise.throughput_violated, promise.latency_violated, promise.exceeded
    );
    Ok(writeln!(out, "{windows}")?)
}

fn table(promises: &[Promise]) -> Table {
    let columns = [
        "NAME",
        "STATE",
        ">PROMISED",
        ">CAME",
        ">TOO MANY",
        ">DELIVERED",
        ">95 % WITHIN",
        ">OF",
        ">CORES",
        ">OF",
        ">WAYS",
        ">IN CACHE",
    ];
    let mut table = Table::new(&columns);
    for promise in promises {
        let tone = match promise.word() {
            "violated" => Tone::Bad,
            "exceeded" | "new" => Tone::Warn,
            _ => Tone::Good,
        };
        let micros = |us: f64| number::time((us * 1e3) as u64);
        table.row(vec![
            promise.slo.as_str().into(),
            Cell::toned(promise.word(), tone),
            promise.promised_pps.map_or_else(|| "on demand".into(), number::rate).into(),
            number::rate(promise.offered_pps).into(),
            number::rate(promise.policed_pps).into(),
            number::rate(promise.delivered_pps).into(),
            promise.latency_us.map_or_else(|| "?".into(), micros).into(),
            micros(promise.promised_us).into(),
            format!("{:.2}", promise.cpu).into(),
            format!("{:.2}", promise.part).into(),
            if promise.ways == 0 { "shared".to_string() } else { promise.ways.to_string() }.into(),
            promise
                .occupancy_bytes
                .map_or_else(|| "?".into(), |bytes| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20)))
                .into(),
        ]);
    }
    table
}

/// What is wrong with a promise, a line each.
fn lines(promise: &Promise) -> Vec<String> {
    let mut all = Vec::new();
    for violation in &promise.violations {
        let (what, measured, promised) = match violation.what {
            What::Throughput => ("throughput", number::rate(violation.measured), number::rate(violation.promised)),
            What::Latency => {
                let time = |us: f64| number::time((us * 1e3) as u64);
                ("latency", time(violation.measured), time(violation.promised))
            }
        };
        let why = violation.cause.as_ref().map_or("no neighbour is seen to be the cause".into(), blame);
        let since = number::age(violation.since_s);
        all.push(format!("{}: {what} is not kept for {since}: {measured} instead of {promised}; {why}", promise.slo));
    }
    if let Some(excess) = &promise.excess {
        let (offered, promised) = (number::rate(excess.offered_pps), number::rate(excess.promised_pps));
        let times = excess.offered_pps / excess.promised_pps;
        let since = number::age(excess.since_s);
        all.push(format!("{}: sends {times:.1} times what was promised for {since}: {offered} instead of {promised}", promise.slo));
    }
    all
}

fn blame(cause: &Cause) -> String {
    let Cause { tenant, by, measured, allowed, times } = cause;
    match by {
        By::Rate => format!(
            "{tenant} sends {times:.1} times what it was promised ({} of {})",
            number::rate(*measured),
            number::rate(*allowed)
        ),
        By::Cpu => format!("{tenant} uses {measured:.2} cores and was given {allowed:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use sluice_slo::watch::{Excess, Violation};

    use super::*;

    #[test]
    fn who_breaks_what_is_said() {
        let cause = Cause { tenant: "rogue".into(), by: By::Rate, measured: 1e6, allowed: 1e5, times: 10.0 };
        let violation = Violation { what: What::Latency, measured: 900.0, promised: 200.0, since_s: 3.0, cause: Some(cause) };
        let excess = Some(Excess { offered_pps: 1e6, promised_pps: 1e5, since_s: 4.0 });
        let promises = Promises {
            promises: vec![
                Promise { slo: "acme".into(), windows: 5, promised_us: 200.0, violations: vec![violation], ..Promise::default() },
                Promise { slo: "rogue".into(), windows: 5, promised_pps: Some(1e5), excess, burst: Some(64), ..Promise::default() },
            ],
            notes: vec!["no cache classes: it is off".into()],
            ..Promises::default()
        };
        let text = |of: &dyn Fn(&mut Vec<u8>) -> anyhow::Result<()>| {
            let mut out = Vec::new();
            of(&mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        let listed = text(&|out| list(&promises, false, out));
        assert!(
            listed.contains("acme: latency is not kept for 3 s: 900 µs instead of 200 µs; rogue sends 10.0 times what it was"),
            "{listed}"
        );
        assert!(listed.contains("rogue: sends 10.0 times what was promised for 4 s"), "{listed}");
        assert!(listed.ends_with("note: no cache classes: it is off\n"), "{listed}");
        assert!(text(&|out| show(&promises, "rogue", false, out)).contains("64 packets may come at once"));
        assert!(show(&promises, "web", false, &mut Vec::new()).unwrap_err().to_string().contains("acme, rogue"));
        assert_eq!(text(&|out| list(&Promises::default(), false, out)), "nothing is placed here\n");
    }
}
