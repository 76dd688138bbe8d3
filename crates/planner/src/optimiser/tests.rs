use proptest::prelude::*;

use super::*;
use crate::demand::tests::demand;
use sluice_slo::examples::shape;
use sluice_slo::placement::Placement;

const LONG: Duration = Duration::from_secs(60);

/// A small server: 3 cores, 5 ways.
fn small() -> ServerShape {
    ServerShape { cores: 3, llc_ways: 6, ddio_ways: 1, ..shape() }
}

/// The least number of servers by exhaustive search: every recipe of every demand, on every server.
fn by_trying(demands: &[Demand], shape: &ServerShape) -> usize {
    fn recipes(demand: &Demand, most: usize) -> Vec<Recipe> {
        let price = vec![0.0; demand.capacity_pps.len()];
        let (all, _) = demand.up_to(&price, f64::INFINITY, 10_000);
        all.into_iter().filter(|recipe| recipe.len() <= most).collect()
    }
    fn go(rooms: &mut Vec<sluice_slo::placement::Remaining>, items: &[(u32, u32)], shape: &ServerShape, limit: usize) -> bool {
        let Some(((cores, ways), rest)) = items.split_first() else { return true };
        for i in 0..rooms.len() {
            if rooms[..i].contains(&rooms[i]) {
                continue;
            }
            if let Some(left) = rooms[i].less(*cores, *ways, 0) {
                let was = std::mem::replace(&mut rooms[i], left);
                let fits = go(rooms, rest, shape, limit);
                rooms[i] = was;
                if fits {
                    return true;
                }
            }
        }
        if rooms.len() < limit
            && let Some(left) = sluice_slo::placement::Remaining::of(shape).less(*cores, *ways, 0)
        {
            rooms.push(left);
            let fits = go(rooms, rest, shape, limit);
            rooms.pop();
            return fits;
        }
        false
    }
    fn choose(demands: &[Demand], items: &mut Vec<(u32, u32)>, shape: &ServerShape, limit: usize) -> bool {
        let Some((demand, rest)) = demands.split_first() else {
            let mut items = items.clone();
            items.sort_unstable_by(|a, b| b.cmp(a));
            return go(&mut Vec::new(), &items, shape, limit);
        };
        recipes(demand, limit * shape.cores as usize).iter().any(|recipe| {
            let before = items.len();
            items.extend(recipe.iter().map(|size| (demand.counted_cores, *size)));
            let fits = choose(rest, items, shape, limit);
            items.truncate(before);
            fits
        })
    }
    (1..).find(|limit| choose(demands, &mut Vec::new(), shape, *limit)).unwrap()
}

fn assert_holds(solution: &Solution, demands: &[Demand], shape: &ServerShape) -> Placement {
    for (demand, recipe) in demands.iter().zip(&solution.recipes) {
        assert!(demand.is_enough(recipe), "{} {recipe:?}", demand.slo);
    }
    let empty = Placement::empty(solution.servers() + 1, shape);
    let placement = assign::assign(solution, demands, shape, &empty).unwrap();
    for demand in demands {
        assert!((placement.loads_pps()[demand.slo.as_str()] - demand.target_pps).abs() <= demand.target_pps * 1e-6);
    }
    placement
}

#[test]
fn a_few_slos_are_placed_on_the_least_number_of_servers() {
    let demands: Vec<Demand> = (0..12).map(|i| demand(&format!("s{i}"), 2.0, 1, &[0.0, 0.5, 1.0, 1.5, 2.0, 2.2])).collect();
    // Throughput 24; 5 ways on 3 cores carry at most 2.5, at 0.5 a way: ten servers.
    let solution = solve(&demands, &small(), LONG).unwrap();
    assert!(solution.is_optimal());
    assert_holds(&solution, &demands, &small());
    assert_eq!(solution.servers(), 10);
}

