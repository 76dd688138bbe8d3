//! Cache ways for the instances of an assignment, by any available control.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use sluice_cache::layout::{self, Limits};
use sluice_cache::none::NoControl;
use sluice_cache::others::Others;
use sluice_cache::resctrl::Resctrl;
use sluice_cache::{CacheControl, CacheError, ClassSpec, Origin};
use sluice_slo::assignment::Assignment;
use sluice_slo::placement::Instance;

use sluice_api::config::promise::{Cache, Promises};

/// The class of all instances without ways of their own.
pub const SHARED: &str = "shared";

/// Maximum number of passes over the threads of a process, as it may make new ones meanwhile.
const PASSES: usize = 16;

/// Why an assignment's classes are impossible.
#[derive(Debug, thiserror::Error)]
pub enum ClassesError {
    /// The placement was made for another cache.
    #[error(
        "the placement is for a server with {placed} {what}, and the cache here has {here}; write the server's shape as `sluice doctor` shows it"
    )]
    Shape {
        /// Ways or classes.
        what: &'static str,
        /// According to the server's shape.
        placed: u32,
        /// Present here.
        here: u32,
    },
    #[error(transparent)]
    Cache(#[from] CacheError),
}

/// The class of an instance, and the name that it is counted under in the shared class.
pub fn class_of(instance: &Instance) -> (String, Option<String>) {
    let own = format!("{}.{}", instance.slo, instance.number);
    if instance.ways == 0 { (SHARED.into(), Some(own)) } else { (own, None) }
}

/// The classes of an assignment, and their ways.
///
/// Empty if an instance has the whole cache: it is alone there, and in no class, because the system
/// needs ways too.
pub fn wanted(assignment: &Assignment) -> BTreeMap<String, u32> {
    let (least, all) = (assignment.server.shape.min_ways, assignment.server.shape.llc_ways);
    if assignment.server.instances.iter().any(|instance| instance.ways >= all) {
        return BTreeMap::new();
    }
    let ways = |instance: &Instance| if instance.ways == 0 { least } else { instance.ways };
    assignment.server.instances.iter().map(|instance| (class_of(instance).0, ways(instance))).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Present ways, and those of other groups.
    pub limits: Limits,
    /// Classes that others leave.
    pub classes: u32,
}

/// Cache use of a class, or of a part that is counted separately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Use {
    /// Bytes in the cache.
    pub occupancy: Option<u64>,
    /// Bytes between cache and memory so far.
    pub traffic: Option<u64>,
}

/// Why a process is not where it should be.
#[derive(Debug, thiserror::Error)]
pub enum PutError {
    /// It has no part of its class's ways.
    #[error("is not in its cache class: {0}")]
    Class(CacheError),
    /// It is in its class, but its use of the cache is unknown.
    #[error("is in its cache class, and is not counted apart there: {0}")]
    Watch(CacheError),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Inside {
    class: String,
    count: Count,
}

/// Whether a process is counted separately in a class that it shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    /// It is, or need not be.
    Done,
    Refused,
    /// It is to be tried.
    Due,
}

/// A finished step, with what undoes it.
enum Done {
    Made(String),
    Resized(String, u32),
    Released(String, u32),
}

pub struct Classes {
    control: Box<dyn CacheControl + Send>,
    /// Why there is no control.
    why_none: Option<String>,
    /// Folder of other groups, if there may be any.
    groups: Option<PathBuf>,
    classes: BTreeMap<String, u32>,
    /// The class of each process.
    inside: BTreeMap<u32, Inside>,
}

