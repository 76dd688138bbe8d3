use super::*;

/// NFs of one core in a chain, on a clock of their own: NF `i` hands its packets to `i + 1`.
struct Core {
    cost_ns: Vec<f64>,
    ring: u32,
    work: Vec<u32>,
    /// Slots on each output; usually unlimited.
    room: Vec<u32>,
    held: Vec<bool>,
    weight: Vec<f64>,
    background: Vec<usize>,
    /// Packets of each that it has read and not returned.
    in_hand: u32,
    /// Nanoseconds that the NF on the core has worked on its next packet.
    spent_ns: f64,
    /// When the next run begins.
    at_ns: u64,
    delivered: u64,
}

impl Rings for Core {
    fn read(&self, nf: u16) -> Reading {
        let (work, nf) = (self.work[usize::from(nf)], usize::from(nf));
        Reading {
            work,
            unread: work.saturating_sub(self.in_hand),
            room: self.room[nf],
            held: self.held[nf],
            background: self.background.contains(&nf),
        }
    }
    fn cost_ns(&self, nf: u16) -> f64 {
        self.cost_ns[usize::from(nf)]
    }
    fn weight(&self, nf: u16) -> f64 {
        self.weight[usize::from(nf)]
    }
}

impl Core {
    fn new(cost_ns: &[f64], ring: u32) -> Self {
        let n = cost_ns.len();
        Self {
            cost_ns: cost_ns.to_vec(),
            ring,
            work: vec![0; n],
            room: vec![u32::MAX; n],
            held: vec![false; n],
            weight: vec![1.0; n],
            background: Vec::new(),
            in_hand: 0,
            spent_ns: 0.0,
            at_ns: 0,
            delivered: 0,
        }
    }

    fn workflow(&self, settings: Settings) -> Workflow {
        let mut workflow = Workflow::new(settings);
        for nf in (0..self.cost_ns.len() as u16).rev() {
            workflow.add(Member { nf, depth: nf.into(), ring: self.ring });
        }
        workflow
    }

    /// Packets inside; the entry lets in no more than a ring holds.
    fn inside(&self) -> u32 {
        self.work.iter().sum()
    }

    fn work_for(&mut self, nf: u16, ns: f64) {
        let nf = usize::from(nf);
        self.spent_ns += ns;
        while self.spent_ns >= self.cost_ns[nf] && self.work[nf] > 0 {
            self.spent_ns -= self.cost_ns[nf];
            self.work[nf] -= 1;
            match self.work.get_mut(nf + 1) {
                Some(next) => *next += 1,
                None => self.delivered += 1,
            }
        }
        if self.work[nf] == 0 {
            self.spent_ns = 0.0;
        }
    }

    /// Runs a workflow for `ns`, with up to `arrive` packets each step, and reports each move.
    fn run(&mut self, workflow: &mut Workflow, ns: u64, mut arrive: impl FnMut(u64) -> u32, mut report: impl FnMut(u64, Move)) {
        const STEP_NS: u64 = 500;
        let mut from_ns = self.at_ns;
        let until_ns = self.at_ns + ns;
        for now_ns in (self.at_ns..until_ns).step_by(STEP_NS as usize) {
            self.work[0] += arrive(now_ns).min(self.ring - self.inside().min(self.ring));
            let done = workflow.step(now_ns, self);
            if matches!(done, Move::Run(_) | Move::Switch { .. }) {
                from_ns = now_ns + workflow.settings().switch_ns;
                self.spent_ns = 0.0;
            }
            if done != Move::Stay {
                report(now_ns, done);
            }
            if let Some(nf) = workflow.running()
                && now_ns >= from_ns
            {
                self.work_for(nf, STEP_NS as f64);
            }
        }
        self.at_ns = until_ns;
    }
}

#[test]
fn a_slice_is_a_ring_of_packets_and_worth_its_switches() {
    let settings = Settings { switch_ns: 10_000, ..Settings::default() };
    assert_eq!(settings.slice_ns(50.0, 2048, 1.0), 102_400, "50 ns x 2,048");
    assert_eq!(Settings { divisor: 2.0, ..settings }.slice_ns(50.0, 2048, 1.0), 51_200);
    assert_eq!(Settings { divisor: 2.0, ..settings }.slice_ns(50.0, 2048, 1.5), 76_800);
    assert_eq!(settings.slice_ns(50.0, 2048, 3.0), 102_400, "never more than a ring full");
    assert_eq!(settings.slice_ns(16.0, 2048, 1.0), 50_000, "32.8 us, but five switches are 50");
    assert_eq!(settings.slice_ns(0.0, 2048, 1.0), 200_000, "nobody knows");
}

