//! Which plans of a round are written first.

use sluice_cluster_plan::World;
use sluice_cluster_types::NodePlanSpec;
use sluice_slo::placement::Instance;

/// Whether a plan adds an instance that another one has, as far as it is written: it would be in
/// both if the other one could not be written.
pub fn is_early(world: &World, spec: &NodePlanSpec) -> bool {
    let has = |node: &str, new: &Instance| {
        let plan = world.plans.get(node).map(|plan| &plan.spec.server.instances);
        plan.is_some_and(|all| all.iter().any(|one| one.slo == new.slo && one.number == new.number))
    };
    let own = spec.server.name.as_str();
    let is_elsewhere = |new: &Instance| world.plans.keys().any(|node| node != own && has(node, new));
    spec.server.instances.iter().filter(|one| !has(own, one)).any(is_elsewhere)
}

#[cfg(test)]
mod tests {
    use sluice_cluster_types::NodePlan;
    use sluice_slo::examples::shape;
    use sluice_slo::placement::PlacedServer;

    use super::*;

    fn plan(node: &str, numbers: &[u32]) -> NodePlanSpec {
        let instance = |number: &u32| Instance {
            slo: "t_s".into(),
            number: *number,
            cores: vec![*number],
            ways: 1,
            memory_mib: 64,
            capacity_pps: 1.0,
            load_pps: 1.0,
        };
        let server = PlacedServer { instances: numbers.iter().map(instance).collect(), ..PlacedServer::empty(node, &shape()) };
        NodePlanSpec { term: 1, revision: 1, server, slos: Vec::new(), chains: Vec::new(), functions: Vec::new() }
    }

    #[test]
    fn an_instance_leaves_its_plan_before_it_is_in_another() {
        let mut world = World::default();
        for (node, numbers) in [("a", vec![0]), ("b", vec![1])] {
            world.plans.insert(node.into(), NodePlan::new(node, plan(node, &numbers)));
        }
        assert!(is_early(&world, &plan("b", &[0, 1])), "a has it");
        assert!(!is_early(&world, &plan("b", &[1, 2])), "nobody has it");
        assert!(!is_early(&world, &plan("b", &[])) && !is_early(&world, &plan("a", &[0])));
        world.plans.insert("a".into(), NodePlan::new("a", plan("a", &[])));
        assert!(!is_early(&world, &plan("b", &[0, 1])));
    }
}