impl Classes {
    /// Opens the control that the configuration selects.
    ///
    /// # Errors
    /// resctrl is required but missing, or is not understood.
    pub fn open(settings: &Promises) -> Result<Self, CacheError> {
        let system = Path::new("/");
        let (control, why_none): (Box<dyn CacheControl + Send>, _) = match settings.cache {
            Cache::None => (Box::new(NoControl::new(system)), Some("it is off (promises.cache)".into())),
            Cache::Resctrl => (Box::new(open_resctrl(settings)?), None),
            Cache::Auto => match open_resctrl(settings) {
                Ok(control) if control.shape().ways > 0 => (Box::new(control), None),
                Ok(_) => (Box::new(NoControl::new(system)), Some("the processor cannot give ways of its cache".into())),
                Err(error) => {
                    if matches!(error, CacheError::Claimed { .. }) {
                        warn!("promises are kept without cache classes, by cores and by policing alone: {error}");
                    }
                    (Box::new(NoControl::new(system)), Some(error.to_string()))
                }
            },
        };
        let groups = (control.origin() == Origin::Resctrl).then(|| settings.resctrl.clone());
        Ok(Self { groups, ..Self::with(control, why_none) })
    }

    fn with(control: Box<dyn CacheControl + Send>, why_none: Option<String>) -> Self {
        Self { control, why_none, groups: None, classes: BTreeMap::new(), inside: BTreeMap::new() }
    }

    /// The mechanism that makes classes.
    pub fn origin(&self) -> Origin {
        self.control.origin()
    }

    /// Mask of the ways that devices use too; 0 if unknown.
    pub fn io_mask(&self) -> u32 {
        self.control.shape().io_mask
    }

    /// Why no class is made, if so.
    pub fn why_none(&self) -> Option<&str> {
        self.why_none.as_deref()
    }