#[test]
fn one_that_may_have_work_that_nobody_sees_has_turns_and_keeps_nobody_awake() {
    // The first one has background work; only the second one has packets.
    let mut core = Core::new(&[0.0, 50.0], 2048);
    core.background = vec![0];
    let mut workflow = core.workflow(Settings::default());
    let mut begun = Vec::new();
    let busy_ns = 200_000_000;
    core.work[1] = u32::MAX;
    core.run(
        &mut workflow,
        busy_ns,
        |_| 0,
        |now_ns, done| {
            if let Move::Switch { to: 0, .. } | Move::Run(0) = done {
                begun.push(now_ns);
            }
        },
    );
    let expected = busy_ns / BACKGROUND_NS;
    assert!((expected / 2..=expected + 1).contains(&(begun.len() as u64)), "{begun:?}");
    assert!(begun.windows(2).all(|pair| pair[1] - pair[0] >= BACKGROUND_NS), "{begun:?}");
    let settings = *workflow.settings();
    assert!(
        workflow.take_longest_wait_ns() <= settings.least_slice_ns() + settings.switch_ns,
        "one short turn is all that it takes"
    );
    // Without packets it has the core, is not parked, and the caller may sleep.
    core.work[1] = 0;
    let mut moves = Vec::new();
    core.run(&mut workflow, 50_000_000, |_| 0, |_, done| moves.push(done));
    assert_eq!((workflow.running(), workflow.is_idle(), workflow.deadline_ns()), (Some(0), true, None), "{moves:?}");
    assert!(moves.len() <= 2 && !moves.iter().any(|done| matches!(done, Move::Park(0, _))), "{moves:?}");
    // With packets its slice is bounded, however expensive these seem.
    let mut core = Core::new(&[2_000_000.0, 50.0], 2048);
    core.background = vec![0];
    let mut workflow = core.workflow(Settings::default());
    core.work = vec![2048, 2048];
    let mut began_ns = None;
    let mut longest_ns = 0;
    core.run(
        &mut workflow,
        100_000_000,
        |_| 0,
        |now_ns, done| match done {
            Move::Run(0) | Move::Switch { to: 0, .. } => began_ns = Some(now_ns),
            Move::Switch { from: 0, .. } => longest_ns = longest_ns.max(now_ns - began_ns.expect("it has begun")),
            _ => {}
        },
    );
    let settings = Settings::default();
    // Another slice follows if no other NF has had work by then.
    assert!((1..=2 * settings.longest_wait_ns + settings.switch_ns + LOOK_NS).contains(&longest_ns), "{longest_ns}");
    // Two such NFs take turns.
    let mut core = Core::new(&[0.0, 0.0], 2048);
    core.background = vec![0, 1];
    let mut workflow = core.workflow(Settings::default());
    let mut turns = Vec::new();
    core.run(&mut workflow, 100_000_000, |_| 0, |_, done| turns.push(done));
    assert!((5..=11).contains(&turns.len()), "{turns:?}");
    assert!(workflow.is_idle());
}

#[test]
fn a_turn_for_packets_ends_with_them_whatever_else_there_is_to_do() {
    let mut core = Core::new(&[1000.0, 100.0], 2048);
    core.background = vec![0];
    let settings = Settings { switch_ns: 10_000, ..Settings::default() };
    let mut workflow = core.workflow(settings);
    core.work = vec![100, 2048];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    assert_eq!(workflow.step(30_000, &core), Move::Stay);
    core.work[0] = 0;
    assert_eq!(workflow.step(40_000, &core), Move::Switch { from: 0, to: 1, why: Why::Empty });
    // Such turns are too short for background work: a turn of full length still comes each 10 ms.
    let (mut began_ns, mut lengths) = (0, Vec::new());
    for now_ns in (50_000..50_000_000).step_by(10_000) {
        core.work[0] = if workflow.running() == Some(0) { 0 } else { 32 };
        match workflow.step(now_ns, &core) {
            Move::Switch { to: 0, .. } => began_ns = now_ns,
            Move::Switch { from: 0, .. } => lengths.push(now_ns - began_ns),
            _ => {}
        }
    }
    let long = lengths.iter().filter(|ns| **ns >= settings.least_slice_ns()).count();
    assert!((4..=5).contains(&long) && lengths.len() > 10 * long, "{lengths:?}");
}

