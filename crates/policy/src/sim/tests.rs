use super::experiments::RATE_PPS;
use super::*;

fn short(scenario: Scenario) -> Scenario {
    Scenario { warmup_ns: 100_000_000, measure_ns: 200_000_000, ..scenario }
}

/// Runs scenarios of several shapes under every variant and class, for a fifth of a second.
fn each(mut look: impl FnMut(&Scenario, &Outcome, Variant, Class)) {
    for (variant, class) in experiments::columns() {
        let chain = |nfs: &[usize], rate_pps| Chain { nfs: nfs.to_vec(), rate_pps, flows: 3 };
        let mut mixed = vec![Nf::fixed(0, 270), Nf::fixed(1, 120), Nf::fixed(0, 4500), Nf::fixed(1, 300)];
        mixed[1].cost = Cost::Random(vec![120, 270, 550]);
        mixed[3].cost = Cost::ByFlow(vec![100, 900]);
        let shapes = [
            experiments::chain(variant, class),
            experiments::chain_order([2, 0, 1], variant, class),
            experiments::fairness(6, variant, class),
            experiments::sched_baseline(false, false, variant, class),
            // Two chains that share an NF, one with an NF twice, and one with little traffic.
            Scenario::new(
                mixed,
                vec![chain(&[0, 1, 3], 6_000_000), chain(&[0, 2, 3], 6_000_000), chain(&[1, 0, 1], 50_000)],
                variant,
                class,
            ),
        ];
        for scenario in shapes.map(short) {
            look(&scenario, &run(&scenario), variant, class);
        }
    }
}

#[test]
fn no_packet_is_lost_or_made() {
    each(|scenario, o, variant, class| {
        for (spec, c) in scenario.chains.iter().zip(&o.chains) {
            let gone = c.delivered + c.entry_drops + c.wasted;
            assert_eq!(c.offered + c.inside_before, gone + c.inside_after, "{variant}/{class}: {c:?}");
            assert!(c.inside_after <= 2 * u64::from(scenario.platform.ring) * spec.nfs.len() as u64, "{variant}/{class}: {c:?}");
            let rate = o.per_second(c.offered);
            assert!((rate / spec.rate_pps as f64 - 1.0).abs() < 0.001, "{variant}/{class}: {rate}");
        }
        let wasted: u64 = o.nfs.iter().map(|nf| nf.wasted).sum();
        assert_eq!(wasted, o.chains.iter().map(|c| c.wasted).sum());
    });
}

#[test]
fn no_time_is_lost_or_made() {
    each(|_, o, variant, class| {
        for core in &o.cores {
            let all = core.busy_ns + core.switch_ns + core.idle_ns;
            // A burst or a switch may cross both ends: 32 packets of 4,525 cycles are 63 µs.
            assert!(all.abs_diff(o.elapsed_ns) < 70_000, "{variant}/{class}: {core:?} of {}", o.elapsed_ns);
        }
        let (by_nfs, by_cores): (u64, u64) = (o.nfs.iter().map(|nf| nf.switch_ns).sum(), o.cores.iter().map(|c| c.switch_ns).sum());
        assert_eq!(by_nfs, by_cores, "{variant}/{class}");
        let busy: u64 = o.cores.iter().map(|c| c.busy_ns).sum();
        let cycles: u64 = o.nfs.iter().map(|nf| nf.cycles).sum();
        assert!((cycles * 1000 / o.mhz).abs_diff(busy) < 130_000, "{variant}/{class}");
    });
}

#[test]
fn an_overloaded_core_does_not_idle() {
    // Except for the wake of an idle core, 20 µs, and the round until it is seen.
    for (variant, class) in experiments::columns() {
        for scenario in [experiments::chain(variant, class), experiments::fairness(6, variant, class)] {
            let o = run(&short(scenario));
            assert!(o.cores[0].idle_ns < o.elapsed_ns / 100, "{variant}/{class}: {:?}", o.cores[0]);
        }
    }
}

#[test]
fn backpressure_wastes_nothing_and_its_absence_does() {
    each(|_, o, variant, class| {
        let wasted: u64 = o.chains.iter().map(|c| c.wasted).sum();
        match variant {
            Variant::Default | Variant::Weights => {}
            _ => assert_eq!(wasted, 0, "{variant}/{class}"),
        }
    });
    let o = run(&experiments::chain(Variant::Default, Class::Other));
    assert!(o.wasted_pps() > o.total_pps(), "{} of {}", o.wasted_pps(), o.total_pps());
}

