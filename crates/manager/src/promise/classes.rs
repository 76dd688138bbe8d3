//! Ways of the cache for the instances of an assignment, by whatever control there is.

use std::collections::BTreeMap;
use std::path::Path;

use sluice_cache::none::NoControl;
use sluice_cache::resctrl::Resctrl;
use sluice_cache::{CacheControl, CacheError, ClassSpec, Origin};
use sluice_slo::assignment::Assignment;
use sluice_slo::placement::Instance;

use crate::config::promise::{Cache, Promises};

/// The class of all instances that have no ways of their own.
const SHARED: &str = "shared";

/// Times that the threads of a process are gone through, as it may make new ones meanwhile.
const PASSES: usize = 16;

/// Why an assignment's classes cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ClassesError {
    /// The placement was made for another cache.
    #[error(
        "the placement is for a server with {placed} {what}, and the cache here has {here}; write the server's shape as `sluice doctor` tells it"
    )]
    Shape {
        /// Ways or classes.
        what: &'static str,
        /// What the server's shape says.
        placed: u32,
        /// What there is.
        here: u32,
    },
    /// The cache control refuses.
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The class of an instance, and under what name it is counted where the class is not its own.
pub fn class_of(instance: &Instance) -> (String, Option<String>) {
    let own = format!("{}.{}", instance.slo, instance.number);
    if instance.ways == 0 { (SHARED.into(), Some(own)) } else { (own, None) }
}

/// The classes of an assignment, and their ways.
pub fn wanted(assignment: &Assignment) -> BTreeMap<String, u32> {
    let least = assignment.server.shape.min_ways;
    let ways = |instance: &Instance| if instance.ways == 0 { least } else { instance.ways };
    assignment.server.instances.iter().map(|instance| (class_of(instance).0, ways(instance))).collect()
}

/// What a class, or a part of it that is counted apart, uses of all caches.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes in the cache.
    pub occupancy: Option<u64>,
    /// Bytes between cache and memory, ever.
    pub traffic: Option<u64>,
}

/// A step that was done, and how it is undone.
enum Done {
    Made(String),
    Resized(String, u32),
    Released(String, u32),
}

/// Cache classes of this server.
pub struct Classes {
    control: Box<dyn CacheControl + Send>,
    /// Why there is no control, if so.
    why_none: Option<String>,
    classes: BTreeMap<String, u32>,
    /// The class that each process is in.
    inside: BTreeMap<u32, String>,
}

impl Classes {
    /// With the control that the configuration asks for.
    ///
    /// # Errors
    /// There is no resctrl where there has to be, or it is not understood.
    pub fn open(settings: &Promises) -> Result<Self, CacheError> {
        let system = Path::new("/");
        let (control, why_none): (Box<dyn CacheControl + Send>, _) = match settings.cache {
            Cache::None => (Box::new(NoControl::new(system)), Some("it is off (promises.cache)".into())),
            Cache::Resctrl => (Box::new(open_resctrl(settings)?), None),
            Cache::Auto => match open_resctrl(settings) {
                Ok(control) if control.shape().ways > 0 => (Box::new(control), None),
                Ok(_) => (Box::new(NoControl::new(system)), Some("the processor cannot give ways of its cache".into())),
                Err(error) => (Box::new(NoControl::new(system)), Some(error.to_string())),
            },
        };
        Ok(Self::with(control, why_none))
    }

    fn with(control: Box<dyn CacheControl + Send>, why_none: Option<String>) -> Self {
        Self { control, why_none, classes: BTreeMap::new(), inside: BTreeMap::new() }
    }

    /// By what classes are made.
    pub fn origin(&self) -> Origin {
        self.control.origin()
    }

    /// Mask of the ways that devices use too; 0 where nobody says.
    pub fn io_mask(&self) -> u32 {
        self.control.shape().io_mask
    }

    /// Why no class is made, if so.
    pub fn why_none(&self) -> Option<&str> {
        self.why_none.as_deref()
    }