#[test]
fn nfs_have_their_turns_in_the_order_of_their_chain() {
    let mut core = Core::new(&[50.0, 60.0, 70.0, 40.0], 2048);
    let mut workflow = core.workflow(Settings::default());
    assert_eq!(workflow.order().collect::<Vec<_>>(), [0, 1, 2, 3]);
    let mut turns = Vec::new();
    core.run(
        &mut workflow,
        20_000_000,
        |_| 20,
        |_, done| match done {
            Move::Run(to) => turns.push(to),
            Move::Switch { from, to, .. } => {
                assert_eq!(turns.last(), Some(&from));
                turns.push(to);
            }
            _ => {}
        },
    );
    assert!(turns.len() > 40, "{turns:?}");
    // The first packets are few; from then on each turn is the next in the circle.
    assert!(turns[8..].windows(2).all(|pair| pair[1] == (pair[0] + 1) % 4), "{turns:?}");
    assert!(core.delivered > 50_000, "{}", core.delivered);
}

#[test]
fn an_almost_empty_input_ends_a_turn_when_what_is_in_hand_is_back() {
    let mut core = Core::new(&[100.0, 100.0], 2048);
    let mut workflow = core.workflow(Settings { switch_ns: 10_000, ..Settings::default() });
    core.work = vec![100, 100];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    core.work[0] = 31;
    // Within two bursts' time it may be done.
    assert_eq!(workflow.step(20_000, &core), Move::Stay);
    core.work[0] = 0;
    assert_eq!(workflow.step(21_000, &core), Move::Switch { from: 0, to: 1, why: Why::Empty });
    // It does not return what it has: its turn ends all the same.
    core.work = vec![100, 20];
    assert_eq!(workflow.step(40_000, &core), Move::Stay);
    assert_eq!(workflow.step(46_399, &core), Move::Stay);
    assert_eq!(workflow.step(46_400, &core), Move::Switch { from: 1, to: 0, why: Why::Empty });
    assert_eq!(core.work[1], 20);
}

#[test]
fn a_turn_ends_by_what_the_nf_does_until_the_switch_stops_it() {
    let mut core = Core::new(&[50.0, 50.0, 0.0], 2048);
    let mut workflow = core.workflow(Settings { switch_ns: 10_000, stop_ns: 6_000, ..Settings::default() });
    core.work = vec![500, 500, 0];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    core.work[0] = 121;
    assert_eq!(workflow.step(20_000, &core), Move::Stay);
    core.work[0] = 120;
    assert_eq!(workflow.step(20_001, &core), Move::Switch { from: 0, to: 1, why: Why::Empty });
    core.work[1] = 100;
    assert_eq!(workflow.step(30_000, &core), Move::Stay, "it does not run yet");
    core.work[1] = 400;
    core.room[1] = 120;
    assert_eq!(workflow.step(30_001, &core), Move::Switch { from: 1, to: 0, why: Why::Full });
    core.work[1] = 0;
    assert_eq!(workflow.step(60_000, &core), Move::Stay, "no other waits");
    core.work[2] = 40;
    assert_eq!(workflow.step(90_000, &core), Move::Stay);
    assert_eq!(workflow.step(90_001, &core), Move::Switch { from: 0, to: 2, why: Why::Empty });
    core.work[0] = 500;
    assert_eq!(workflow.step(120_000, &core), Move::Stay, "the cost of its packets is unknown");
}

#[test]
fn packets_in_hand_and_small_rings_are_no_reason_to_foresee_an_end() {
    let run = |cost_ns: f64, ring: u32, stop_ns: u64| {
        let mut core = Core::new(&[cost_ns, cost_ns], ring);
        let mut workflow = core.workflow(Settings { switch_ns: 10_000, stop_ns, ..Settings::default() });
        core.work = vec![ring, ring];
        assert_eq!(workflow.step(0, &core), Move::Run(0));
        // All of it has been read.
        (core.work[0], core.in_hand) = (32, 32);
        workflow.step(20_000, &core)
    };
    let ends = Move::Switch { from: 0, to: 1, why: Why::Empty };
    assert_eq!(run(100.0, 2048, 6_000), ends);
    assert_eq!(run(500.0, 2048, 6_000), Move::Stay, "they take longer than it has");
    assert_eq!(run(100.0, 128, 6_000), Move::Stay, "the ring fills and empties in moments");
    assert_eq!(run(100.0, 2048, 0), Move::Stay, "the time is unknown");
}

