use std::collections::HashSet;

use sluice_cli::lab::simulate::SWITCH_NS;
use sluice_policy::sim::{Class, Cost, Variant};

use super::*;
use sluice_api::model::{Nf, NfPart, NfSched};

/// A port that generates two million packets of eight flows, and a sink.
const PORTS: &str = "\
[[port]]
name = \"in\"
kind = \"gen\"
rate = 2e6
flows = 8
[[port]]
name = \"out\"
kind = \"sink\"
";

/// Two services of two and one instances in a chain.
const CHAIN: &str = "\
[[service]]
name = \"fw\"
exec = \"sluice-nf-cost\"
args = [\"--cycles\", \"300\"]
instances = 2
cores = [3, 5]
ring = 512
priority = 2.0
[[service]]
name = \"nat\"
exec = \"/opt/sluice-nf-cost\"
args = [\"--cycles=700\"]
cores = [3]
[[chain]]
name = \"web\"
services = [\"fw\", \"nat\"]
egress = \"out\"
";

const ALL: &str = "[[rule]]\nchain = \"web\"\n";

fn config(parts: &[&str]) -> Config {
    let mut config = sluice_config::load::parse(&parts.concat(), "test.toml").unwrap_or_else(|e| panic!("{e}"));
    sluice_config::fuse::expand(&mut config);
    config
}

/// The chain with services that can be one group.
fn grouped(run: &str) -> String {
    CHAIN
        .replace("instances = 2\ncores = [3, 5]", "cores = [3]\ntrusted = true")
        .replace("priority = 2.0", "")
        .replace("=700\"]", "=700\"]\ntrusted = true")
        .replace("egress", &format!("run = \"{run}\"\negress"))
}

fn plan(parts: &[&str], options: &Options) -> Simulation {
    Simulation::new(&config(parts), options).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(parts: &[&str], options: &Options) -> (bool, String) {
    let error = Simulation::new(&config(parts), options).unwrap_err();
    (error.is_usage(), error.to_string())
}

fn cores(n: usize) -> Options {
    Options { cores: Some(n), ..Options::default() }
}

#[test]
fn a_configuration_becomes_a_scenario() {
    let sched = "[sched]\nclass = \"rr\"\nrr_slice_ms = 5\nhandover = false\nhigh_watermark = 70\nlow_watermark = 40\n\
                 queueing_us = 250\nweight_every_ms = 20\nweight_margin_percent = 7\nmin_share_percent = 2\n";
    let plan = plan(&[sched, PORTS, CHAIN, ALL], &Options::default());
    let s = &plan.scenario;
    assert_eq!(plan.cores, [3, 5]);
    let nfs: Vec<_> = plan.nfs.iter().zip(&s.nfs).map(|(p, nf)| (p.name.as_str(), nf.core, nf.ring, nf.priority)).collect();
    assert_eq!(nfs, [("fw.0", 0, Some(512), 2.0), ("fw.1", 1, Some(512), 2.0), ("nat.0", 0, Some(2048), 1.0)]);
    assert_eq!([&s.nfs[1].cost, &s.nfs[2].cost], [&Cost::Fixed(300), &Cost::Fixed(700)]);
    let lanes: Vec<_> = s.chains.iter().map(|c| (c.nfs.clone(), c.rate_pps, c.flows)).collect();
    assert_eq!(lanes, [(vec![0, 2], 1_000_000, 4), (vec![1, 2], 1_000_000, 4)]);
    assert_eq!((s.class, s.machine.cores, s.machine.mhz), (Class::Rr(5), 2, 2_500));
    let p = &s.platform;
    assert_eq!((p.fused, p.handover, p.weights, p.backpressure), (false, false, true, true));
    assert_eq!((p.high_watermark, p.low_watermark, p.queueing_ns, p.weight_every_ns), (70, 40, 250_000, 20_000_000));
    assert_eq!((p.weight_margin_percent, p.min_share), (7.0, 0.02));
    assert_eq!(plan.notes, Vec::<String>::new());
    // A variant changes its parts alone.
    let default = plan.variant(Variant::Default);
    assert_eq!((default.platform.weights, default.platform.backpressure, default.platform.high_watermark), (false, false, 70));
    assert!(plan.variant(Variant::Ideal).platform.fused && plan.variant(Variant::Sluice).platform.handover);
}

#[test]
fn instances_take_cores_in_turn_and_pollers_their_own() {
    let on = |parts: &[&str], n| plan(parts, &cores(n)).nfs.iter().map(|nf| nf.core).collect::<Vec<_>>();
    assert_eq!(on(&[PORTS, CHAIN, ALL], 2), [0, 1, 0]);
    assert_eq!(on(&[PORTS, CHAIN, ALL], 16), [0, 1, 2]);
    assert_eq!(plan(&[PORTS, CHAIN, ALL], &cores(16)).cores.len(), 16);
    let polling = CHAIN.replacen("ring = 512", "ring = 512\nmode = \"poll\"", 1);
    assert_eq!(on(&[PORTS, &polling, ALL], 4), [2, 3, 0]);
    assert_eq!(on(&[PORTS, &polling, ALL], 3), [1, 2, 0]);
    let alone = plan(&[PORTS, &polling, ALL], &cores(3)).notes;
    assert_eq!(alone, ["fw.0, fw.1 poll: their cores are always busy, whatever packets need"]);
    // Two cores are too few for two that poll and one that sleeps.
    assert_eq!(on(&[PORTS, &polling, ALL], 2), [0, 1, 0]);
    let crowded = plan(&[PORTS, &polling, ALL], &cores(2)).notes;
    assert!(crowded[1].starts_with("fw.0 would poll on a core that others need"), "{crowded:?}");
}

#[test]
fn lanes_meet_every_choice_once_and_use_instances_alike() {
    for counts in [vec![1], vec![5], vec![2, 3], vec![4, 4], vec![2, 2, 2, 2], vec![4, 6, 2], vec![8, 8], vec![1, 7, 1]] {
        let all: u64 = counts.iter().product();
        assert_eq!(lane_count(&counts), all);
        let lanes: Vec<_> = (0..all).map(|lane| lane_of(lane, &counts)).collect();
        assert_eq!(lanes.iter().collect::<HashSet<_>>().len() as u64, all, "{counts:?}");
        // A few lanes are spread, too.
        let most = *counts.iter().max().unwrap();
        for (service, n) in counts.iter().enumerate() {
            let used: HashSet<u64> = lanes[..most as usize].iter().map(|lane| lane[service]).collect();
            assert_eq!(used.len() as u64, *n, "{counts:?}: service {service}");
        }
    }
    for counts in [vec![16, 16], vec![16, 12, 10], vec![9, 8], vec![100, 100, 3]] {
        let count = lane_count(&counts);
        assert!(count <= LANES);
        for (service, n) in counts.iter().enumerate() {
            let mut used = vec![0u64; *n as usize];
            (0..count).for_each(|lane| used[lane_of(lane, &counts)[service] as usize] += 1);
            assert!(used.iter().all(|u| *u == count / n), "{counts:?}: service {service}: {used:?}");
        }
    }
    assert_eq!(lane_count(&[2000, 3]), 2000, "every instance has a lane");
}

#[test]
fn a_flow_has_one_lane_and_a_service_that_comes_again_the_same_instance() {
    let one = PORTS.replace("flows = 8", "flows = 1");
    let again = CHAIN.replace("[\"fw\", \"nat\"]", "[\"fw\", \"nat\", \"fw\"]");
    let lone = plan(&[&one, &again, ALL], &Options::default());
    assert_eq!(lone.scenario.chains.iter().map(|c| c.nfs.clone()).collect::<Vec<_>>(), [[0, 2, 0]]);
    assert_eq!(lone.notes, ["no packets come to fw.1: more instances than flows, or no rule leads there"]);
}

#[test]
fn rules_decide_about_generated_packets() {
    let voice = "[[service]]\nname = \"mon\"\nexec = \"sluice-nf-cost\"\nargs = [\"--cycles\", \"1\"]\n\
                 [[chain]]\nname = \"voice\"\nservices = [\"mon\"]\negress = \"out\"\n\
                 [[chain]]\nname = \"past\"\negress = \"out\"\n";
    // Of flows 10.0.0.1 to 10.0.0.8, three are in the first prefix, and one in the second.
    let rules = "[[rule]]\nport = \"in\"\nsrc = \"10.0.0.0/30\"\nchain = \"voice\"\n\
                 [[rule]]\nsrc = \"10.0.0.8/32\"\nprotocol = \"udp\"\nchain = \"past\"\n\
                 [[rule]]\nprotocol = \"tcp\"\nchain = \"voice\"\n\
                 [[rule]]\nsrc = \"10.0.0.4/31\"\ndst_port = 9\nchain = \"web\"\n";
    let plan = plan(&[PORTS, CHAIN, voice, rules], &Options::default());
    let lanes =
        |chain: usize| plan.scenario.chains[plan.chains[chain].lanes.clone()].iter().map(|c| c.rate_pps).collect::<Vec<_>>();
    assert_eq!([lanes(0), lanes(1), lanes(2)], [vec![250_000; 2], vec![750_000], vec![]]);
    assert_eq!((plan.chains[2].straight_pps, plan.chains[0].straight_pps), (250_000.0, 0.0));
    assert_eq!(plan.notes, ["25 % of the packets of port in match no rule and are dropped at the door, uncounted"]);
}

#[test]
fn rates_are_those_of_the_port_or_of_the_options() {
    let ports = "[[port]]\nname = \"lan\"\nkind = \"dpdk\"\ndevargs = \"net_null0\"\n\
                 [[port]]\nname = \"load\"\nkind = \"gen\"\noverload = \"wait\"\n\
                 [[port]]\nname = \"replay\"\nkind = \"pcap\"\nread = \"/a.pcap\"\nspeed = \"rate\"\nrate = 1000.0\n\
                 [[port]]\nname = \"film\"\nkind = \"pcap\"\nread = \"/b.pcap\"\nspeed = \"recorded\"\n";
    let (is_usage, error) = refused(&[PORTS, ports, CHAIN, ALL], &Options::default());
    assert!(is_usage && error.contains("at lan, load, film;") && error.contains("--rate lan=PPS"), "{error}");
    let total = |options: &Options| {
        let plan = plan(&[PORTS, ports, CHAIN, ALL], options);
        (plan.scenario.chains.iter().map(|c| c.rate_pps).sum::<u64>(), plan.notes)
    };
    let each = Options { rate_pps: Some(10_000.0), ..Options::default() };
    let (pps, notes) = total(&each);
    assert_eq!((pps, notes), (2_031_000, vec!["packets that port load would hold back are counted as entry drops".to_owned()]));
    let port_rates = [("lan", 500.0), ("in", 0.0)].map(|(port, rate)| (port.to_owned(), rate)).into();
    assert_eq!(total(&Options { port_rates, ..each.clone() }).0, 21_500);
    for rate in [-1.0, 2e9, f64::NAN] {
        let (is_usage, error) = refused(&[PORTS, ports, CHAIN, ALL], &Options { rate_pps: Some(rate), ..Options::default() });
        assert!(is_usage && error.contains("port lan has a rate of"), "{error}");
    }
    // A port that no rule reaches needs no rate.
    let rules = "[[rule]]\nport = \"in\"\nchain = \"web\"\n";
    let lone = plan(&[PORTS, ports, CHAIN, rules], &Options::default());
    assert_eq!(lone.notes, ["no rule takes the packets of port load: all are dropped at the door"]);
}

#[test]
fn packets_that_nobody_knows_are_spread_over_the_chains_they_can_reach() {
    let ports = "[[port]]\nname = \"lan\"\nkind = \"dpdk\"\ndevargs = \"net_null0\"\n";
    let chains = "[[chain]]\nname = \"short\"\nservices = [\"nat\"]\negress = \"out\"\n\
                  [[chain]]\nname = \"never\"\nservices = [\"nat\"]\negress = \"out\"\n";
    let rules = "[[rule]]\nport = \"lan\"\nprotocol = \"tcp\"\nchain = \"web\"\n[[rule]]\nchain = \"short\"\n\
                 [[rule]]\nport = \"lan\"\nvlan = 7\nchain = \"never\"\n";
    let port_rates = [("lan".to_owned(), 1_000.0), ("in".to_owned(), 0.0)].into();
    let plan = plan(&[PORTS, ports, CHAIN, chains, rules], &Options { port_rates, ..Options::default() });
    let lanes: Vec<_> = plan.chains.iter().map(|c| c.lanes.clone()).collect();
    assert_eq!(lanes, [0..2, 2..3, 3..3]);
    assert_eq!(plan.scenario.chains.iter().map(|c| c.rate_pps).collect::<Vec<_>>(), [250, 250, 500]);
    assert_eq!(plan.notes, ["what comes in at port lan is not known; it is spread evenly over chains web, short"]);
}

#[test]
fn costs_come_from_options_measurements_or_arguments() {
    let with = |args: &str| {
        let chain = CHAIN.replace("args = [\"--cycles=700\"]", &format!("args = [{args}]"));
        Simulation::new(&config(&[PORTS, &chain, ALL]), &Options::default()).map(|plan| plan.scenario.nfs[2].cost.clone())
    };
    assert_eq!(with("\"--seed\", \"4\", \"--cycles\", \"1,2\""), Ok(Cost::Random(vec![1, 2])));
    assert_eq!(with("\"--cycles=1,2\", \"--cycles=10,20\""), Ok(Cost::Random(vec![11, 21, 12, 22])));
    assert_eq!(with("\"--cycles=1,2\", \"--pick\", \"each\", \"--cycles=10\""), Ok(Cost::Fixed(13)));
    assert_eq!(with("\"--cycles=1,2\", \"--pick=flow\", \"--cycles=10,20,30,40\""), Ok(Cost::ByFlow(vec![11, 21, 32, 42])));
    assert_eq!(with("\"--cycles=5,6\", \"--pick=signal\""), Ok(Cost::Fixed(5)));
    for (args, word) in [
        ("", "no --cycles"),
        ("\"--cycles\"", "no value"),
        ("\"--cycles=1,x\"", "\"x\" is no number"),
        ("\"--cycles=2000000000\"", "too many"),
        ("\"--cycles=1,2\", \"--pick=best\"", "--pick best"),
    ] {
        let error = with(args).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("--cost nat=CYCLES"), "{error}");
    }
    let many = vec!["7"; 100].join(",");
    let many = format!("\"--cycles={many}\", \"--cycles={many}\"");
    assert!(with(&many).unwrap_err().to_string().contains("more than 4096"));

    let costs = [("nat".to_owned(), 40)].into();
    let measured = [("nat".to_owned(), 41), ("fw".to_owned(), 42)].into();
    let plan = plan(&[PORTS, CHAIN, ALL], &Options { costs, measured, ..Options::default() });
    assert_eq!(plan.scenario.nfs.iter().map(|nf| nf.cost.clone()).collect::<Vec<_>>(), [42, 42, 40].map(Cost::Fixed));
}

#[test]
fn a_fused_chain_is_one_nf_that_costs_the_sum_of_its_parts() {
    let options = Options { measure_ns: 50_000_000, ..Options::default() };
    let fused = plan(&[PORTS, &grouped("fused"), ALL], &options);
    let nfs: Vec<_> =
        fused.nfs.iter().zip(&fused.scenario.nfs).map(|(p, nf)| (p.name.as_str(), nf.ring, nf.cost.clone())).collect();
    assert_eq!(nfs, [("web.fused.0", Some(512), Cost::Fixed(1000))]);
    assert_eq!((fused.cores.as_slice(), fused.scenario.chains.len()), (&[3][..], 1));
    assert_eq!(fused.notes, Vec::<String>::new());
    // Rings between the parts cost nothing any more.
    let cycles = |plan: &Simulation| Report::of(plan, false).runs[0].nfs.iter().map(|nf| nf.cpu_percent).sum::<f64>();
    assert!(cycles(&fused) < cycles(&plan(&[PORTS, &grouped("isolated"), ALL], &options)));
}

#[test]
fn the_cost_of_a_group_is_said_of_it_or_of_its_parts() {
    let with = |costs: &[(&str, u64)], measured: &[(&str, u64)], fw: &str| {
        let map = |all: &[(&str, u64)]| all.iter().map(|(name, cycles)| ((*name).to_owned(), *cycles)).collect();
        let options = Options { costs: map(costs), measured: map(measured), ..Options::default() };
        let text = grouped("fused").replace("\"300\"", &format!("\"{fw}\""));
        Simulation::new(&config(&[PORTS, &text, ALL]), &options).map(|plan| plan.scenario.nfs[0].cost.clone())
    };
    assert_eq!(with(&[("nat", 5)], &[], "300"), Ok(Cost::Fixed(305)));
    assert_eq!(with(&[("web.fused", 9), ("nat", 5)], &[("nat", 6)], "300"), Ok(Cost::Fixed(9)));
    assert_eq!(with(&[], &[("web.fused", 8), ("nat", 6)], "300"), Ok(Cost::Fixed(8)));
    assert_eq!(with(&[("nat", 5)], &[("web.fused", 8), ("fw", 6)], "300"), Ok(Cost::Fixed(11)));
    assert_eq!(with(&[], &[], "1,2"), Ok(Cost::Random(vec![701, 702])));
    let by_flow = "1,2\", \"--pick\", \"flow";
    assert_eq!(with(&[], &[], by_flow), Ok(Cost::ByFlow(vec![701, 702])));
    let mixed = grouped("fused").replace("300\"", &format!("{by_flow}\"")).replace("=700", "=7,8");
    let (_, error) = refused(&[PORTS, &mixed, ALL], &Options::default());
    assert!(error.contains("no sum") && error.contains("--cost web.fused=CYCLES"), "{error}");
    let (is_usage, error) = refused(&[PORTS, &grouped("fused").replace("sluice-nf-cost", "other"), ALL], &Options::default());
    assert!(is_usage && error.contains("costs fw, nat;"), "its parts are to be measured: {error}");
}

#[test]
fn what_an_inline_chain_takes_of_packet_threads_is_said_and_not_simulated() {
    let manager = "[manager]\nrx = [0, 1]\n";
    let past = "[[chain]]\nname = \"past\"\nservices = [\"ids\"]\negress = \"out\"\n[[rule]]\nsrc = \"10.0.0.8/32\"\nchain = \"past\"\n\
                [[service]]\nname = \"ids\"\nexec = \"sluice-nf-cost\"\nargs = [\"--cycles=9\"]\ncores = [2]\n";
    let inline = plan(&[manager, PORTS, &grouped("inline"), past, ALL], &Options::default());
    assert_eq!(inline.nfs.iter().map(|nf| nf.name.as_str()).collect::<Vec<_>>(), ["ids.0"]);
    assert_eq!((inline.cores.as_slice(), inline.chains[0].straight_pps), (&[2][..], 1_750_000.0));
    // 1.75 million packets of 1,000 cycles at 2.5 GHz.
    let note = "chain web is inline, in packet threads, which are not simulated: all its packets count as delivered; its handlers alone \
                take 0.70 of the 2 cores that receive";
    assert_eq!(inline.notes, [note]);
    let unknown = grouped("inline").replacen("sluice-nf-cost", "firewall", 1);
    assert!(
        plan(&[PORTS, &unknown, past, ALL], &cores(4)).notes[0]
            .ends_with("; --cost fw=CYCLES would show what its handlers take of a core")
    );
    let (is_usage, error) = refused(&[PORTS, &grouped("inline"), ALL], &Options::default());
    assert!(!is_usage && error.contains("(web)") && error.contains("run = \"fused\""), "{error}");
}

#[test]
fn measurements_are_the_median_of_instances_that_work() {
    let nf = |service: &str, service_ns| Nf {
        service: service.into(),
        sched: NfSched { service_ns, ..NfSched::default() },
        ..Nf::default()
    };
    let nfs = [nf("a", 100.0), nf("b", 0.0), nf("a", 300.0), nf("a", 120.0), nf("a", 0.0), nf("c", 0.1)];
    assert_eq!(cost::measured(&nfs, 2_500), [("a".to_owned(), 300), ("c".to_owned(), 1)].into());
    // A part of a group counts as an instance.
    let part = |service: &str, packet_ns| NfPart { service: service.into(), packet_ns, ..NfPart::default() };
    let group = Nf { parts: vec![part("a", Some(80.0)), part("b", None)], ..nf("web.fused", 90.0) };
    assert_eq!(cost::measured(&[group], 1_000), [("a".to_owned(), 80), ("web.fused".to_owned(), 90)].into());
}

#[test]
fn what_is_missing_is_named_with_a_way_out() {
    let real = CHAIN.replace("sluice-nf-cost", "firewall");
    let (is_usage, error) = refused(&[PORTS, &real, ALL], &Options::default());
    assert!(is_usage && error.contains("costs fw, nat;"), "{error}");
    assert!(["--cost fw=CYCLES", "--measured", "sluice-nf-cost"].iter().all(|way| error.contains(way)), "{error}");
    let costs = [("nta".to_owned(), 40)].into();
    let (is_usage, error) = refused(&[PORTS, CHAIN, ALL], &Options { costs, ..Options::default() });
    assert!(is_usage && error.contains("no service") && error.contains("did you mean \"nat\""), "{error}");
    let port_rates = [("on".to_owned(), 1.0)].into();
    let (is_usage, error) = refused(&[PORTS, CHAIN, ALL], &Options { port_rates, ..Options::default() });
    assert!(is_usage && error.contains("no port"), "{error}");
    let (is_usage, error) = refused(&[PORTS, &CHAIN.replace("instances = 2", "instances = 0"), ALL], &Options::default());
    assert!(!is_usage && error.contains("service fw, which has no instances"), "{error}");
    assert_eq!(refused(&[PORTS, CHAIN], &Options::default()), (false, SimulateError::Nothing.to_string()));
}

#[test]
fn what_is_simulated_otherwise_is_said() {
    let manager = "[manager]\nrx = [3]\n";
    let tenant = CHAIN.replace("ring = 512", "ring = 16\ntenant = \"red\"");
    let counted = PORTS.replace("rate = 2e6", "rate = 2e6\ncount = 99");
    let notes = plan(&[manager, &counted, &tenant, ALL], &Options::default()).notes;
    for word in ["has core 3 as well", "different tenants", "ends after 99 packets", "rings of fw are simulated with 32"] {
        assert!(notes.iter().any(|note| note.contains(word)), "{word}: {notes:?}");
    }
    assert_eq!(notes.len(), 4, "{notes:?}");
}

#[test]
fn a_report_adds_up_and_the_ideal_is_its_measure() {
    let past = "[[chain]]\nname = \"past\"\negress = \"out\"\n[[rule]]\nsrc = \"10.0.0.8/32\"\nchain = \"past\"\n";
    let heavy = PORTS.replace("rate = 2e6", "rate = 8e6");
    let options = Options { cores: Some(1), measure_ns: 50_000_000, ..Options::default() };
    let plan = plan(&[&heavy, CHAIN, past, ALL], &options);
    let report = Report::of(&plan, false);
    assert_eq!(report.runs.iter().map(|r| r.variant.as_str()).collect::<Vec<_>>(), ["configured", "ideal"]);
    let run = &report.runs[0];
    let web = &run.chains[0];
    // Seven of eight flows; a core of 2.5 GHz has room for 2.5 million packets of 1,000 cycles,
    // less the cost of hops.
    assert!((web.offered_pps - 7e6).abs() < 7e4, "{web:?}");
    assert!((1.5e6..2.5e6).contains(&web.delivered_pps), "{web:?}");
    assert!(web.offered_pps >= web.delivered_pps + web.wasted_pps && web.entry_drops_pps > 4e6, "{web:?}");
    assert!(web.share_of_ideal.is_some_and(|share| (0.8..=1.02).contains(&share)), "{web:?}");
    assert_eq!((run.chains[1].delivered_pps, run.chains[1].share_of_ideal), (1e6, Some(1.0)));
    let total = run.total(&report.runs[1]);
    assert_eq!(total.delivered_pps, web.delivered_pps + 1e6);
    let core = &run.cores[0];
    assert!((core.busy_percent + core.switch_percent + core.idle_percent - 100.0).abs() < 1.0, "{core:?}");
    assert!((run.nfs.iter().map(|nf| nf.share.unwrap()).sum::<f64>() - 1.0).abs() < 0.05, "{:?}", run.nfs);
    let compared = Report::of(&plan, true);
    assert_eq!(compared.runs.iter().map(|r| r.variant.clone()).collect::<Vec<_>>(), Variant::ALL.map(|v| v.to_string()));
    assert!(compared.runs[0].chains[0].wasted_pps > 0.0 && compared.runs[0].nfs[0].share.is_none());
    assert_eq!(compared.runs[3].chains[0].wasted_pps, 0.0);
}

#[test]
fn switches_are_in_what_an_nf_and_its_core_use() {
    let light = PORTS.replace("rate = 2e6", "rate = 1e5");
    let run = |switch_ns| {
        let options = Options { switch_ns, measure_ns: 100_000_000, ..cores(1) };
        Report::of(&plan(&[&light, CHAIN, ALL], &options), false).runs.remove(0)
    };
    let (free, dear) = (run(0), run(SWITCH_NS));
    let of_nfs = |run: &report::Run| run.nfs.iter().map(|nf| nf.cpu_percent).sum::<f64>();
    assert_eq!(free.cores[0].switch_percent, 0.0);
    assert!(dear.cores[0].switch_percent > free.cores[0].busy_percent, "{dear:?}");
    for run in [&free, &dear] {
        let of_core = run.cores[0].busy_percent + run.cores[0].switch_percent;
        assert!((of_nfs(run) - of_core).abs() < 0.1, "{run:?}");
    }
}
