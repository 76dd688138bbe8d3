//! `sluice bench chain-order`: the same three NFs in all six orders.
//!
//! # Approach
//! Costs 120, 270 and 550 on one core. The default wastes most with the costliest NF last, and
//! nothing with the costliest first; refusal at the entry does not depend on the order. The param
//! `order` has the NFs' numbers as digits: 321 is 550/270/120. The spread between the best and the
//! worst order is taken within one turn.
//!
//! # Source
//! NFVnice, figure 11.

use serde_json::json;
use sluice_policy::sim::experiments::ORDERS;

use super::simulated::{ERROR, SIMULATED};
use super::{
    COST, COSTS, DELIVERED, ENDS, HopSpec, OF_DEFAULT, OF_IDEAL, OF_IDEAL_BY_CPU, WASTED, cases, line, params, ratios_besides,
    schedulers,
};
use crate::bench::experiment::Experiment;
use crate::bench::fair::spread_percent;
use crate::bench::lab::{Lab, Row, Trials};
use crate::bench::measure::Sample;
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "chain-order",
    about: "costs 120/270/550 in all six orders; spread from best to worst (figure 11)",
    run: |args| Lab::measure(args, &[COST], plan),
};

const RATES: Group = Group {
    title: "A chain of costs 120, 270 and 550 on one core, by order",
    keys: &["order"],
    columns: &[DELIVERED, SIMULATED, ERROR, OF_IDEAL, OF_IDEAL_BY_CPU, OF_DEFAULT, WASTED],
    plotted: 1,
    form: Form::Bars,
};
const SPREAD: Group = Group {
    title: "From the best to the worst order",
    keys: &["orders"],
    columns: &[
        Column::new("order_spread_percent", "spread %", 1.0, 1),
        Column::new("worst_order_pps", "worst Mpps", 1e6, 3),
        Column::new("best_order_pps", "best Mpps", 1e6, 3),
    ],
    plotted: 1,
    form: Form::Bars,
};

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> =
        vec![(RATES, |v| v.params.contains_key("order")), (SPREAD, |v| v.params.contains_key("orders"))];
    let mut plan = Trials::new(EXPERIMENT.name, derive, shown);
    for order in ORDERS {
        let hops: Vec<HopSpec> = order.iter().map(|i| HopSpec::new(i + 1, lab.cores.shared(), COSTS[*i])).collect();
        // The order makes no difference in one process, so one ideal is enough.
        let modes = if order == ORDERS[0] { &ENDS[..] } else { &ENDS[..3] };
        plan.cases.extend(cases(modes, &schedulers(), &params(&[("order", json!(number(order)))]), |mode, class| {
            line(lab, mode, class, &hops)
        }));
    }
    plan
}

/// The numbers of the NFs, from 1, as digits.
fn number(order: [usize; 3]) -> usize {
    order.iter().fold(0, |n, i| n * 10 + i + 1)
}

fn derive(rows: &mut [Row]) -> Vec<Row> {
    ratios_besides(rows, &["order"]);
    let mut names: Vec<String> = rows.iter().map(|row| row.name.clone()).filter(|name| !name.starts_with("ideal")).collect();
    names.sort_unstable();
    names.dedup();
    let mut more = Vec::new();
    for name in names {
        let rates: Vec<f64> = rows.iter().filter(|row| row.name == name).filter_map(|row| row.get("delivered_pps")).collect();
        // With some orders missing, there is no spread of all.
        if rates.len() != ORDERS.len() {
            continue;
        }
        let mut row = Row::new(&name, &params(&[("orders", json!(ORDERS.len()))]), Sample::new());
        row.put("order_spread_percent", spread_percent(&rates));
        row.put("worst_order_pps", rates.iter().copied().reduce(f64::min));
        row.put("best_order_pps", rates.iter().copied().reduce(f64::max));
        more.push(row);
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;
    use crate::bench::sched::tests::row;

    #[test]
    fn all_orders_are_different() {
        let mut numbers = ORDERS.map(number);
        numbers.sort_unstable();
        assert_eq!(numbers, [123, 132, 213, 231, 312, 321]);
        assert_eq!(plan(&lab(1)).cases.len(), 6 * 3 * 4 + 4);
    }

    #[test]
    fn the_spread_is_of_all_orders_of_one_name() {
        let at = |i: usize| [("order", json!(number(ORDERS[i])))];
        let mut rows: Vec<Row> = (0..6).map(|i| row("sluice/other", &at(i), 10.0 - i as f64)).collect();
        rows.extend((0..5).map(|i| row("default/other", &at(i), 1.0)));
        rows.push(row("ideal/other", &at(0), 20.0));
        let more = derive(&mut rows);
        assert_eq!(rows[5].get("of_ideal"), Some(0.25), "the ideal is of any order");
        assert_eq!(more.len(), 1, "one order of the default is missing");
        let spread = &more[0];
        assert_eq!((spread.name.as_str(), spread.get("order_spread_percent")), ("sluice/other", Some(50.0)));
        assert_eq!((spread.get("worst_order_pps"), spread.get("best_order_pps")), (Some(5.0), Some(10.0)));
    }
}
