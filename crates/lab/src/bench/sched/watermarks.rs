//! `sluice bench watermarks`: a sweep of watermarks, ring depth, queueing time, frames and chains.
//!
//! # Approach
//! The chain of 120, 270 and 550 with everything enabled under SCHED_OTHER. One parameter at a time
//! differs from the middle of the sweep (the daemon's defaults). The delivered rate against the
//! ideal shows whether packets stay in the caches and the core stays busy; wasted work and latency
//! show the price. With `handover` 0, the manager wakes each NF. NFVnice's parts, which have no
//! hand-over, run with the lowest and the highest watermarks, and with those of the middle.
//!
//! The second table has chains of two to six NFs and of other costs, each with a margin between low
//! and high watermark of 1, 20 and 40 percent, and with an ideal of its own.
//!
//! Where the processor's counters can be read, each run has the NFs' instructions a cycle, too
//! ([`counters`](crate::bench::counters)).
//!
//! # Source
//! NFVnice, section 4.3.8 (the tuning of high and low watermark).

use std::time::Duration;

use serde_json::json;

use super::{
    COST, COSTS, DELIVERED, HopSpec, Mode, OF_IDEAL, OF_IDEAL_BY_CPU, RING, WASTED, line, name_of, params, ratios_besides,
};
use crate::bench::counters::{METRIC, NfEvents};
use crate::bench::experiment::Experiment;
use crate::bench::lab::{Case, Lab, Row, Trials};
use crate::bench::report::{Params, Variant};
use crate::bench::setup::{Class, Setup};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "watermarks",
    about: "the tuning sweep: watermarks, queueing time, ring depth, frames, hand-over",
    run: |args| Lab::measure(args, &[COST], plan),
};

/// Low and high watermark, in percent.
const MARKS: [(u32, u32); 9] = [(10, 20), (20, 40), (40, 60), (50, 70), (60, 70), (60, 90), (70, 80), (80, 90), (90, 95)];
/// Low watermarks below the high one of [`MIDDLE`]: margins of 1 to 5, 30 and 40 percent.
const LOWS: [u32; 7] = [79, 78, 77, 76, 75, 50, 40];
const RINGS: [u32; 3] = [256, 512, 1024];
const FRAMES: [u32; 2] = [32_768, MANY_FRAMES];
/// Enough for rings of [`DEEP`], which are compared at this number.
const MANY_FRAMES: u32 = 65_536;
const DEEP: u32 = 4096;
const QUEUEING_US: [u32; 4] = [1, 20, 500, 2_000];

/// Other chains, by costs: of other lengths, and of costs from 100 to 10,000.
const CHAINS: [&[u64]; 7] = [
    &[120, 270],
    &[120, 270, 550, 120],
    &[120, 270, 550, 120, 270],
    &[120, 270, 550, 120, 270, 550],
    &[100, 100, 100],
    &[1_000, 1_000, 1_000],
    &[10_000, 10_000, 10_000],
];
/// Low watermarks of these.
const LOWS_OF_CHAINS: [u32; 3] = [79, 60, 40];
/// Enough frames for six NFs.
const CHAIN_FRAMES: u32 = 32_768;

/// A point of the sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Point {
    low: u32,
    high: u32,
    ring: u32,
    frames: u32,
    queueing_us: u32,
    handover: bool,
    /// Of the chain's NFs.
    costs: &'static [u64],
}

const MIDDLE: Point = Point { low: 60, high: 80, ring: RING, frames: 16_384, queueing_us: 100, handover: true, costs: &COSTS };
/// Its costs in words.
const MIDDLE_COSTS: &str = "120/270/550";

/// Params that do not affect the ideal.
const SIDE: [&str; 7] = ["point", "low", "high", "ring", "frames", "queueing_us", "handover"];

