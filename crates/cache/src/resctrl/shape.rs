//! The capabilities that the kernel reports.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::{PREFIX, Resctrl};
use crate::control::{BandwidthLimits, BandwidthUnit, Domain, Shape};
use crate::error::CacheError;
use crate::host;
use crate::schemata::Line;

impl Resctrl {
    pub(super) fn read_shape(&mut self, system: &Path) -> Result<(), CacheError> {
        let mut shape = Shape::without_control(Vec::new());
        let root = self.schemata("")?;
        if let Some(line) = self.lines.first().copied() {
            self.all = self.info_number(line, "cbm_mask", 16)?;
            shape.ways = self.all.count_ones();
            shape.min_ways = self.info_number(line, "min_cbm_bits", 10)?.max(1);
            shape.io_mask = self.info_number(line, "shareable_bits", 16).unwrap_or(0) & self.all;
            shape.sparse = self.info_number(line, "sparse_masks", 10).is_ok_and(|value| value == 1);
            shape.code_and_data = self.lines.len() == 2;
            self.root = root.get(line).cloned().unwrap_or_default();
            // An earlier owner of classes has narrowed it, and may give their ways back after us.
            if self.groups()?.iter().any(|name| name.starts_with(PREFIX)) {
                self.root.values_mut().for_each(|mask| *mask = self.all);
            }
        }
        if let Some(values) = root.get("MB") {
            shape.bandwidth = Some(self.bandwidth_limits(values)?);
        }
        // Of every resource, including those that we do not use: the kernel counts them all.
        let folders = fs::read_dir(self.path.join("info")).map_err(|e| self.system("read", "info", e))?;
        let counts = folders.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("num_closids")).ok());
        let least = counts.filter_map(|text| text.trim().parse::<u32>().ok()).min();
        shape.classes = least.unwrap_or(1).saturating_sub(1);
        let events = fs::read_to_string(self.path.join("info/L3_MON/mon_features")).unwrap_or_default();
        shape.occupancy = events.lines().any(|event| event == "llc_occupancy");
        shape.traffic = events.lines().any(|event| event == "mbm_total_bytes" || event == "mbm_local_bytes");
        let caches = host::l3_caches(system);
        let (nodes, mut ids) = self.monitored()?;
        ids.extend(root.values().flat_map(|line| line.keys().copied()));
        let domain = |id: u32| {
            let cache = caches.iter().find(|cache| cache.id == id);
            // With sub-NUMA clustering a bit of the mask is that much less of the cache.
            let way_bytes = cache.filter(|_| shape.ways > 0).map(|cache| cache.bytes / u64::from(shape.ways) / u64::from(nodes));
            Domain { id, cpus: cache.map(|cache| cache.cpus.clone()).unwrap_or_default(), way_bytes }
        };
        shape.domains = ids.into_iter().map(domain).collect();
        self.shape = shape;
        Ok(())
    }

    fn bandwidth_limits(&self, root: &Line) -> Result<BandwidthLimits, CacheError> {
        let least = self.info_number("MB", "min_bandwidth", 10).unwrap_or(0);
        let step = self.info_number("MB", "bandwidth_gran", 10).unwrap_or(1).max(1);
        let now = root.values().copied().max().unwrap_or(0);
        // Only the software controller has this file. AMD's values have no minimum, and exceed a
        // hundred.
        let unit = if self.path.join("mba_MBps_event").exists() || now > 1_000_000 {
            BandwidthUnit::MebibytesPerSecond
        } else if least == 0 || now > 100 {
            BandwidthUnit::EighthGigabytesPerSecond
        } else {
            BandwidthUnit::Percent
        };
        let (least, step, most) = match unit {
            BandwidthUnit::Percent => (least, step, 100),
            BandwidthUnit::MebibytesPerSecond => (1, 1, u32::MAX),
            BandwidthUnit::EighthGigabytesPerSecond => (1, step, now.max(2_048)),
        };
        Ok(BandwidthLimits { unit, least, step, most })
    }

    /// Nodes that share an L3 with sub-NUMA clustering (1 without), and ids of the monitored
    /// caches.
    fn monitored(&self) -> Result<(u32, BTreeSet<u32>), CacheError> {
        let (mut nodes, mut ids) = (1, BTreeSet::new());
        for entry in fs::read_dir(self.path.join("mon_data")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.strip_prefix("mon_L3_")) else { continue };
            ids.insert(id.parse().map_err(|_| CacheError::Strange { path: entry.path(), text: id.into() })?);
            let is_node = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("mon_sub_L3_");
            let subs = fs::read_dir(entry.path()).into_iter().flatten().flatten().filter(is_node).count();
            nodes = nodes.max(u32::try_from(subs).unwrap_or(1));
        }
        Ok((nodes, ids))
    }
}
