use super::*;
use crate::bench::daemon::tests::assert_accepted;
use crate::bench::lab::tests::lab;

#[test]
fn nfs_are_those_that_a_packet_thread_runs() {
    let lab = lab(1);
    let nfs: Vec<&Example> = KINDS.iter().map(|kind| example(kind).unwrap()).collect();
    let files = Files::make(&lab, &nfs).unwrap();
    for nf in &nfs {
        let setup = inline(nf, &files, 1_518, 0);
        assert!(setup.toml(Path::new("/run/x")).contains("trusted = true"));
        assert_accepted(&setup, &[&program(nf)]);
        assert_accepted(&apart(setup, 1), &[&program(nf)]);
    }
    assert!(NEIGHBOURS.iter().all(|kind| KINDS.contains(kind)));
}

#[test]
fn what_the_host_lacks_is_said() {
    let lab = lab(1);
    let none = plan(&lab, &LastCache { bytes: 1 << 20, cores: Some(Vec::new()) });
    assert!(none.cases.is_empty() && none.left_out.len() == 3);
    assert!(none.left_out[0].why.contains("two physical cores"), "{}", none.left_out[0].why);
    let cache = LastCache { bytes: 1 << 20, cores: None };
    let others = cache.others(&lab).len();
    let plan = plan(&lab, &cache);
    let of = |name: &str| plan.cases.iter().filter(|case| case.name == name).count();
    // Alone and beside each neighbour, with small and large packets.
    assert_eq!((of(MEMORY), of("slowdown/nat"), of("beside/nat")), if others > 0 { (5, 3, 6) } else { (0, 0, 0) });
    assert_eq!(of("delayed/nat"), if others > 1 { 6 } else { 0 });
    let left_out = |name: &str| plan.left_out.iter().any(|left| left.name == name);
    assert_eq!((left_out(WORST), left_out(WORST_DELAY)), (others < SEVERAL, others < SEVERAL + 1));
}

#[test]
fn rows_are_compared_with_the_same_alone() {
    let row = |name: &str, of: &[(&str, serde_json::Value)], metric: &str, value: f64| {
        Row::new(name, &params(of), Sample::from([(metric.to_string(), value)]))
    };
    let pace = |pace: u32| [("pace_percent", json!(pace)), ("others", json!(3))];
    let trial =
        |neighbour: &str, bytes: u32| [("neighbour", json!(neighbour)), ("packet_bytes", json!(bytes)), ("others", json!(3))];
    let mut rows = vec![
        row(MEMORY, &pace(0), "load_ns", 100.0),
        row(MEMORY, &pace(100), "load_ns", 150.0),
        row("slowdown/nat", &pace(0), "delivered_pps", 10.0),
        row("slowdown/nat", &pace(50), "delivered_pps", 9.0),
        row("beside/nat", &trial(ALONE, 64), "delivered_pps", 8.0),
        row("beside/nat", &trial("lb", 64), "delivered_pps", 6.0),
        row("beside/nat", &trial(ALONE, 1_518), "delivered_pps", 4.0),
        row("beside/nat", &trial("lb", 1_518), "delivered_pps", 4.0),
        row("delayed/nat", &trial(ALONE, 64), "latency_ns_p95", 1_000.0),
        row("delayed/nat", &trial("lb", 64), "latency_ns_p95", 1_250.0),
    ];
    rows[9].put("delivered_pps", Some(2.0));
    let more = compare(&mut rows);
    let got: Vec<_> =
        rows.iter().map(|row| ["of_idle", "degraded_percent", "grown_percent"].map(|metric| row.get(metric))).collect();
    assert_eq!(got[1], [Some(1.5), None, None]);
    assert!((got[3][1].unwrap() - 10.0).abs() < 1e-9, "{got:?}");
    assert_eq!((got[5][1], got[7][1]), (Some(25.0), Some(0.0)), "by packet size");
    assert_eq!(got[9], [None, None, Some(25.0)], "it is paced");
    let worst: Vec<_> = more.iter().map(|row| (row.name.as_str(), &row.params, row.sample.clone())).collect();
    let of = |metric: &str, value: f64| Sample::from([(metric.to_string(), value)]);
    let several = crowd(true);
    assert_eq!(
        worst,
        [(WORST, &several, of("worst_degraded_percent", 25.0)), (WORST_DELAY, &several, of("worst_grown_percent", 25.0))]
    );
    assert!(compare(&mut rows[..7]).iter().all(|row| row.name == WORST), "no latency was measured");
    assert!(compare(&mut rows[..5]).is_empty(), "nothing was beside another");
}