const GROUP: Group = Group {
    title: "A chain of costs 120, 270 and 550 on one core, everything on",
    keys: &["point"],
    columns: &[
        DELIVERED,
        OF_IDEAL,
        OF_IDEAL_BY_CPU,
        WASTED,
        Column::new("latency_ns_p50", "p50 µs", 1e3, 0),
        Column::new("latency_ns_p99", "p99 µs", 1e3, 0),
        Column::new("switches_voluntary_per_s.nf3", "switches/s of NF 3", 1.0, 0),
        Column::new(METRIC, "instructions/cycle", 1.0, 2),
    ],
    plotted: 2,
    form: Form::Bars,
};
const OTHERS: Group =
    Group { title: "Chains of other lengths and costs, by low watermark (the high one is 80)", keys: &["costs", "low"], ..GROUP };

fn sweep() -> Vec<Point> {
    let mut out = vec![MIDDLE];
    out.extend(MARKS.map(|(low, high)| Point { low, high, ..MIDDLE }));
    out.extend(LOWS.map(|low| Point { low, ..MIDDLE }));
    out.extend(RINGS.map(|ring| Point { ring, ..MIDDLE }));
    out.push(Point { ring: DEEP, frames: MANY_FRAMES, ..MIDDLE });
    out.extend(FRAMES.map(|frames| Point { frames, ..MIDDLE }));
    out.extend(QUEUEING_US.map(|queueing_us| Point { queueing_us, ..MIDDLE }));
    out.push(Point { handover: false, ..MIDDLE });
    let of_chain = |costs| LOWS_OF_CHAINS.map(|low| Point { costs, low, frames: CHAIN_FRAMES, ..MIDDLE });
    out.extend(CHAINS.into_iter().flat_map(of_chain));
    out
}

/// Points of NFVnice's parts.
fn of_parts() -> [Point; 3] {
    [MARKS[0], (MIDDLE.low, MIDDLE.high), MARKS[MARKS.len() - 1]].map(|(low, high)| Point { low, high, handover: false, ..MIDDLE })
}

impl Point {
    /// The deviation from the middle, in words.
    fn word(&self) -> String {
        let Self { low, high, ring, frames, queueing_us, costs, .. } = *self;
        let mut words = Vec::new();
        let mut say = |differs: bool, word: String| words.extend(differs.then_some(word));
        say(costs != MIDDLE.costs, format!("costs {}", self.costs()));
        say((low, high) != (MIDDLE.low, MIDDLE.high), format!("marks {low}/{high}"));
        say(ring != MIDDLE.ring, format!("ring {ring}"));
        say(frames != MIDDLE.frames, format!("frames {frames}"));
        say(queueing_us != MIDDLE.queueing_us, format!("queueing {queueing_us}"));
        say(self.handover != MIDDLE.handover, "no hand-over".into());
        if words.is_empty() { "middle".into() } else { words.join(" ") }
    }

    fn costs(&self) -> String {
        self.costs.iter().map(u64::to_string).collect::<Vec<_>>().join("/")
    }

    fn params(&self) -> Params {
        params(&[
            ("point", json!(self.word())),
            ("costs", json!(self.costs())),
            ("low", json!(self.low)),
            ("high", json!(self.high)),
            ("ring", json!(self.ring)),
            ("frames", json!(self.frames)),
            ("queueing_us", json!(self.queueing_us)),
            ("handover", json!(u8::from(self.handover))),
        ])
    }

    fn setup(&self, lab: &Lab, mode: Mode) -> Setup {
        let hops = self.costs.iter().zip(1..).map(|(cycles, number)| HopSpec::new(number, lab.cores.shared(), *cycles));
        let mut setup = line(lab, mode, Class::Other, &hops.collect::<Vec<_>>());
        setup.frames = self.frames;
        setup.services.iter_mut().for_each(|service| service.ring = self.ring);
        if let Some(sched) = &mut setup.sched {
            sched.watermarks = Some((self.low, self.high));
            sched.queueing_us = Some(self.queueing_us);
            sched.handover = self.handover;
        }
        setup
    }
}

fn of_middle(variant: &Variant) -> bool {
    variant.params.get("costs").is_some_and(|costs| costs == MIDDLE_COSTS)
}

