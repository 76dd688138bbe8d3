//! Small examples for the tests of this crate and of those that plan with it.

use crate::curve::{Curve, Point};
use crate::digest::Digest;
use crate::placement::ServerShape;
use crate::profile::{FORM, Key, Profile, Source};
use crate::slo::{Promise, Slo, Workload};

/// A server as those of the paper: 9 cores and 18 ways.
pub fn shape() -> ServerShape {
    ServerShape {
        cpu: "A".into(),
        cores: 9,
        llc_ways: 20,
        way_bytes: 2304 << 10,
        ddio_ways: 2,
        min_ways: 1,
        classes: 16,
        memory_mib: 64 << 10,
        path_us: 0,
    }
}

/// A curve through points, without margin.
pub fn curve(points: &[(f64, f64)]) -> Curve {
    let points: Vec<Point> = points.iter().map(|&(x, y)| Point { x, y }).collect();
    Curve { measured: points.len() as u32, points, ..Curve::default() }
}

/// A profile that gains a million packets per second with each of ten ways.
pub fn profile() -> Profile {
    Profile {
        form: FORM,
        key: Key {
            workload: Workload::Nf("nat".into()),
            binaries: vec![Digest::of(b"nat")],
            configuration: Digest::of(b""),
            traffic: "64 B".into(),
            cpu: "A".into(),
        },
        source: Source::Simulated,
        cores: 1,
        memory_mib: 64,
        throughput: curve(&[(1.0, 1e6), (10.0, 10e6)]),
        latency: curve(&[(1e6, 10.0), (5e6, 20.0), (9e6, 100.0)]),
        best_ways: 10,
        floor_pps: Some(0.5e6),
        cache: None,
        stages: Vec::new(),
    }
}

/// The same without cache control, on a processor with 20 ways.
pub fn whole() -> Profile {
    let throughput = curve(&[(20.0, 10e6)]);
    Profile { source: Source::None, throughput, best_ways: 20, floor_pps: None, ..profile() }
}

/// An SLO for [`profile`].
pub fn slo(throughput_pps: f64, latency_us: f64) -> Slo {
    Slo {
        name: "acme".into(),
        workload: Workload::Nf("nat".into()),
        configuration: Digest::of(b""),
        traffic: "64 B".into(),
        promise: Promise::Reserved { throughput_pps, latency_us },
    }
}
