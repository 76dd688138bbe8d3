//! `sluice slo` with a running daemon: applying its part of the plan, and reporting SLOs.

use std::io::Write;

use anyhow::{Context, bail};
use sluice_api::ErrorKind;
use sluice_api::client::{Client, ClientError};
use sluice_api::promise::{Decided, Placed, Promise, Promises, Steered};
use sluice_cli::number;
use sluice_cli::table::{Cell, Table, Tone, colour};
use sluice_cli::usage::json;
use sluice_slo::assignment::{Assignment, Promised};
use sluice_slo::placement::Instance;
use sluice_slo::slo::Promise as SloPromise;
use sluice_slo::watch::{By, Cause, What};

use crate::plan::folder::{Admitted, Plan};

/// Listed decisions about SLOs on demand.
const DECISIONS: usize = 5;

/// Applies the part of the plan for the daemon's server.
///
/// Instances that the daemon has added for SLOs on demand stay where the plan leaves their cores
/// free. One that it adds at this very moment is unknown here; the daemon would add it again.
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
    let slos = plan.slos.iter().map(|Admitted { slo, profile }| Promised { slo: slo.clone(), profile: profile.clone() });
    let assignment = Assignment::of(&plan.placement, name, slos);
    let mut assignment = assignment.with_context(|| format!("the plan has no server \"{name}\"; it has {}", names.join(", ")))?;
    let gone = match client.placement() {
        Ok(now) => keep_added(&mut assignment, &now, plan),
        // Nothing is placed yet.
        Err(ClientError::Api(error)) if error.kind == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let mut placed = client.place(&assignment)?;
    placed.notes.extend(gone);
    reported(&placed, as_json, out)
}

/// Adds to an assignment the instances that the daemon has added for SLOs on demand. Returns those
/// that cannot stay, and why.
fn keep_added(assignment: &mut Assignment, now: &Assignment, plan: &Plan) -> Vec<String> {
    let mut gone = Vec::new();
    if now.server.name != assignment.server.name {
        return gone;
    }
    let planned = |slo: &str| plan.placement.instances().map(|(_, one)| one).filter(move |one| one.slo == slo).collect::<Vec<_>>();
    for added in &now.server.instances {
        let promise = plan.slos.iter().find(|admitted| admitted.slo.name == added.slo).map(|admitted| admitted.slo.promise);
        // Instances without an SLO on demand go.
        let Some(SloPromise::OnDemand { cap, .. }) = promise else { continue };
        let planned = planned(&added.slo);
        if planned.iter().any(|one| one.number == added.number) {
            continue;
        }
        let mut with = assignment.clone();
        with.server.instances.push(added.clone());
        let is_added = |one: &&Instance| one.slo == added.slo && planned.iter().all(|known| known.number != one.number);
        let instances = planned.len() + with.server.instances.iter().filter(is_added).count();
        let why = if assignment.instances(&added.slo).is_empty() {
            Some("the plan has the SLO on other servers".into())
        } else if cap.instances.is_some_and(|most| instances > most as usize) {
            Some("its cap is reached without it".into())
        } else {
            with.check().err().map(|error| error.to_string())
        };
        match why {
            None => *assignment = with,
            Some(why) => gone.push(format!("{}.{}, which was added on demand, is not kept: {why}", added.slo, added.number)),
        }
    }
    gone
}

pub fn withdraw(client: &mut Client, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    reported(&client.withdraw()?, as_json, out)
}

fn reported(placed: &Placed, as_json: bool, out: &mut dyn Write) -> anyhow::Result<()> {
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

/// Reports on all SLOs.
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
    for Decided { age_s, slo, what } in promises.decisions.iter().rev().take(DECISIONS).rev() {
        writeln!(out, "{} ago: {slo}: {what}", number::age(*age_s))?;
    }
    Ok(())
}

/// Reports on one SLO.
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

/// Violations of an SLO, a line each.
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
    all.extend(promise.steered.iter().flat_map(|steered| steering(&promise.slo, steered)));
    if let Some(excess) = &promise.excess {
        let (offered, promised) = (number::rate(excess.offered_pps), number::rate(excess.promised_pps));
        let times = excess.offered_pps / excess.promised_pps;
        let since = number::age(excess.since_s);
        all.push(format!("{}: sends {times:.1} times what was promised for {since}: {offered} instead of {promised}", promise.slo));
    }
    all
}

