//! Table of the simulator's results for the experiments, compared to the last digit.
//! `SLUICE_UPDATE_TABLE=1 cargo test -p sluice-policy --test simulation` writes it anew.

use std::fmt::Write;
use std::path::Path;

use sluice_policy::sim::{self, Class, Outcome, Scenario, Variant, experiments};

type Row = (String, Box<dyn Fn(Variant, Class) -> Scenario + Send>);

fn rows() -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for order in experiments::ORDERS {
        let name = order.map(|i| experiments::CHAIN[i].to_string()).join("/");
        rows.push((format!("chain {name}"), Box::new(move |v, c| experiments::chain_order(order, v, c))));
    }
    for n in 1..=10 {
        rows.push((format!("chain-length {n}"), Box::new(move |v, c| experiments::chain_length(n, v, c))));
    }
    rows.push(("multicore 550/2200/4500".into(), Box::new(experiments::multicore)));
    rows.push(("multicore on one core".into(), Box::new(|v, c| experiments::on_one_core(experiments::multicore(v, c)))));
    rows.push(("shared-nf".into(), Box::new(experiments::shared_nf)));
    rows.push(("shared-nf on one core".into(), Box::new(|v, c| experiments::on_one_core(experiments::shared_nf(v, c)))));
    rows.push(("variable-cost".into(), Box::new(experiments::variable_cost)));
    for flows in 1..=6 {
        rows.push((format!("mixed-order {flows}"), Box::new(move |v, c| experiments::mixed_order(flows, v, c))));
    }
    for diversity in 1..=experiments::FAIRNESS.len() {
        let costs = experiments::FAIRNESS[..diversity].iter().map(u64::to_string).collect::<Vec<_>>().join(":");
        rows.push((format!("fairness {costs}"), Box::new(move |v, c| experiments::fairness(diversity, v, c))));
    }
    for (is_dearer, costs) in [(false, "1000/3000"), (true, "3000/3000")] {
        rows.push((format!("dynamic {costs}"), Box::new(move |v, c| experiments::dynamic(is_dearer, v, c))));
    }
    for (equal_costs, costs) in [(true, "250/250/250"), (false, "500/250/50")] {
        for (equal_rates, rates) in [(true, "5:5:5"), (false, "6:6:3")] {
            let scenario = move |v, c| experiments::sched_baseline(equal_costs, equal_rates, v, c);
            rows.push((format!("sched-baseline {costs} {rates}"), Box::new(scenario)));
        }
    }
    rows
}

/// A table: a line for each experiment, a column for each variant and class.
fn table(
    title: &str,
    outcomes: &[(String, Vec<Outcome>)],
    shown: impl Fn(&[Outcome]) -> bool,
    value: impl Fn(&Outcome) -> f64,
) -> String {
    let mut out = format!("{title}\n\n{:<34}", "");
    let names: Vec<String> = experiments::columns().iter().map(|(v, c)| name(*v, *c)).collect();
    names.iter().for_each(|name| _ = write!(out, " {name:>18}"));
    for (row, outcomes) in outcomes.iter().filter(|(_, o)| shown(o)) {
        _ = write!(out, "\n{row:<34}");
        outcomes.iter().for_each(|o| _ = write!(out, " {:>18.3}", value(o)));
    }
    out + "\n"
}

fn name(variant: Variant, class: Class) -> String {
    if variant == Variant::Ideal { "ideal".into() } else { format!("{variant}/{class}") }
}

#[test]
fn the_table_is_as_it_was() {
    // Six rounds of the longest slices, after two.
    let run = |scenario: Scenario| sim::run(&Scenario { measure_ns: 600_000_000, ..scenario });
    let of_row = |(row, scenario): Row| -> (String, Vec<Outcome>) {
        (row, experiments::columns().into_iter().map(|(v, c)| run(scenario(v, c))).collect())
    };
    let outcomes: Vec<(String, Vec<Outcome>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = rows().into_iter().map(|row| scope.spawn(move || of_row(row))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let all = |_: &[Outcome]| true;
    let several = |o: &[Outcome]| o[0].chains.len() > 1;
    let text = [
        table("Delivered, millions of packets a second", &outcomes, all, |o| o.total_pps() / 1e6),
        table("Wasted, millions of packets a second", &outcomes, all, |o| o.wasted_pps() / 1e6),
        table("Jain's index of the chains", &outcomes, several, Outcome::jain),
        table("Switches, thousands a second", &outcomes, all, |o| o.switches_per_second() / 1e3),
    ]
    .join("\n");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation.txt");
    if std::env::var_os("SLUICE_UPDATE_TABLE").is_some() {
        std::fs::write(&path, &text).expect("the table can be written");
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    for (number, (kept, is)) in kept.lines().zip(text.lines()).enumerate() {
        assert_eq!(kept, is, "line {} of {}; see the top of this test", number + 1, path.display());
    }
    assert_eq!(kept.lines().count(), text.lines().count(), "{} has other rows", path.display());
}