    /// Whether an assignment was made for a cache like this.
    ///
    /// # Errors
    /// [`ClassesError::Shape`].
    pub fn check(&self, assignment: &Assignment) -> Result<(), ClassesError> {
        if self.origin() == Origin::None {
            return Ok(());
        }
        let (placed, here) = (&assignment.server.shape, self.control.shape());
        let fits = |what, placed, here| if placed > here { Err(ClassesError::Shape { what, placed, here }) } else { Ok(()) };
        fits("ways", placed.llc_ways, here.ways)?;
        // The shape counts the system's own class too.
        fits("classes", placed.classes, here.classes.saturating_add(1))
    }

    /// Makes these classes the ones that there are. What is smaller than before gives its ways up first.
    ///
    /// # Errors
    /// The control refuses; the classes are as they were then.
    pub fn change(&mut self, wanted: BTreeMap<String, u32>) -> Result<(), ClassesError> {
        if self.origin() == Origin::None {
            return Ok(());
        }
        let mut done = Vec::new();
        match self.steps(&wanted, &mut done) {
            Ok(()) => {
                self.classes = wanted;
                self.inside.retain(|_, class| self.classes.contains_key(class));
                Ok(())
            }
            Err(error) => {
                for step in done.into_iter().rev() {
                    let undone = match step {
                        Done::Made(name) => self.control.release(&name),
                        Done::Resized(name, ways) => self.control.resize(&name, ways).map(drop),
                        Done::Released(name, ways) => {
                            self.inside.retain(|_, class| *class != name);
                            self.control.make(&ClassSpec::new(name, ways)).map(drop)
                        }
                    };
                    if let Err(error) = undone {
                        eprintln!("sluiced: a cache class cannot be put back as it was: {error}");
                    }
                }
                Err(error.into())
            }
        }
    }

    fn steps(&mut self, wanted: &BTreeMap<String, u32>, done: &mut Vec<Done>) -> Result<(), CacheError> {
        let had = self.classes.clone();
        for (name, ways) in had.iter().filter(|(name, ways)| wanted.get(*name).is_some_and(|now| now < *ways)) {
            self.control.resize(name, wanted[name])?;
            done.push(Done::Resized(name.clone(), *ways));
        }
        for (name, ways) in had.iter().filter(|(name, _)| !wanted.contains_key(*name)) {
            self.control.release(name)?;
            done.push(Done::Released(name.clone(), *ways));
        }
        for (name, ways) in had.iter().filter(|(name, ways)| wanted.get(*name).is_some_and(|now| now > *ways)) {
            self.control.resize(name, wanted[name])?;
            done.push(Done::Resized(name.clone(), *ways));
        }
        for (name, ways) in wanted.iter().filter(|(name, _)| !had.contains_key(*name)) {
            self.control.make(&ClassSpec::new(name.clone(), *ways))?;
            done.push(Done::Made(name.clone()));
        }
        Ok(())
    }

    /// The classes that there are, and their ways.
    pub fn classes(&self) -> &BTreeMap<String, u32> {
        &self.classes
    }

    /// Gives a class another number of ways.
    ///
    /// # Errors
    /// There is no such class, or not so many ways.
    pub fn resize(&mut self, name: &str, ways: u32) -> Result<(), CacheError> {
        self.control.resize(name, ways)?;
        self.classes.insert(name.into(), ways);
        Ok(())
    }

    /// Puts a process into a class, if it is not there yet; in a class that it shares it is counted apart under `watch`, where that can be.
    ///
    /// # Errors
    /// The control refuses.
    pub fn put(&mut self, pid: u32, class: &str, watch: Option<&str>) -> Result<(), CacheError> {
        if !self.classes.contains_key(class) || self.inside.get(&pid).is_some_and(|known| known == class) {
            return Ok(());
        }
        let mut seen: Vec<u32> = Vec::new();
        for _ in 0..PASSES {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let fresh: Vec<u32> = threads.filter(|task| !seen.contains(task)).collect();
            if fresh.is_empty() {
                break;
            }
            self.control.assign_tasks(class, &fresh)?;
            if let Some(watch) = watch.filter(|_| self.control.shape().occupancy) {
                self.control.watch(class, watch, &fresh)?;
            }
            seen.extend(fresh);
        }
        self.inside.insert(pid, class.into());
        Ok(())
    }