#[test]
fn the_ideal_is_what_the_cycles_allow_and_nobody_is_above() {
    let orders = experiments::ORDERS.map(|order| move |v, c| experiments::chain_order(order, v, c));
    for scenario in orders {
        let ideal = run(&short(scenario(Variant::Ideal, Class::Other))).total_pps();
        // 2.3 GHz by 940 cycles in handlers and 25 in one pass.
        assert!((ideal / (2.3e9 / 965.0) - 1.0).abs() < 0.001, "{ideal}");
        for (variant, class) in experiments::columns() {
            let got = run(&short(scenario(variant, class))).total_pps();
            assert!(got <= ideal, "{variant}/{class}: {got} of {ideal}");
        }
    }
}

#[test]
fn weights_give_time_by_load() {
    for (costs, rates) in [([300, 600, 100], [4, 4, 4]), ([300, 300, 300], [12, 6, 3]), ([500, 250, 50], [6, 6, 3])] {
        for class in [Class::Other, Class::Batch] {
            let chains = (0..3).map(|nf| Chain { nfs: vec![nf], rate_pps: rates[nf] * 1_000_000, flows: 1 }).collect();
            let nfs = costs.map(|c| Nf::fixed(0, c)).to_vec();
            let scenario = Scenario::new(nfs, chains, Variant::Weights, class);
            let o = run(&scenario);
            // Samples are of the handlers alone.
            let load = |nf: usize| (rates[nf] * costs[nf]) as f64;
            let total: f64 = (0..3).map(load).sum();
            for nf in 0..3 {
                let want = load(nf) / total;
                assert!((o.shares[nf] / want - 1.0).abs() < 0.05, "{class}: decided {:?}", o.shares);
            }
        }
    }
}

#[test]
fn a_fair_kernel_follows_the_weights_of_hungry_nfs() {
    // Rings refill faster than they drain, so that no NF sleeps: 10 Mpps of 400 to 1,600 cycles.
    let costs = [400, 800, 1600];
    let chains = (0..3).map(|nf| Chain { nfs: vec![nf], rate_pps: 10_000_000, flows: 1 }).collect();
    let o = run(&Scenario::new(costs.map(|c| Nf::fixed(0, c)).to_vec(), chains, Variant::Weights, Class::Batch));
    for (nf, cost) in costs.into_iter().enumerate() {
        let want = cost as f64 / (400 + 800 + 1600) as f64;
        assert!((o.cpu_share(nf) - want).abs() < 0.01, "{} of {want}", o.cpu_share(nf));
    }
    assert!(o.jain() > 0.999, "{}", o.jain());
}

#[test]
fn priority_doubles_what_an_nf_gets() {
    let chain = |nf| Chain { nfs: vec![nf], rate_pps: RATE_PPS, flows: 1 };
    for variant in [Variant::Weights, Variant::Sluice] {
        let mut nfs = vec![Nf::fixed(0, 600), Nf::fixed(0, 600)];
        nfs[0].priority = 2.0;
        let o = run(&Scenario::new(nfs, vec![chain(0), chain(1)], variant, Class::Other));
        let ratio = o.delivered_pps(0) / o.delivered_pps(1);
        assert!((ratio - 2.0).abs() < 0.05, "{variant}: {ratio}");
    }
}

#[test]
fn a_bottleneck_on_another_core_costs_only_its_own_chains() {
    // NF 0 feeds a slow and a quick NF, on a core each. The second chain's rate is unaffected.
    let nfs = vec![Nf::fixed(0, 270), Nf::fixed(1, 4500), Nf::fixed(2, 120)];
    let chain = |nfs: &[usize], rate_pps| Chain { nfs: nfs.to_vec(), rate_pps, flows: 1 };
    let chains = vec![chain(&[0, 1], 6_000_000), chain(&[0, 2], 4_000_000)];
    for class in Class::ALL {
        let o = run(&Scenario::new(nfs.clone(), chains.clone(), Variant::Sluice, class));
        // 2.3 GHz by 4,525 cycles, and all of the other.
        assert!(o.delivered_pps(0) > 0.97 * 2.3e9 / 4525.0, "{class}: {}", o.delivered_pps(0));
        assert!(o.delivered_pps(1) > 0.99 * 4e6, "{class}: {}", o.delivered_pps(1));
        assert!(o.throttles > 0);
    }
}