#[test]
fn what_does_not_fit_anywhere_is_named() {
    let impossible = demand("large", 1.0, 4, &[1.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
    let error = solve(&[impossible], &small(), LONG).unwrap_err();
    assert_eq!(error, OptimiserError::Impossible("large".into()));
    let nothing = ServerShape { classes: 1, ..small() };
    assert!(matches!(solve(&[], &nothing, LONG), Err(OptimiserError::Shape(_))));
    assert_eq!(solve(&[], &small(), LONG).unwrap().servers(), 0);
}

#[test]
fn out_of_time_the_last_good_placement_stands() {
    let demands: Vec<Demand> =
        (0..40).map(|i| demand(&format!("s{i}"), 1.3 + 0.05 * f64::from(i), 1, &[0.0, 0.4, 0.9, 1.5, 1.9, 2.2])).collect();
    let now = solve(&demands, &small(), Duration::ZERO).unwrap();
    assert!(now.timed_out && now.bound < now.servers(), "the start, with what is known: {} {}", now.bound, now.servers());
    let placement = assert_holds(&now, &demands, &small());
    let result = background::run(&demands, &small(), &placement, Duration::ZERO);
    assert_eq!(result.unwrap_err(), OptimiserError::OutOfTime { bound: now.bound });
}

#[test]
fn what_runs_is_left_where_it_is() {
    let demands: Vec<Demand> = (0..9).map(|i| demand(&format!("s{i}"), 1.0, 1, &[0.0, 1.0, 1.5, 1.5, 1.5, 1.5])).collect();
    let solution = solve(&demands, &small(), LONG).unwrap();
    let placement = assert_holds(&solution, &demands, &small());
    // An empty server comes first now.
    let mut current = placement.clone();
    current.servers.reverse();
    let outcome = background::Background::start(demands, small(), current.clone(), LONG).unwrap().wait().unwrap();
    let names = |placement: &Placement| -> Vec<(String, usize)> {
        let mut all: Vec<_> = placement.instances().map(|(at, instance)| (instance.slo.clone(), at)).collect();
        all.sort();
        all
    };
    assert_eq!(names(&outcome.placement), names(&current));
    assert_eq!(outcome.saves(), 0);
}

#[test]
fn parts_lose_little_and_tell_the_gap() {
    let demands: Vec<Demand> =
        (0..60).map(|i| demand(&format!("s{i}"), 0.5 + 0.037 * f64::from(i), 1, &[0.0, 0.4, 0.9, 1.5, 1.9, 2.2])).collect();
    let whole = solve(&demands, &small(), LONG).unwrap();
    let parts = partition::solve_in_parts(&demands, &small(), 20, LONG).unwrap();
    assert_holds(&parts, &demands, &small());
    assert!(whole.is_optimal() && parts.bound <= whole.servers() && parts.servers() <= whole.servers() + 3);
}

#[test]
fn a_shared_class_saves_servers_where_classes_are_few() {
    // Eight that need no cache, on servers of 8 cores with 3 classes for NFs.
    let shape = ServerShape { cores: 8, llc_ways: 11, ddio_ways: 2, classes: 4, ..shape() };
    let flat = |floor: f64| -> Vec<Demand> {
        let mut capacity = vec![1.0; 10];
        capacity[0] = floor;
        (0..8).map(|i| demand(&format!("s{i}"), 1.0, 1, &capacity)).collect()
    };
    assert_eq!(solve(&flat(0.0), &shape, LONG).unwrap().servers(), 3);
    let shared = solve(&flat(1.0), &shape, LONG).unwrap();
    assert_eq!(shared.servers(), 1);
    assert_holds(&shared, &flat(1.0), &shape);
}

#[test]
fn memory_in_whole_cores_proves_nothing_of_what_runs() {
    // By memory, eight fit on nine cores; yet each counts for two cores.
    let shape = ServerShape { cores: 9, memory_mib: 65_536, ..shape() };
    let demands: Vec<Demand> = (0..8)
        .map(|i| {
            let counted_cores = shape.cores_with_memory(1, 7_300);
            Demand { memory_mib: 7_300, counted_cores, ..demand(&format!("s{i}"), 1.0, 1, &[1.0, 1.0]) }
        })
        .collect();
    let mut current = Placement::empty(1, &shape);
    for (core, demand) in demands.iter().enumerate() {
        current.servers[0].instances.push(sluice_slo::placement::Instance {
            slo: demand.slo.clone(),
            number: 0,
            cores: vec![core as u32],
            ways: 0,
            memory_mib: demand.memory_mib,
            capacity_pps: 1.0,
            load_pps: 1.0,
        });
    }
    current.check().unwrap();
    for servers in [1, 3] {
        let mut current = current.clone();
        current.servers.extend(Placement::empty(servers, &shape).servers.into_iter().skip(1));
        let outcome = background::run(&demands, &shape, &current, LONG).unwrap();
        assert!(outcome.placement == current && outcome.solution.bound == 1, "{outcome:?}");
    }
    // By a new profile they carry half, and the error reports that.
    let weak: Vec<Demand> = demands.iter().map(|demand| Demand { capacity_pps: vec![0.5, 0.5], ..demand.clone() }).collect();
    let outcome = background::run(&weak, &shape, &current, LONG);
    assert!(
        matches!(&outcome, Err(OptimiserError::Solver(why)) if why.contains("servers are needed and there are 1")),
        "{outcome:?}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// As few servers as exhaustive search finds; chains of two cores, the shared class and few
    /// classes included.
    #[test]
    fn optimal_is_optimal(
        targets in prop::collection::vec((0.4..2.4f64, 0usize..3, 1u32..3), 1..5),
        classes in 3u32..6,
        min_ways in 1u32..3,
    ) {
        let curves = [[0.0, 0.4, 0.9, 1.5, 1.9, 2.2], [0.8, 0.9, 1.0, 1.0, 1.0, 1.0], [0.0, 0.2, 0.3, 0.5, 1.0, 2.0]];
        let shape = ServerShape { classes, min_ways, ..small() };
        let demands: Vec<Demand> = targets.iter().enumerate().map(|(i, (target, curve, cores))| {
            let mut capacity = curves[*curve];
            for ways in 1..min_ways as usize {
                capacity[ways] = capacity[0];
            }
            demand(&format!("s{i}"), *target, *cores, &capacity)
        }).collect();
        let solution = solve(&demands, &shape, LONG).unwrap();
        assert_holds(&solution, &demands, &shape);
        prop_assert!(solution.is_optimal(), "{solution:?}");
        prop_assert_eq!(solution.servers(), by_trying(&demands, &shape), "{:?} {:?}", &solution, &demands);
    }
}