/// A case whose NFs' instructions and cycles are counted.
fn counted(name: &str, params: Params, setup: Setup) -> Case {
    Case::one(name, params, move |lab| {
        let (mut sample, ratios) = lab.flow_while(&setup, |before| {
            let events = NfEvents::open(&before.stats.nfs);
            lab.programs.pause(Duration::from_secs_f64(lab.args.seconds))?;
            Ok(events.and_then(|events| events.per_cycle()))
        })?;
        match ratios {
            Ok(ratios) => sample.extend(ratios),
            Err(why) => lab.leave_out(METRIC, &why.to_string()),
        }
        Ok(sample)
    })
}

fn plan(lab: &Lab) -> Trials {
    let shown: Vec<crate::bench::lab::Shown> = vec![(GROUP, of_middle), (OTHERS, |v| !of_middle(v))];
    let mut plan = Trials::new(EXPERIMENT.name, derive, shown);
    let case = |point: &Point, mode: Mode| counted(&name_of(mode, Class::Other), point.params(), point.setup(lab, mode));
    plan.cases.push(case(&MIDDLE, Mode::Ideal));
    plan.cases.extend(CHAINS.map(|costs| case(&Point { costs, ..MIDDLE }, Mode::Ideal)));
    plan.cases.extend(of_parts().map(|point| case(&point, Mode::Nfvnice)));
    plan.cases.extend(sweep().iter().map(|point| case(point, Mode::Sluice)));
    plan
}

fn derive(rows: &mut [Row]) -> Vec<Row> {
    ratios_besides(rows, &SIDE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::lab::tests::lab;

    #[test]
    fn every_point_is_another_and_can_be_set() {
        let points = sweep();
        for (i, point) in points.iter().enumerate() {
            assert!(!points[..i].contains(point), "{point:?} comes twice");
            assert!(point.low < point.high && point.high <= 100 && point.ring.is_power_of_two(), "{point:?}");
            // Both rings of all NFs, and some in hand.
            assert!(point.frames > 2 * point.costs.len() as u32 * point.ring, "{point:?}");
        }
        let words: std::collections::BTreeSet<String> = points.iter().map(Point::word).collect();
        assert_eq!(words.len(), points.len());
        assert!(words.contains("ring 4096 frames 65536") && words.contains("marks 10/20") && words.contains("marks 79/80"));
        assert!(words.contains("costs 120/270 marks 40/80 frames 32768"), "{words:?}");
        assert_eq!(MIDDLE.costs(), MIDDLE_COSTS);
        let text = Point { handover: false, ..MIDDLE }.setup(&lab(1), Mode::Sluice).toml("/tmp/x".as_ref());
        assert!(text.contains("handover = false") && text.contains("low_watermark = 60\nhigh_watermark = 80\n"), "{text}");
    }

    #[test]
    fn one_ideal_is_the_measure_of_all_points_of_a_chain() {
        let plan = plan(&lab(1));
        let ideals = plan.cases.iter().filter(|case| case.name == "ideal/other").count();
        assert_eq!((ideals, plan.cases.len()), (1 + CHAINS.len(), ideals + of_parts().len() + sweep().len()));
        assert!(of_parts()[0].setup(&lab(1), Mode::Nfvnice).sched.is_some_and(|sched| sched.weights && !sched.handover));
        let row = |i: usize, pps: f64| {
            let sample = crate::bench::measure::Sample::from([("delivered_pps".into(), pps)]);
            Row::new(&plan.cases[i].name, &plan.cases[i].params, sample)
        };
        // The first chain's ideal, and one of the parts; the last chain's, and its last point.
        let mut rows = vec![row(0, 4.0), row(ideals, 3.0), row(ideals - 1, 10.0), row(plan.cases.len() - 1, 9.0)];
        derive(&mut rows);
        assert_eq!((rows[1].get("of_ideal"), rows[3].get("of_ideal")), (Some(0.75), Some(0.9)));
    }
}
