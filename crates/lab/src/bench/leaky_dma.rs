//! `sluice bench leaky-dma`: the effect of a bound on frames in flight in receive queues.
//!
//! # Approach
//! The [model](sluice_cache::leak) of packets that devices write into the last-level cache, with
//! the sizes of the paper's machine: 45 MiB in 20 ways, of which devices write into two. Twelve
//! queues have 2,048 frames each (`default`), or as many as fit the I/O ways (`sized`, by [`bound`]
//! for packets of 1,518 bytes). Packets have 64 or 1,518 bytes. The NFs keep up (`waiting_percent`
//! 0), or queues are half or completely full. With each packet, ten lines of the NFs' own data
//! enter the other ways. `frames/…` sweeps the size of a queue.
//!
//! # Limits
//! A model: nothing is measured, repeats do not vary, and `--seconds` has no effect. The model's
//! documentation lists its limits.
//!
//! # Source
//! Tootoonchian and others, ResQ, NSDI 2018, table 2 and figure 5.

use serde_json::json;
use sluice_cache::buffers::{EXTRA_LINES, IoCache, Queues, bound};
use sluice_cache::leak::{Setup, run as receive};
use sluice_cache::model::Geometry;

use crate::bench::experiment::{BenchArgs, Experiment};
use crate::bench::lab::{Case, Lab, Trials, nothing};
use crate::bench::measure::Sample;
use crate::bench::report::{Params, Variant};
use crate::bench::table::{Column, Form, Group};

pub const EXPERIMENT: Experiment = Experiment {
    name: "leaky-dma",
    about: "packets that leave the cache before they are read, with receive queues as they come and sized (ResQ, table 2 and figure 5)",
    run,
};

/// The paper's last-level cache: 45 MiB.
const CACHE: Geometry = Geometry { sets: 36_864, ways: 20 };
const LINE: u32 = 64;
const IO_WAYS: u32 = 2;
const QUEUES: u32 = 12;
const FRAMES: u32 = 2_048;
/// From one frame to the next, as in the arena.
const STRIDE: u32 = 2_240;
/// Largest packet that the bound allows for.
const LARGEST: u32 = 1_518;
const PACKET_BYTES: [u32; 2] = [64, LARGEST];
const WAITING_PERCENT: [u32; 3] = [0, 50, 100];
/// Frames of a queue, for the figure.
const SWEEP: [u32; 8] = [32, 64, 128, 192, 256, 512, 1_024, 2_048];
/// Lines of the NFs' own data per packet: a few tables.
const STATE_LINES: u32 = 10;
const PACKETS: u64 = 50_000;

const COLUMNS: &[Column] = &[
    Column::new("read_miss_percent", "read from memory %", 1.0, 1),
    Column::new("write_miss_percent", "not cached when written %", 1.0, 1),
    Column::new("memory_bytes_per_packet", "memory B/packet", 1.0, 0),
    Column::new("frames_count", "frames", 1.0, 0),
];
const TABLE: Group = Group {
    title: "Twelve receive queues, as they come and sized",
    keys: &["packet_bytes", "waiting_percent"],
    columns: COLUMNS,
    plotted: 1,
    form: Form::Bars,
};
const FIGURE: Group = Group {
    title: "Against the frames of a queue, queues full",
    keys: &["packet_bytes", "frames"],
    columns: COLUMNS,
    plotted: 1,
    form: Form::Lines("frames"),
};

fn run(args: &BenchArgs) -> anyhow::Result<()> {
    let lab = Lab::here(args, &[])?;
    lab.run(&plan()?)
}

/// Frames of a queue that fit.
fn sized() -> anyhow::Result<u32> {
    let cache = IoCache { ways: IO_WAYS, way_bytes: u64::from(CACHE.sets) * u64::from(LINE), line: LINE };
    Ok(bound(cache, Queues { queues: QUEUES, packet_bytes: LARGEST, extra_lines: EXTRA_LINES, stride: STRIDE })?.per_queue)
}

fn plan() -> anyhow::Result<Trials> {
    let shown: Vec<crate::bench::lab::Shown> = vec![
        (TABLE, |v: &Variant| v.params.contains_key("waiting_percent")),
        (FIGURE, |v: &Variant| v.params.contains_key("frames")),
    ];
    let mut plan = Trials::new(EXPERIMENT.name, nothing, shown);
    for (name, frames) in [("default", FRAMES), ("sized", sized()?)] {
        for packet_bytes in PACKET_BYTES {
            for waiting in WAITING_PERCENT {
                let params =
                    Params::from([("packet_bytes".into(), json!(packet_bytes)), ("waiting_percent".into(), json!(waiting))]);
                plan.cases.push(case(name.into(), params, frames, packet_bytes, waiting));
            }
        }
    }
    for packet_bytes in PACKET_BYTES {
        for frames in SWEEP {
            let params = Params::from([("packet_bytes".into(), json!(packet_bytes)), ("frames".into(), json!(frames))]);
            plan.cases.push(case(format!("frames/{packet_bytes}"), params, frames, packet_bytes, 100));
        }
    }
    Ok(plan)
}

fn case(name: String, params: Params, frames: u32, packet_bytes: u32, waiting_percent: u32) -> Case {
    Case::one(name, params, move |_| Ok(sample(frames, packet_bytes, waiting_percent)))
}

fn sample(frames: u32, packet_bytes: u32, waiting_percent: u32) -> Sample {
    let leak = receive(
        &Setup {
            cache: CACHE,
            io_ways: IO_WAYS,
            core_ways: CACHE.ways - IO_WAYS,
            line: LINE,
            queues: QUEUES,
            frames,
            stride: STRIDE,
            packet_bytes,
            extra_lines: EXTRA_LINES,
            waiting: (frames - 1) * waiting_percent / 100,
            state_lines: STATE_LINES,
        },
        PACKETS,
    );
    Sample::from([
        ("read_miss_percent".into(), leak.read_misses * 100.0),
        ("write_miss_percent".into(), leak.write_misses * 100.0),
        ("memory_bytes_per_packet".into(), leak.memory_bytes),
        ("frames_count".into(), f64::from(frames * QUEUES)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sized_queues_keep_packets_cached_and_others_do_not() {
        let sized = sized().unwrap();
        for waiting in WAITING_PERCENT {
            assert!(sample(sized, LARGEST, waiting)["read_miss_percent"] < 2.0, "{waiting}");
        }
        assert!(sample(FRAMES, LARGEST, 100)["read_miss_percent"] > 80.0);
        assert!(sample(FRAMES, LARGEST, 0)["memory_bytes_per_packet"] > 1_000.0);
    }

    #[test]
    fn every_variant_has_a_name_of_its_own() {
        let plan = plan().unwrap();
        let mut all: Vec<String> = plan.cases.iter().map(|case| format!("{} {:?}", case.name, case.params)).collect();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 2 * 2 * 3 + 2 * SWEEP.len());
    }
}