    /// Forgets processes that are none of these.
    pub fn keep(&mut self, pids: &[u32]) {
        self.inside.retain(|pid, _| pids.contains(pid));
    }

    /// What a class, or what is counted apart in it, uses.
    pub fn usage(&self, class: &str, watch: Option<&str>) -> Use {
        if !self.classes.contains_key(class) || !self.control.shape().occupancy {
            return Use::default();
        }
        let Ok(domains) = self.control.usage(class, watch) else { return Use::default() };
        let sum = |of: fn(&sluice_cache::Usage) -> Option<u64>| domains.values().filter_map(of).reduce(|a, b| a + b);
        Use { occupancy: sum(|usage| usage.occupancy.bytes()), traffic: sum(|usage| usage.total.bytes()) }
    }
}

fn open_resctrl(settings: &Promises) -> Result<Resctrl, CacheError> {
    let mut control = Resctrl::open(&settings.resctrl, Path::new("/"))?;
    if settings.cores.is_empty() {
        // Nothing is placed here: whatever groups there are, they are another's.
        return Ok(control);
    }
    for left in control.sweep()? {
        eprintln!("sluiced: removed the cache class {left}, which a daemon before this one has left");
    }
    Ok(control)
}

#[cfg(test)]
mod tests {
    use sluice_cache::model::{Geometry, Hierarchy};
    use sluice_cache::simulated::Simulated;

    use super::super::overlay::tests::assignment;
    use super::*;

    fn eight_ways() -> Classes {
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 64, ways: 8 } };
        Classes::with(Box::new(Simulated::new(hierarchy, 0, 4).unwrap()), None)
    }

    fn of(classes: &[(&str, u32)]) -> BTreeMap<String, u32> {
        classes.iter().map(|(name, ways)| (name.to_string(), *ways)).collect()
    }

    #[test]
    fn instances_have_classes_and_the_others_share_one() {
        let both = assignment(&[("acme", &["nat"], &[&[0], &[1]], 2), ("web", &["fw"], &[&[2]], 0), ("dns", &["fw"], &[&[3]], 0)]);
        assert_eq!(wanted(&both), of(&[("acme.0", 2), ("acme.1", 2), ("shared", 1)]));
        assert_eq!(class_of(&both.server.instances[2]), ("shared".into(), Some("web.0".into())));
    }

    #[test]
    fn a_change_that_does_not_go_changes_nothing() {
        let mut classes = eight_ways();
        classes.change(of(&[("a", 4), ("b", 3)])).unwrap();
        // The one shrinks so that the other can grow.
        classes.change(of(&[("a", 2), ("b", 5)])).unwrap();
        let before = classes.control.classes();
        let said = classes.change(of(&[("b", 1), ("c", 9)])).unwrap_err().to_string();
        assert!(said.contains("9 ways"), "{said}");
        assert_eq!(classes.classes(), &of(&[("a", 2), ("b", 5)]));
        let names = |granted: &[sluice_cache::Granted]| -> Vec<(String, u32)> {
            granted.iter().map(|g| (g.name.clone(), g.masks.values().map(|mask| mask.count_ones()).sum())).collect()
        };
        assert_eq!(names(&classes.control.classes()), names(&before));
        classes.change(BTreeMap::new()).unwrap();
        assert!(classes.control.classes().is_empty());
    }

    #[test]
    fn without_control_nothing_is_made_and_it_is_said() {
        let settings = Promises { cache: Cache::Auto, resctrl: "/nowhere".into(), ..Promises::default() };
        let mut classes = Classes::open(&settings).unwrap();
        assert!(classes.why_none().unwrap().contains("not mounted"));
        classes.change(of(&[("a", 100)])).unwrap();
        assert!(classes.classes().is_empty() && classes.put(1, "a", None).is_ok());
        assert_eq!(classes.usage("a", None), Use::default());
        assert!(Classes::open(&Promises { cache: Cache::Resctrl, ..settings }).is_err());
    }

    #[test]
    fn a_placement_for_another_cache_is_refused() {
        let said = eight_ways().check(&assignment(&[])).unwrap_err().to_string();
        assert!(said.contains("11 ways, and the cache here has 8"), "{said}");
    }
}