    /// Checks that an assignment was made for a cache like this.
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
        // The shape also counts the system's own class.
        fits("classes", placed.classes, here.classes.saturating_add(1))
    }

    /// Changes to these classes; those that shrink go first.
    ///
    /// # Errors
    /// The control refuses. The classes are then as before, as far as the control can restore them:
    /// see [`classes`](Self::classes).
    pub fn change(&mut self, wanted: BTreeMap<String, u32>) -> Result<(), ClassesError> {
        if self.origin() == Origin::None {
            return Ok(());
        }
        let mut done = Vec::new();
        match self.steps(&wanted, &mut done) {
            Ok(()) => {
                self.classes = wanted;
                self.inside.retain(|_, inside| self.classes.contains_key(&inside.class));
                Ok(())
            }
            Err(error) => {
                for step in done.into_iter().rev() {
                    let undone = match &step {
                        Done::Made(name) => self.control.release(name),
                        Done::Resized(name, ways) => self.control.resize(name, *ways).map(drop),
                        Done::Released(name, ways) => {
                            self.inside.retain(|_, inside| inside.class != *name);
                            self.control.make(&ClassSpec::new(name.clone(), *ways)).map(drop)
                        }
                    };
                    if let Err(error) = undone {
                        warn!("a cache class cannot be put back as it was: {error}");
                        // The next change starts from the real state.
                        match step {
                            Done::Made(name) | Done::Resized(name, _) => {
                                let now = wanted[&name];
                                self.classes.insert(name, now);
                            }
                            Done::Released(name, _) => {
                                self.classes.remove(&name);
                            }
                        }
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

    /// Reports classes that another program has removed or changed.
    pub fn lost(&self) -> Vec<String> {
        let lost = |name: &String| match self.control.verify(name) {
            Err(CacheError::Taken { .. }) => Some(format!(
                "the cache class {name} is not as it was made: another program has removed or changed it, and the NFs that it was for share the \
                 cache with others; stop that program, and withdraw and place anew"
            )),
            // A failed read is repeated with the next window.
            _ => None,
        };
        self.classes.keys().filter_map(lost).collect()
    }

    /// The present classes and their ways.
    pub fn classes(&self) -> &BTreeMap<String, u32> {
        &self.classes
    }

    /// Whether the control can give ways.
    pub fn gives_ways(&self) -> bool {
        self.control.shape().ways > 0
    }

    /// The present room for classes; None without a control that gives ways.
    ///
    /// I/O ways are left to the system, or as many as it must have.
    pub fn room(&self) -> Option<Capacity> {
        let shape = self.control.shape();
        let others = self.groups.as_ref().map(|path| Others::read(path, &self.control.classes())).unwrap_or_default();
        let all = layout::low(shape.ways);
        let limits =
            Limits { all, io: shape.io_mask, taken: others.ways, root: all, min_ways: shape.min_ways, sparse: shape.sparse };
        self.gives_ways().then_some(Capacity { limits, classes: shape.classes.saturating_sub(others.groups) })
    }

    pub fn shared_ways(&self) -> Option<u32> {
        self.classes.get(SHARED).copied()
    }

    /// Puts a process into a class; in a shared one, counts it separately under `watch`.
    ///
    /// A refused count is retried after [`try_again`](Self::try_again).
    ///
    /// # Errors
    /// The control refuses one or the other.
    pub fn put(&mut self, pid: u32, class: &str, watch: Option<&str>) -> Result<(), PutError> {
        if !self.classes.contains_key(class) {
            return Ok(());
        }
        let is_there = match self.inside.get(&pid).filter(|inside| inside.class == class) {
            Some(inside) if inside.count != Count::Due => return Ok(()),
            known => known.is_some(),
        };
        let watch = watch.filter(|_| self.control.shape().occupancy);
        let mut seen: Vec<u32> = Vec::new();
        for _ in 0..PASSES {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            let threads = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
            let fresh: Vec<u32> = threads.filter(|task| !seen.contains(task)).collect();
            if fresh.is_empty() {
                break;
            }
            if !is_there && let Err(error) = self.control.assign_tasks(class, &fresh) {
                self.inside.remove(&pid);
                return Err(PutError::Class(error));
            }
            // It is in there, whether counted separately or not.
            self.inside.insert(pid, Inside { class: class.into(), count: Count::Refused });
            if let Some(watch) = watch {
                self.control.watch(class, watch, &fresh).map_err(PutError::Watch)?;
            }
            seen.extend(fresh);
        }
        if let Some(inside) = self.inside.get_mut(&pid) {
            inside.count = Count::Done;
        }
        Ok(())
    }

    /// Makes refused counts due again.
    pub fn try_again(&mut self) {
        self.inside.values_mut().filter(|inside| inside.count == Count::Refused).for_each(|inside| inside.count = Count::Due);
    }

    /// Forgets all other processes.
    pub fn keep(&mut self, pids: &[u32]) {
        self.inside.retain(|pid, _| pids.contains(pid));
    }

    /// The use of a class, or of a separately counted part.
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
        // Nothing is placed here: all groups belong to others.
        return Ok(control);
    }
    control.claim()?;
    for left in control.sweep()? {
        info!("removed the cache class {left}, which a daemon before this one has left");
    }
    Ok(control)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use sluice_cache::model::{Geometry, Hierarchy};
    use sluice_cache::simulated::Simulated;
    use sluice_cache::{Granted, Moved, Shape, Usage};

    use super::super::overlay::tests::assignment;
    use super::*;

    #[test]
    fn one_that_has_the_whole_cache_is_in_no_class() {
        let all = assignment(&[]).server.shape.llc_ways;
        assert_eq!(wanted(&assignment(&[("acme", &["nf"], &[&[0]], all - 1)])).len(), 1);
        assert_eq!(wanted(&assignment(&[("acme", &["nf"], &[&[0]], all)])), BTreeMap::new());
    }

    fn simulated() -> Simulated {
        let hierarchy = Hierarchy { line: 64, l1: None, l2: None, llc: Geometry { sets: 64, ways: 8 } };
        Simulated::new(hierarchy, 0, 4).unwrap()
    }

    fn eight_ways() -> Classes {
        Classes::with(Box::new(simulated()), None)
    }

    /// What a control refuses now, and the number of requested watches.
    #[derive(Default)]
    struct Mood {
        refuses: &'static [&'static str],
        watches: u32,
    }

    /// A model with refusals, which counts watches.
    struct Moody {
        model: Simulated,
        mood: Arc<Mutex<Mood>>,
    }

    impl Moody {
        fn does(&self, what: &str) -> Result<(), CacheError> {
            let mood = self.mood.lock().unwrap_or_else(PoisonError::into_inner);
            if mood.refuses.contains(&what) { Err(CacheError::Locked { path: "/here".into() }) } else { Ok(()) }
        }
    }

    impl CacheControl for Moody {
        fn origin(&self) -> Origin {
            self.model.origin()
        }
        fn shape(&self) -> &Shape {
            self.model.shape()
        }
        fn make(&mut self, spec: &ClassSpec) -> Result<Granted, CacheError> {
            self.does("make").and_then(|()| self.model.make(spec))
        }
        fn resize(&mut self, name: &str, ways: u32) -> Result<Granted, CacheError> {
            self.does("resize").and_then(|()| self.model.resize(name, ways))
        }
        fn classes(&self) -> Vec<Granted> {
            self.model.classes()
        }
        fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
            self.does("assign").and_then(|()| self.model.assign_tasks(name, tasks))
        }
        fn assign_cpus(&mut self, name: &str, cpus: &[u32]) -> Result<(), CacheError> {
            self.model.assign_cpus(name, cpus)
        }
        fn watch(&mut self, _name: &str, _watch: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
            self.mood.lock().unwrap_or_else(PoisonError::into_inner).watches += 1;
            self.does("watch").map(|()| Moved { tasks: tasks.to_vec(), gone: Vec::new() })
        }
        fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError> {
            self.model.usage(name, watch)
        }
        fn verify(&self, name: &str) -> Result<(), CacheError> {
            self.does("verify").map_err(|_| CacheError::Taken { name: name.into() })
        }
        fn release(&mut self, name: &str) -> Result<(), CacheError> {
            self.does("release").and_then(|()| self.model.release(name))
        }
    }

    fn moody() -> (Classes, Arc<Mutex<Mood>>) {
        let mood = Arc::new(Mutex::new(Mood::default()));
        (Classes::with(Box::new(Moody { model: simulated(), mood: mood.clone() }), None), mood)
    }

    #[test]
    fn classes_that_another_has_changed_are_reported() {
        let (mut classes, mood) = moody();
        classes.change(of(&[(SHARED, 4), ("a.0", 2)])).unwrap();
        assert_eq!(classes.lost(), Vec::<String>::new());
        mood.lock().unwrap().refuses = &["verify"];
        let lost = classes.lost();
        assert!(lost.len() == 2 && lost[0].contains("the cache class a.0 is not as it was made"), "{lost:?}");
    }

    #[test]
    fn what_is_not_counted_is_counted_later_and_is_in_its_class_all_the_same() {
        let (mut classes, mood) = moody();
        classes.change(of(&[(SHARED, 4)])).unwrap();
        mood.lock().unwrap().refuses = &["watch"];
        let pid = std::process::id();
        let put = |classes: &mut Classes| classes.put(pid, SHARED, Some("web.0"));
        let said = put(&mut classes).unwrap_err().to_string();
        assert!(said.contains("is in its cache class, and is not counted apart"), "{said}");
        put(&mut classes).unwrap();
        assert_eq!(mood.lock().unwrap().watches, 1, "not before its time");
        classes.try_again();
        assert!(put(&mut classes).is_err());
        // It is in there: the control is not called for that again.
        mood.lock().unwrap().refuses = &["assign"];
        classes.try_again();
        put(&mut classes).unwrap();
        let watches = mood.lock().unwrap().watches;
        classes.try_again();
        put(&mut classes).unwrap();
        assert_eq!((mood.lock().unwrap().watches, watches >= 3), (watches, true));
        // It never was in another class.
        classes.change(of(&[("web.0", 4)])).unwrap();
        let said = classes.put(pid, "web.0", None).unwrap_err().to_string();
        assert!(said.contains("is not in its cache class"), "{said}");
    }

    #[test]
    fn a_change_that_cannot_be_undone_leaves_what_there_is() {
        let (mut classes, mood) = moody();
        classes.change(of(&[("a", 2), ("b", 2)])).unwrap();
        mood.lock().unwrap().refuses = &["make"];
        assert!(classes.change(of(&[("b", 3), ("c", 2)])).is_err());
        assert_eq!(classes.classes(), &of(&[("b", 2)]), "\"a\" is gone, and cannot be made");
        mood.lock().unwrap().refuses = &[];
        classes.change(of(&[("b", 3), ("c", 2)])).unwrap();
        assert_eq!(classes.classes(), &of(&[("b", 3), ("c", 2)]));
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
        // One shrinks so that the other can grow.
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