#[test]
fn a_change_of_cost_moves_the_shares_once() {
    let mut scenario = experiments::sched_baseline(true, true, Variant::Sluice, Class::Other);
    scenario.nfs[0].factors = vec![(300_000_000, 3)];
    let between = |from_ms: u64, to_ms: u64| {
        run(&Scenario { warmup_ns: from_ms * 1_000_000, measure_ns: (to_ms - from_ms) * 1_000_000, ..scenario.clone() })
    };
    let before = between(200, 300);
    assert!((before.shares[0] * 3.0 - 1.0).abs() < 0.05, "{:?}", before.shares);
    // 3 · 250 and twice 250: reached in a window of 100 ms and a decision, and then stable.
    let after = between(450, 1300);
    let want = 750.0 / 1250.0;
    assert!((after.shares[0] / want - 1.0).abs() < 0.05, "{:?}", after.shares);
    assert!((after.cpu_share(0) / want - 1.0).abs() < 0.05, "{}", after.cpu_share(0));
    assert_eq!((between(0, 200).weight_writes > 0, after.weight_writes), (true, 0));
}

#[test]
fn sluice_does_not_depend_on_class_or_order_and_is_fair() {
    let pps = |scenario: Scenario| run(&short(scenario)).total_pps();
    for class in Class::ALL {
        let orders = experiments::ORDERS.map(|order| pps(experiments::chain_order(order, Variant::Sluice, class)));
        let (least, most) = orders.iter().fold((f64::MAX, 0f64), |(l, m), o| (l.min(*o), m.max(*o)));
        assert!(least > 0.99 * most, "{class}: {orders:?}");
        assert!(least > 0.93 * pps(experiments::chain(Variant::Ideal, class)), "{class}: {orders:?}");
        for other in Class::ALL {
            assert!(orders[0] > pps(experiments::chain(Variant::Default, other)), "{class} and {other}");
        }
        let fair = run(&short(experiments::fairness(6, Variant::Sluice, class)));
        assert!(fair.jain() > 0.99, "{class}: {}", fair.jain());
        assert!(fair.chains.iter().all(|c| c.delivered > 0), "{class}");
    }
}

/// NFs of these costs on one core, with these chains at a rate each, and a manager whose work takes
/// time.
fn with_costs(costs: &[u64], chains: &[&[usize]], rate_pps: u64, variant: Variant, class: Class) -> Scenario {
    let nfs = costs.iter().map(|cost| Nf::fixed(0, *cost)).collect();
    let chains = chains.iter().map(|nfs| Chain { nfs: nfs.to_vec(), rate_pps, flows: 1 }).collect();
    let mut scenario = short(Scenario::new(nfs, chains, variant, class));
    scenario.machine.round_ns = 200;
    scenario.machine.thread = Some(ThreadCosts { entry_ns: 40.0, pass_ns: 10.0 });
    scenario
}

#[test]
fn the_managers_time_bounds_what_is_read() {
    // An NF that is faster than the manager: 50 ns a packet, and 200 for each 32.
    let mut scenario = with_costs(&[10], &[&[0]], 40_000_000, Variant::Sluice, Class::Other);
    (scenario.machine.wake_cost_ns, scenario.machine.wake_quiet_cost_ns) = (0, 0);
    let o = run(&scenario);
    let most = 1e9 / (50.0 + 200.0 / 32.0);
    assert!(o.delivered_pps(0) < 1.01 * most && o.delivered_pps(0) > 0.9 * most, "{} of {most}", o.delivered_pps(0));
    assert!(o.per_second(o.chains[0].offered) < 1.01 * most, "what it does not read is never sent");
    // One that it can serve gets all.
    scenario.chains[0].rate_pps = 5_000_000;
    let o = run(&scenario);
    assert!((o.delivered_pps(0) / 5e6 - 1.0).abs() < 0.01, "{}", o.delivered_pps(0));
}

