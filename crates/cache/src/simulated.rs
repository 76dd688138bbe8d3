//! Classes of a modelled cache, from the loads and stores of their NFs.
//!
//! # Approach
//! Each class has its own [`Model`], because exclusive ways are a separate cache. It follows all
//! numbers of ways at once. So a class that is resized continues with its contents: the lines of a
//! lost way are gone at once, and a new way has the lines that would have been there.
//!
//! # Limits
//! Those of the model. There is one cache, whatever domains a class asks for. Traffic is missed
//! lines; write-backs are not counted. Threads and processors are recorded without effect: the
//! caller names the class of each access.

use std::collections::{BTreeMap, BTreeSet};

use crate::control::{CacheControl, ClassSpec, Count, Domain, Granted, Moved, Origin, Shape, Usage, check_name};
use crate::error::CacheError;
use crate::layout::{self, Limits, Want};
use crate::model::{Hierarchy, Model};

const DOMAIN: u32 = 0;

#[derive(Debug, Clone)]
struct Class {
    spec: ClassSpec,
    mask: u32,
    model: Model,
    /// Misses until its last resize, and the model's misses with its present ways at that time.
    before: u64,
    base: u64,
    tasks: BTreeSet<u32>,
    cpus: BTreeSet<u32>,
}

impl Class {
    fn misses(&self) -> u64 {
        self.before + self.model.stack().misses(self.spec.ways) - self.base
    }

    fn granted(&self) -> Granted {
        let masks = BTreeMap::from([(DOMAIN, self.mask)]);
        Granted { name: self.spec.name.clone(), masks, bandwidth: BTreeMap::new(), widened: false }
    }
}

/// Classes of a modelled cache.
#[derive(Debug)]
pub struct Simulated {
    shape: Shape,
    hierarchy: Hierarchy,
    classes: BTreeMap<String, Class>,
}

impl Simulated {
    /// A cache of these sizes, with at most `most` classes; devices use the ways of `io_mask` too.
    ///
    /// # Errors
    /// A size is invalid.
    pub fn new(hierarchy: Hierarchy, io_mask: u32, most: u32) -> Result<Self, CacheError> {
        Model::new(hierarchy)?;
        let ways = hierarchy.llc.ways;
        let domain = Domain { id: DOMAIN, cpus: Vec::new(), way_bytes: Some(hierarchy.way_bytes()) };
        let io_mask = io_mask & layout::low(ways);
        let shape = Shape { ways, io_mask, classes: most, occupancy: true, traffic: true, ..Shape::without_control(vec![domain]) };
        Ok(Self { shape, hierarchy, classes: BTreeMap::new() })
    }

    /// A load or store of a class's NF.
    ///
    /// # Errors
    /// There is no such class.
    pub fn access(&mut self, name: &str, address: u64, bytes: u32) -> Result<(), CacheError> {
        self.class_mut(name)?.model.access(address, bytes);
        Ok(())
    }

    /// The model behind a class.
    ///
    /// # Errors
    /// There is no such class.
    pub fn model(&self, name: &str) -> Result<&Model, CacheError> {
        self.classes.get(name).map(|class| &class.model).ok_or_else(|| CacheError::Unknown { name: name.into() })
    }

    fn class_mut(&mut self, name: &str) -> Result<&mut Class, CacheError> {
        self.classes.get_mut(name).ok_or_else(|| CacheError::Unknown { name: name.into() })
    }

