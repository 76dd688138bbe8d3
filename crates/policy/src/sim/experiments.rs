//! Experiments that are both simulated and measured.
//!
//! Each gives a scenario for a variant and a class. Sources send more than any variant can carry,
//! as in the paper: 10 Gbit/s of 64-byte packets each. Experiments that should have a core for each
//! NF are here on one core, too, as a machine with two cores measures them.
//!
//! # Limits
//! Nothing that reacts or waits: TCP beside UDP (figure 13), writes to a disk (figure 14).
//!
//! Source: NFVnice, sections 2.1 and 4.

use super::scenario::{Chain, Class, Cost, Nf, Scenario, Variant};

/// Rate of a source, in packets a second.
pub const RATE_PPS: u64 = 12_000_000;

/// Costs of the NFs of the chain experiments, in cycles.
pub const CHAIN: [u64; 3] = [120, 270, 550];

/// All orders of three NFs, as indices into [`CHAIN`].
pub const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Costs of the fairness experiment, in units of [`FAIRNESS_UNIT`] cycles.
pub const FAIRNESS: [u64; 6] = [1, 2, 5, 20, 40, 60];

/// Cycles of the cheapest NF of the fairness experiment.
pub const FAIRNESS_UNIT: u64 = 100;

/// [`ORDERS`] as the flows of the mixed orders take them: not first those with the cheap NF first.
pub const MIXED: [usize; 6] = [3, 0, 4, 1, 5, 2];

fn one_chain(costs: &[u64], variant: Variant, class: Class) -> Scenario {
    let nfs = costs.iter().map(|cycles| Nf::fixed(0, *cycles)).collect();
    let chain = Chain { nfs: (0..costs.len()).collect(), rate_pps: RATE_PPS, flows: 1 };
    Scenario::new(nfs, vec![chain], variant, class)
}

/// Unrelated NFs on one core, each with a cost and a rate.
fn apart(nfs: &[(u64, u64)], variant: Variant, class: Class) -> Scenario {
    let chain = |(nf, (_, rate_pps)): (usize, &(u64, u64))| Chain { nfs: vec![nf], rate_pps: *rate_pps, flows: 1 };
    let chains = nfs.iter().enumerate().map(chain).collect();
    Scenario::new(nfs.iter().map(|(cycles, _)| Nf::fixed(0, *cycles)).collect(), chains, variant, class)
}

/// Three NFs of 120, 270 and 550 cycles in a chain on one core (figure 7).
pub fn chain(variant: Variant, class: Class) -> Scenario {
    one_chain(&CHAIN, variant, class)
}

/// The same in another order (figure 11).
pub fn chain_order(order: [usize; 3], variant: Variant, class: Class) -> Scenario {
    one_chain(&order.map(|i| CHAIN[i]), variant, class)
}

/// Chains of 1 to 10 NFs on one core, with costs of 120, 270 and 550 cycles in turn (figure 16).
pub fn chain_length(nfs: usize, variant: Variant, class: Class) -> Scenario {
    let costs: Vec<u64> = (0..nfs).map(|i| CHAIN[i % CHAIN.len()]).collect();
    one_chain(&costs, variant, class)
}

/// Moves all NFs of a scenario to one core.
pub fn on_one_core(mut scenario: Scenario) -> Scenario {
    scenario.nfs.iter_mut().for_each(|nf| nf.core = 0);
    scenario.machine.cores = 1;
    scenario
}

/// Three NFs of 550, 2,200 and 4,500 cycles in a chain, each on a core of its own (table 5).
pub fn multicore(variant: Variant, class: Class) -> Scenario {
    let nfs = vec![Nf::fixed(0, 550), Nf::fixed(1, 2200), Nf::fixed(2, 4500)];
    let chain = Chain { nfs: vec![0, 1, 2], rate_pps: RATE_PPS, flows: 1 };
    Scenario::new(nfs, vec![chain], variant, class)
}

/// Two chains that share their first and last NF; the one between is cheap in the first, slow in
/// the second. NFs of 270, 120, 4,500 and 300 cycles, on a core each (table 6, figure 9).
pub fn shared_nf(variant: Variant, class: Class) -> Scenario {
    let nfs = [270, 120, 4500, 300].into_iter().enumerate().map(|(core, cycles)| Nf::fixed(core, cycles)).collect();
    let chain = |middle| Chain { nfs: vec![0, middle, 3], rate_pps: RATE_PPS / 2, flows: 1 };
    Scenario::new(nfs, vec![chain(1), chain(2)], variant, class)
}

/// Three NFs on one core; each packet costs 120, 270 or 550 cycles at random (figure 10).
pub fn variable_cost(variant: Variant, class: Class) -> Scenario {
    let mut scenario = one_chain(&[0; 3], variant, class);
    scenario.nfs.iter_mut().for_each(|nf| nf.cost = Cost::Random(CHAIN.to_vec()));
    scenario
}

/// NFs of 120, 270 and 550 cycles on one core, 1 to 6 flows, each with its own order (figure 12).
pub fn mixed_order(flows: usize, variant: Variant, class: Class) -> Scenario {
    let rate_pps = RATE_PPS / flows.max(1) as u64;
    let chain = |order: &usize| Chain { nfs: ORDERS[*order].to_vec(), rate_pps, flows: 1 };
    let nfs = CHAIN.iter().map(|cycles| Nf::fixed(0, *cycles)).collect();
    Scenario::new(nfs, MIXED.iter().take(flows).map(chain).collect(), variant, class)
}

/// Six equal flows, through `diversity` NFs with costs of 1 : 2 : 5 : 20 : 40 : 60 (figure 15).
pub fn fairness(diversity: usize, variant: Variant, class: Class) -> Scenario {
    let nfs: Vec<(u64, u64)> = FAIRNESS.iter().take(diversity).map(|c| (c * FAIRNESS_UNIT, RATE_PPS / 6)).collect();
    apart(&nfs, variant, class)
}

/// Two unrelated NFs of 1,000 and 3,000 cycles, or of 3,000 each while the first is dearer, at 2
/// million packets a second each (figure 15a).
pub fn dynamic(is_dearer: bool, variant: Variant, class: Class) -> Scenario {
    apart(&[(if is_dearer { 3000 } else { 1000 }, 2_000_000), (3000, 2_000_000)], variant, class)
}

/// Three unrelated NFs on a core (figure 1): equal costs of 250 cycles, or 500, 250 and 50; at 5
/// million packets a second each, or 6, 6 and 3.
pub fn sched_baseline(equal_costs: bool, equal_rates: bool, variant: Variant, class: Class) -> Scenario {
    let costs = if equal_costs { [250, 250, 250] } else { [500, 250, 50] };
    let rates = if equal_rates { [5_000_000, 5_000_000, 5_000_000] } else { [6_000_000, 6_000_000, 3_000_000] };
    let nfs: Vec<(u64, u64)> = costs.into_iter().zip(rates).collect();
    apart(&nfs, variant, class)
}

/// Columns of a table: each variant under each class, and the ideal once.
pub fn columns() -> Vec<(Variant, Class)> {
    let real = Variant::ALL.into_iter().filter(|v| *v != Variant::Ideal);
    let mut all: Vec<_> = real.flat_map(|v| Class::ALL.map(|c| (v, c))).collect();
    all.push((Variant::Ideal, Class::Other));
    all
}