#[test]
fn a_source_of_which_nothing_is_let_in_is_read_seldom() {
    for variant in [Variant::Default, Variant::Sluice] {
        let o = run(&with_costs(&[20_000], &[&[0]], 14_000_000, variant, Class::Other));
        let chain = o.chains[0];
        // A burst in 33 rounds, or each round that lets something in.
        assert!(chain.offered < o.elapsed_ns * 14 / 1000 / 2, "{variant}: {chain:?}");
        assert!(chain.offered > 20 * chain.delivered, "{variant}: {chain:?}");
        assert_eq!(chain.offered + chain.inside_before, chain.delivered + chain.entry_drops + chain.wasted + chain.inside_after);
    }
}

#[test]
fn what_comes_in_takes_the_room_before_what_is_passed_on() {
    // Each NF is first of one chain and second of the other. Both rings are full of first packets.
    let o = run(&with_costs(&[270, 270], &[&[0, 1], &[1, 0]], 7_000_000, Variant::Default, Class::Batch));
    let (done, all) = (o.nfs.iter().map(|nf| nf.packets).sum::<u64>(), o.chains.iter().map(|c| c.delivered).sum::<u64>());
    assert!(all * 20 < done, "{all} of {done} were delivered");
    assert!(o.wasted_pps() > 10.0 * o.total_pps(), "{} and {}", o.wasted_pps(), o.total_pps());
}

#[test]
fn a_chain_holds_no_more_frames_than_it_leaves() {
    let mut scenario = with_costs(&[100, 5000], &[&[0, 1]], 10_000_000, Variant::Default, Class::Batch);
    let most_inside = |scenario: &Scenario| run(scenario).chains[0].inside_after;
    scenario.machine.frames = Some(1000);
    let inside = most_inside(&scenario);
    assert!(inside <= 500 + 32 && inside > 300, "{inside}");
    scenario.machine.frames = None;
    assert!(most_inside(&scenario) > 2000);
}

#[test]
fn an_nf_wants_what_comes_to_it_and_what_was_refused() {
    // The second NF of a chain gets a part of what the first one does, and so a part of its weight.
    let o = run(&with_costs(&[100, 1000], &[&[0, 1]], 14_000_000, Variant::Weights, Class::Batch));
    let (first, second) = (o.nfs[0].packets as f64, o.nfs[1].packets as f64);
    let refused = o.chains[0].entry_drops as f64;
    let load = [(first + refused) * 100.0, (second + refused) * 1000.0];
    assert!(second < 0.9 * first, "{o:?}");
    assert!((o.shares[1] / (load[1] / (load[0] + load[1])) - 1.0).abs() < 0.1, "{:?}", o.shares);
}

#[test]
fn an_nf_that_waits_for_its_core_is_no_bottleneck() {
    // Two NFs of 10 cycles, far below the queueing time that throttles, beside one that has the
    // core for a tick at a time.
    let mut scenario = with_costs(&[10, 3000], &[&[0], &[1]], 1_000_000, Variant::Backpressure, Class::Batch);
    scenario.platform.queueing_ns = 1_000_000;
    scenario.nfs[1].ring = Some(32);
    let o = run(&scenario);
    assert_eq!(o.throttles, 0, "{o:?}");
    // One that is slow is.
    scenario.nfs[1].ring = None;
    assert!(run(&scenario).throttles > 0);
}

#[test]
fn a_wake_from_another_core_takes_time_of_the_one_that_it_interrupts() {
    let mut scenario = with_costs(&[500, 50], &[&[0], &[1]], 5_000_000, Variant::Default, Class::Other);
    let of = |scenario: &Scenario| {
        let o = run(scenario);
        (o.cores[0].switch_ns / (o.nfs[0].runs + o.nfs[1].runs), o.total_pps())
    };
    let (plain_ns, plain_pps) = of(&scenario);
    assert_eq!(plain_ns, scenario.machine.switch_ns);
    scenario.machine.interrupt_ns = 4000;
    let (ns, pps) = of(&scenario);
    // Half of the switches are back.
    assert!((3000..4000).contains(&ns) && pps < plain_pps, "{ns} ns, {pps} of {plain_pps}");
}