/// Actions for an SLO on demand, a line each.
fn steering(slo: &str, steered: &Steered) -> Vec<String> {
    let shared = steered.shared_ways.map(|ways| format!("; the shared class has {ways}")).unwrap_or_default();
    let own = steered.own_ways.iter().map(|(name, ways)| format!("{slo}: {name} has {ways} cache ways of its own{shared}"));
    let limit = steered.limit_pps.map(|pps| format!("{slo}: no more than {} are let in", number::rate(pps)));
    let asks = steered.asks_for.as_ref();
    let asks = asks.map(|asks| format!("{slo}: asks for {} instances, which are not to be had here: {}", asks.instances, asks.why));
    own.chain(limit).chain(asks).collect()
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
    use sluice_api::promise::Asked;
    use sluice_slo::on_demand::{Footprint, lease};
    use sluice_slo::slo::{Cap, Slo};
    use sluice_slo::watch::{Excess, Violation};

    use super::*;
    use crate::plan::folder::tests::{admit, plan, slo};

    #[test]
    fn what_was_added_on_demand_is_kept_where_there_is_room() {
        let (_dir, folder) = plan(1);
        let mut plan = folder.read().unwrap();
        let cap = Cap { instances: Some(3), load_pps: None };
        let web = Slo { promise: SloPromise::OnDemand { latency_us: 80.0, cap }, ..slo("web", "ids", 1.0, 1.0) };
        let small = Footprint { cores: 1, memory_mib: 1 };
        let more = |plan: &mut Plan| drop(lease(&mut plan.placement, &web, small).unwrap());
        more(&mut plan);
        plan.slos.push(Admitted { slo: web.clone(), profile: None });
        let of = |plan: &Plan| {
            let slos = plan.slos.iter().map(|Admitted { slo, profile }| Promised { slo: slo.clone(), profile: profile.clone() });
            Assignment::of(&plan.placement, "s0", slos).unwrap()
        };
        // The daemon adds two.
        let mut grown = plan.clone();
        more(&mut grown);
        more(&mut grown);
        let now = of(&grown);
        let mut kept = of(&plan);
        assert_eq!(keep_added(&mut kept, &now, &plan), Vec::<String>::new());
        assert_eq!(kept, now);
        // An SLO admitted since then takes the core of the first.
        admit(&folder, &mut plan, slo("acme", "ids", 1e5, 1e4));
        let mut kept = of(&plan);
        let gone = keep_added(&mut kept, &now, &plan);
        assert!(gone[0].starts_with("web.1, which was added on demand, is not kept: ") && gone.len() == 1, "{gone:?}");
        assert_eq!(kept.instances("web").iter().map(|one| one.number).collect::<Vec<_>>(), [0, 2]);
        kept.check().unwrap();
        // A cap that has become smaller, and an SLO that is gone.
        plan.slos[0].slo.promise = SloPromise::OnDemand { latency_us: 80.0, cap: Cap { instances: Some(1), load_pps: None } };
        let mut kept = of(&plan);
        let gone = keep_added(&mut kept, &now, &plan);
        assert!(gone.len() == 2 && gone.iter().all(|line| line.contains("cap")) && kept == of(&plan), "{gone:?}");
        plan.slos.remove(0);
        plan.placement.remove("web");
        let mut kept = of(&plan);
        assert!(keep_added(&mut kept, &now, &plan).is_empty() && kept == of(&plan));
    }

    #[test]
    fn a_broken_promise_is_named() {
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
        let steered = Steered {
            own_ways: [("web.0".to_string(), 4)].into(),
            shared_ways: Some(5),
            limit_pps: Some(8e4),
            asks_for: Some(Asked { instances: 3, why: "no place".into() }),
            remedy: None,
        };
        let decided = Decided { age_s: 12.0, slo: "web".into(), what: "goes back".into() };
        let web = Promises {
            promises: vec![Promise { slo: "web".into(), windows: 5, steered: Some(steered), ..Promise::default() }],
            decisions: vec![decided],
            ..Promises::default()
        };
        let listed = text(&|out| list(&web, false, out));
        for line in [
            "web.0 has 4 cache ways of its own; the shared class has 5\n",
            "asks for 3 instances, which are not to be had here: no place\n",
        ] {
            assert!(listed.contains(&format!("\nweb: {line}")), "{listed}");
        }
        assert!(listed.contains(" are let in\n") && listed.ends_with("12 s ago: web: goes back\n"), "{listed}");
        assert!(text(&|out| show(&promises, "rogue", false, out)).contains("64 packets may come at once"));
        assert!(show(&promises, "web", false, &mut Vec::new()).unwrap_err().to_string().contains("acme, rogue"));
        assert_eq!(text(&|out| list(&Promises::default(), false, out)), "nothing is placed here\n");
    }
}