    /// Masks for all classes, with one of them changed or added.
    fn lay_out(&self, spec: &ClassSpec) -> Result<BTreeMap<String, u32>, CacheError> {
        let most = self.shape.ways - 1;
        if spec.ways == 0 || spec.ways > most {
            return Err(CacheError::Ways { asked: spec.ways, least: 1, most });
        }
        if let Some(domain) = spec.domains.iter().find(|domain| **domain != DOMAIN) {
            return Err(CacheError::Domain { domain: *domain, known: DOMAIN.to_string() });
        }
        if spec.bandwidth.is_some() {
            return Err(CacheError::NoBandwidth);
        }
        let all = layout::low(self.shape.ways);
        let limits = Limits { all, io: self.shape.io_mask, taken: 0, root: all, min_ways: 1, sparse: false };
        let others = self.classes.values().filter(|class| class.spec.name != spec.name);
        let want = |class: &Class| Want { ways: class.spec.ways, io: class.spec.io_ways, mask: class.mask };
        let mut names: Vec<&str> = others.clone().map(|class| class.spec.name.as_str()).collect();
        let mut wants: Vec<Want> = others.map(want).collect();
        let mask = self.classes.get(&spec.name).map_or(0, |class| class.mask);
        let free = layout::room(&wants, spec.io_ways, &limits);
        names.push(&spec.name);
        wants.push(Want { ways: spec.ways, io: spec.io_ways, mask });
        let found = layout::lay_out(&wants, &limits).ok_or(CacheError::NoRoom { domain: DOMAIN, asked: spec.ways, free })?;
        Ok(names.into_iter().map(String::from).zip(found.masks).collect())
    }

    fn apply(&mut self, masks: &BTreeMap<String, u32>) {
        for (name, class) in &mut self.classes {
            class.mask = masks.get(name).copied().unwrap_or(class.mask);
        }
    }
}

impl CacheControl for Simulated {
    fn origin(&self) -> Origin {
        Origin::Simulated
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn make(&mut self, spec: &ClassSpec) -> Result<Granted, CacheError> {
        check_name(&spec.name)?;
        if self.classes.contains_key(&spec.name) {
            return Err(CacheError::Exists { name: spec.name.clone() });
        }
        let masks = self.lay_out(spec)?;
        if self.classes.len() >= self.shape.classes as usize {
            return Err(CacheError::NoClass { classes: self.shape.classes, status: "the model has no more".into() });
        }
        let model = Model::new(self.hierarchy)?;
        let class = Class { spec: spec.clone(), mask: 0, model, before: 0, base: 0, tasks: BTreeSet::new(), cpus: BTreeSet::new() };
        self.classes.insert(spec.name.clone(), class);
        self.apply(&masks);
        Ok(self.class_mut(&spec.name)?.granted())
    }

    fn resize(&mut self, name: &str, ways: u32) -> Result<Granted, CacheError> {
        let spec = ClassSpec { ways, ..self.class_mut(name)?.spec.clone() };
        let masks = self.lay_out(&spec)?;
        self.apply(&masks);
        let class = self.class_mut(name)?;
        class.before = class.misses();
        class.spec = spec;
        class.base = class.model.stack().misses(ways);
        Ok(class.granted())
    }

    fn classes(&self) -> Vec<Granted> {
        self.classes.values().map(Class::granted).collect()
    }

    fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
        if !name.is_empty() {
            self.class_mut(name)?;
        }
        for (other, class) in &mut self.classes {
            class.tasks.retain(|task| !tasks.contains(task));
            if other == name {
                class.tasks.extend(tasks);
            }
        }
        Ok(Moved { tasks: tasks.to_vec(), gone: Vec::new() })
    }

    fn assign_cpus(&mut self, name: &str, cpus: &[u32]) -> Result<(), CacheError> {
        if !name.is_empty() {
            self.class_mut(name)?;
        }
        for (other, class) in &mut self.classes {
            class.cpus.retain(|cpu| !cpus.contains(cpu));
            if other == name {
                class.cpus = cpus.iter().copied().collect();
            }
        }
        Ok(())
    }

    fn watch(&mut self, _name: &str, _watch: &str, _tasks: &[u32]) -> Result<Moved, CacheError> {
        // An access comes with its class, not with its thread.
        Err(CacheError::NoMonitoring)
    }

    fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError> {
        if name.is_empty() && watch.is_none() {
            // The model gets no accesses of the root class.
            let nothing = Usage { occupancy: Count::Absent, total: Count::Absent, local: Count::Absent };
            return Ok(BTreeMap::from([(DOMAIN, nothing)]));
        }
        let class = self.classes.get(name).filter(|_| watch.is_none());
        let class = class.ok_or_else(|| CacheError::Unknown { name: watch.unwrap_or(name).into() })?;
        let line = u64::from(self.hierarchy.line);
        let occupancy = Count::Bytes(class.model.stack().lines(class.spec.ways) * line);
        let usage = Usage { occupancy, total: Count::Bytes(class.misses() * line), local: Count::Absent };
        Ok(BTreeMap::from([(DOMAIN, usage)]))
    }

    fn release(&mut self, name: &str) -> Result<(), CacheError> {
        self.classes.remove(name).map(drop).ok_or_else(|| CacheError::Unknown { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Geometry;

    fn cache() -> Simulated {
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 16, ways: 8 } };
        Simulated::new(hierarchy, 0xc0, 2).unwrap()
    }

    fn used(cache: &Simulated, name: &str) -> (u64, u64) {
        let usage = cache.usage(name, None).unwrap()[&0];
        (usage.occupancy.bytes().unwrap(), usage.total.bytes().unwrap())
    }

    #[test]
    fn a_class_holds_what_its_ways_hold_and_others_do_not_push_it_out() {
        let mut cache = cache();
        cache.make(&ClassSpec::new("a", 2)).unwrap();
        cache.make(&ClassSpec::new("b", 4)).unwrap();
        // Three ways' worth of lines, over and over: with two ways each is missed.
        for _ in 0..4 {
            for line in 0..48 {
                cache.access("a", line * 64, 4).unwrap();
                cache.access("b", line * 64, 4).unwrap();
            }
        }
        assert_eq!(used(&cache, "a"), (32 * 64, 4 * 48 * 64));
        assert_eq!(used(&cache, "b"), (48 * 64, 48 * 64));
        // With one way more nothing is missed any more; the counts stay.
        cache.release("b").unwrap();
        assert_eq!(cache.resize("a", 3).unwrap().masks[&0], 0x7);
        for line in 0..48 {
            cache.access("a", line * 64, 4).unwrap();
        }
        assert_eq!(used(&cache, "a"), (48 * 64, 4 * 48 * 64));
    }

    #[test]
    fn it_refuses_what_the_kernel_would() {
        let mut cache = cache();
        let other = ClassSpec::new("a", 2);
        assert!(matches!(cache.make(&ClassSpec::new("a", 8)), Err(CacheError::Ways { most: 7, .. })));
        assert!(matches!(cache.make(&ClassSpec::new("a", 7)), Err(CacheError::NoRoom { asked: 7, free: 6, .. })));
        assert!(matches!(cache.make(&ClassSpec { bandwidth: Some(1), ..other.clone() }), Err(CacheError::NoBandwidth)));
        assert!(matches!(cache.make(&ClassSpec { domains: vec![1], ..other.clone() }), Err(CacheError::Domain { .. })));
        cache.make(&other).unwrap();
        assert!(matches!(cache.make(&other), Err(CacheError::Exists { .. })));
        cache.make(&ClassSpec::new("b", 2)).unwrap();
        assert!(matches!(cache.make(&ClassSpec::new("c", 1)), Err(CacheError::NoClass { classes: 2, .. })));
        assert!(matches!(cache.resize("a", 6), Err(CacheError::NoRoom { free: 4, .. })));
        assert_eq!(cache.classes().len(), 2);
        assert!(cache.assign_tasks("x", &[1]).is_err() && cache.access("x", 0, 1).is_err() && cache.usage("x", None).is_err());
        cache.assign_tasks("a", &[1, 2]).unwrap();
        cache.assign_cpus("b", &[1]).unwrap();
        cache.assign_tasks("b", &[2]).unwrap();
        assert_eq!((cache.classes["a"].tasks.len(), cache.classes["b"].cpus.len()), (1, 1));
        assert!(matches!(cache.watch("a", "w", &[]), Err(CacheError::NoMonitoring)));
        assert_eq!(cache.usage("", None).unwrap()[&0].occupancy, Count::Absent);
        assert!(cache.usage("", Some("w")).is_err());
    }
}