#[test]
fn other_processes_take_time_and_end_slices() {
    for class in [Class::Other, Class::Batch] {
        // The first NF always has packets, and the others get what a ring holds, tick by tick.
        let mut scenario = short(experiments::chain_order([2, 1, 0], Variant::Default, class));
        let alone = run(&scenario);
        scenario.machine.others = Some(Others { every_ns: 5_000_000, has_ns: 50_000 });
        let beside = run(&scenario);
        let CoreOutcome { busy_ns, switch_ns, others_ns, idle_ns } = beside.cores[0];
        assert!(others_ns.abs_diff(beside.elapsed_ns / 101) < beside.elapsed_ns / 400, "{class}: {others_ns}");
        assert!((busy_ns + switch_ns + others_ns + idle_ns).abs_diff(beside.elapsed_ns) < 70_000, "{class}");
        assert_eq!(alone.cores[0].others_ns, 0);
        // One that waits and preempts nobody has the core after each, and not only after a tick.
        let gains = beside.total_pps() > 1.1 * alone.total_pps();
        assert!(gains || class == Class::Other, "{class}: {} and {}", beside.total_pps(), alone.total_pps());
    }
}

#[test]
fn a_real_time_class_and_one_process_for_all_lose_no_slice_to_others() {
    let with = |mut scenario: Scenario| {
        scenario.machine.others = Some(Others { every_ns: 5_000_000, has_ns: 50_000 });
        (run(&scenario), scenario)
    };
    let (beside, mut scenario) = with(short(experiments::chain(Variant::Default, Class::Rr(4))));
    scenario.machine.others = None;
    assert_eq!(run(&scenario), beside);
    // One that has the core alone loses the time.
    let (beside, mut scenario) = with(short(experiments::chain(Variant::Ideal, Class::Other)));
    scenario.machine.others = None;
    let part = beside.cores[0].others_ns as f64 / beside.elapsed_ns as f64;
    let lost = 1.0 - beside.total_pps() / run(&scenario).total_pps();
    assert!(part > 0.005 && (lost - part).abs() < 0.001, "{lost} of {part}");
}

#[test]
fn a_preemption_need_not_wait_for_the_end_of_a_burst() {
    // A burst of 32 packets of 100,000 cycles takes 1.4 ms; the other NF's packets go between.
    let mut scenario = with_costs(&[100_000, 100], &[&[0], &[1]], 100_000, Variant::Default, Class::Other);
    scenario.measure_ns = 1_000_000_000;
    let o = run(&scenario);
    assert!(o.nfs[1].runs > 2 * o.nfs[0].packets / 32 + 1000, "{:?}", o.nfs);
    assert!(o.nfs[0].involuntary > 1000, "{:?}", o.nfs);
}

#[test]
fn the_same_scenario_gives_the_same_outcome_and_another_seed_another() {
    let mut scenario = experiments::chain(Variant::Sluice, Class::Other);
    scenario.measure_ns = 100_000_000;
    scenario.nfs[1].cost = Cost::Random(vec![100, 900]);
    let first = run(&scenario);
    assert_eq!(first, run(&scenario));
    scenario.seed = 2;
    assert_ne!(first, run(&scenario));
}

#[test]
fn scenarios_that_cannot_be_run_are_refused() {
    let good = experiments::chain(Variant::Default, Class::Other);
    assert_eq!(good.check(), Ok(()));
    let refused = |change: fn(&mut Scenario)| {
        let mut bad = good.clone();
        change(&mut bad);
        bad.check().unwrap_err().to_string()
    };
    assert!(refused(|s| s.nfs[1].core = 7).contains("NF 1 is on core 7"));
    assert!(refused(|s| s.nfs[1].cost = Cost::List(Vec::new())).contains("NF 1 has an empty list"));
    assert!(refused(|s| s.chains[0].nfs.push(3)).contains("visits NF 3"));
    assert!(refused(|s| s.chains[0].nfs.clear()).contains("visits no NF"));
    assert!(refused(|s| s.machine.mhz = 0).contains("0 MHz"));
    assert!(refused(|s| s.machine.tick_ns = 0).contains("each 0 ns"));
    assert!(refused(|s| s.machine.others = Some(Others { every_ns: 0, has_ns: 1 })).contains("another process each 0 ns"));
    assert!(refused(|s| s.platform.ring = 16).contains("16 packets"));
    assert!(refused(|s| s.nfs[0].ring = Some(8)).contains("8 packets"));
    assert!(refused(|s| s.platform.low_watermark = 81).contains("out of order"));
}