#[test]
fn an_end_that_is_foreseen_in_vain_is_tried_again_later() {
    let mut core = Core::new(&[50.0, 50.0], 2048);
    let mut workflow = core.workflow(Settings { switch_ns: 10_000, stop_ns: 6_000, ..Settings::default() });
    core.work = vec![500, 500];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    core.work[0] = 100;
    core.held[1] = true;
    assert_eq!(workflow.step(20_000, &core), Move::Stay);
    core.held[1] = false;
    assert_eq!(workflow.step(39_999, &core), Move::Stay);
    assert_eq!(workflow.step(40_000, &core), Move::Switch { from: 0, to: 1, why: Why::Empty });
}

#[test]
fn a_full_output_and_a_hold_end_a_turn_and_keep_from_one() {
    let mut core = Core::new(&[100.0; 3], 2048);
    let mut workflow = core.workflow(Settings::default());
    core.work = vec![1000; 3];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    core.room[0] = 31;
    assert_eq!(workflow.step(1_000, &core), Move::Switch { from: 0, to: 1, why: Why::Full });
    core.held[1] = true;
    assert_eq!(workflow.step(2_000, &core), Move::Switch { from: 1, to: 2, why: Why::Held });
    // No other NF can run: it goes on after its slice, and is parked when it is held itself.
    assert_eq!(workflow.step(10_000_000, &core), Move::Stay);
    assert_eq!(workflow.running(), Some(2));
    core.held[2] = true;
    assert_eq!(workflow.step(10_001_000, &core), Move::Park(2, Why::Held));
    assert_eq!(workflow.step(10_002_000, &core), Move::Stay);
    core.room[0] = 32;
    assert_eq!(workflow.step(10_003_000, &core), Move::Run(0));
}

#[test]
fn a_slice_ends_a_turn_only_if_somebody_waits() {
    let mut core = Core::new(&[100.0; 2], 1024);
    let settings = Settings { switch_ns: 10_000, ..Settings::default() };
    let mut workflow = core.workflow(settings);
    core.work = vec![1000, 0];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    assert_eq!(workflow.deadline_ns(), None);
    assert_eq!(workflow.step(112_400, &core), Move::Stay, "switch and slice are over, and nobody else has work");
    core.work[1] = 32;
    assert_eq!(workflow.step(150_000, &core), Move::Stay);
    assert_eq!(workflow.deadline_ns(), Some(112_400 + 102_400));
    assert_eq!(workflow.step(214_800, &core), Move::Switch { from: 0, to: 1, why: Why::Slice });
}

#[test]
fn few_packets_wait_for_company_but_not_for_ever() {
    let mut core = Core::new(&[100.0; 3], 2048);
    let settings = Settings { switch_ns: 10_000, longest_wait_ns: 500_000, ..Settings::default() };
    let mut workflow = core.workflow(settings);
    core.work = vec![2048, 3, 0];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    // A third with enough packets comes before the second with few.
    core.work[2] = 32;
    assert_eq!(workflow.step(300_000, &core), Move::Switch { from: 0, to: 2, why: Why::Slice });
    assert_eq!(workflow.step(520_000, &core), Move::Switch { from: 2, to: 0, why: Why::Slice });
    core.work[2] = 32;
    assert_eq!(workflow.step(800_000, &core), Move::Switch { from: 0, to: 1, why: Why::Slice }, "it has waited for 0.8 ms");
    assert_eq!(workflow.take_longest_wait_ns(), 800_000);
    assert_eq!(workflow.take_longest_wait_ns(), 0);
}

#[test]
fn small_rings_are_no_reason_to_stand_still() {
    let mut core = Core::new(&[100.0; 2], 16);
    let mut workflow = core.workflow(Settings::default());
    core.room = vec![16; 2];
    core.run(&mut workflow, 5_000_000, |_| 1, |_, _| {});
    assert!(core.delivered > 100, "{}", core.delivered);
}

