//! No cache control: all NFs share the whole cache, as on a host without CAT.
//!
//! Requests for classes are refused with a reason, and nothing is counted.

use std::collections::BTreeMap;

use crate::control::{CacheControl, ClassSpec, Count, Granted, Moved, Origin, Shape, Usage};
use crate::error::CacheError;
use crate::host;

#[derive(Debug, Clone)]
pub struct NoControl {
    shape: Shape,
}

impl NoControl {
    /// For the host whose `/sys` is below `system`.
    pub fn new(system: &std::path::Path) -> Self {
        let domains = host::l3_caches(system).into_iter().map(|cache| cache.domain()).collect();
        Self { shape: Shape::without_control(domains) }
    }
}

const WHY: CacheError = CacheError::NoWays { why: "cache control is off" };

fn unknown<T>(name: &str) -> Result<T, CacheError> {
    Err(CacheError::Unknown { name: name.into() })
}

impl CacheControl for NoControl {
    fn origin(&self) -> Origin {
        Origin::None
    }

    fn shape(&self) -> &Shape {
        &self.shape
    }

    fn make(&mut self, _spec: &ClassSpec) -> Result<Granted, CacheError> {
        Err(WHY)
    }

    fn resize(&mut self, name: &str, _ways: u32) -> Result<Granted, CacheError> {
        unknown(name)
    }

    fn classes(&self) -> Vec<Granted> {
        Vec::new()
    }

    fn assign_tasks(&mut self, name: &str, tasks: &[u32]) -> Result<Moved, CacheError> {
        // All threads are always in the root class.
        if name.is_empty() { Ok(Moved { tasks: tasks.to_vec(), gone: Vec::new() }) } else { unknown(name) }
    }

    fn assign_cpus(&mut self, name: &str, _cpus: &[u32]) -> Result<(), CacheError> {
        if name.is_empty() { Ok(()) } else { unknown(name) }
    }

    fn watch(&mut self, _name: &str, _watch: &str, _tasks: &[u32]) -> Result<Moved, CacheError> {
        Err(CacheError::NoMonitoring)
    }

    fn usage(&self, name: &str, watch: Option<&str>) -> Result<BTreeMap<u32, Usage>, CacheError> {
        if !name.is_empty() || watch.is_some() {
            return unknown(watch.unwrap_or(name));
        }
        let nothing = Usage { occupancy: Count::Absent, total: Count::Absent, local: Count::Absent };
        Ok(self.shape.domains.iter().map(|domain| (domain.id, nothing)).collect())
    }

    fn release(&mut self, name: &str) -> Result<(), CacheError> {
        unknown(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_the_root_class() {
        let mut none = NoControl::new(std::path::Path::new("/nowhere"));
        assert!(none.make(&ClassSpec::new("web", 2)).unwrap_err().to_string().contains("sluice doctor"));
        assert_eq!(none.assign_tasks("", &[1]).unwrap().tasks, [1]);
        assert!(none.assign_tasks("web", &[1]).is_err() && none.release("web").is_err() && none.resize("web", 1).is_err());
        assert!(none.usage("", None).unwrap().is_empty() && none.classes().is_empty());
        assert_eq!(none.origin(), Origin::None);
    }
}