#[test]
fn weights_make_slices_longer_and_shorter() {
    let mut core = Core::new(&[100.0; 2], 1024);
    let settings = Settings { switch_ns: 10_000, ..Settings::default() };
    let mut workflow = core.workflow(settings);
    core.weight = vec![3.0, 1.5];
    core.work = vec![1000; 2];
    assert_eq!(workflow.step(0, &core), Move::Run(0));
    assert_eq!(workflow.deadline_ns(), Some(112_400));
    assert_eq!(workflow.step(112_400, &core), Move::Switch { from: 0, to: 1, why: Why::Slice });
    assert_eq!(workflow.deadline_ns(), Some(112_400 + 61_200), "half the weight, half the slice");
    // A weight that changes counts from the next turn on.
    core.weight[0] = 0.75;
    assert_eq!(workflow.step(200_000, &core), Move::Switch { from: 1, to: 0, why: Why::Slice });
    assert_eq!(workflow.deadline_ns(), Some(200_000 + 61_200));
}

#[test]
fn with_nothing_to_do_the_last_one_keeps_the_core_for_a_while() {
    let mut core = Core::new(&[100.0; 2], 2048);
    let settings = Settings { switch_ns: 10_000, park_after_ns: 100_000, ..Settings::default() };
    let mut workflow = core.workflow(settings);
    assert!(workflow.is_idle());
    assert_eq!(workflow.step(0, &core), Move::Stay);
    core.work = vec![1, 0];
    assert_eq!(workflow.step(1_000, &core), Move::Run(0));
    assert!(!workflow.is_idle());
    core.work = vec![0, 1];
    assert_eq!(workflow.step(15_000, &core), Move::Stay, "a packet alone does not make it switch again at once");
    assert_eq!(workflow.step(21_000, &core), Move::Switch { from: 0, to: 1, why: Why::Empty });
    core.work = vec![0, 0];
    assert_eq!(workflow.step(50_000, &core), Move::Stay);
    assert!(workflow.is_idle());
    assert_eq!(workflow.step(149_999, &core), Move::Stay);
    assert_eq!(workflow.step(150_000, &core), Move::Park(1, Why::Idle));
    assert_eq!(workflow.running(), None);
    core.work[1] = 1;
    assert_eq!(workflow.step(160_000, &core), Move::Run(1));
}

#[test]
fn one_that_leaves_leaves_the_others_where_they_are() {
    let mut core = Core::new(&[100.0; 3], 2048);
    let mut workflow = core.workflow(Settings::default());
    core.work = vec![0, 1000, 1000];
    assert_eq!(workflow.step(0, &core), Move::Run(1));
    workflow.remove(0);
    assert_eq!(workflow.running(), Some(1));
    // With other chains the third comes first.
    workflow.reorder(|nf| 10 - u32::from(nf));
    assert_eq!((workflow.running(), workflow.order().collect::<Vec<_>>()), (Some(1), vec![2, 1]));
    workflow.remove(1);
    assert_eq!(workflow.running(), None);
    assert_eq!(workflow.step(1_000, &core), Move::Run(2));
}

#[test]
fn nobody_with_work_waits_longer_than_the_slices_of_the_others_and_the_longest_wait() {
    // Costs and arrivals of all kinds, by a linear congruential generator.
    let mut seed = 7u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    for round in 0..30 {
        let n = 2 + random(9) as usize;
        let cost_ns: Vec<f64> = (0..n).map(|_| (16 + random(500)) as f64).collect();
        let mut core = Core::new(&cost_ns, 1 << (8 + random(4)));
        let settings = Settings::default();
        let mut workflow = core.workflow(settings);
        let often = 1 + random(50);
        core.run(&mut workflow, 30_000_000, |now_ns| u32::from((now_ns / 500) % often == 0) * 16, |_, _| {});
        let slices = cost_ns.iter().map(|cost| settings.slice_ns(*cost, core.ring, 1.0) + settings.switch_ns);
        let bound = slices.sum::<u64>() + settings.longest_wait_ns + LOOK_NS;
        let longest = workflow.take_longest_wait_ns();
        assert!(longest > 0 && longest <= bound, "round {round}: {longest} of {bound} ns, costs {cost_ns:?}");
        assert!(core.delivered > 0);
    }
}

#[test]
fn slices_far_longer_than_a_ring_do_no_harm() {
    // The report's third limitation: 16 ns a packet, where slices of more than 32 us collapsed.
    let delivered = |least_switches| {
        let mut core = Core::new(&[16.0; 3], 2048);
        let mut workflow = core.workflow(Settings { least_switches, ..Settings::default() });
        core.run(&mut workflow, 50_000_000, |_| 40, |_, _| {});
        core.delivered
    };
    let (short, long) = (delivered(5), delivered(200));
    assert!(long * 10 >= short * 9, "slices of 70 us: {short}, of 2.8 ms: {long}");
}
