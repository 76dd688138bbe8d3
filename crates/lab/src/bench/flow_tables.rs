//! Sizes of the flow table, for `sluice bench forward`, and the flows that fill it.

use std::time::Duration;

use crate::bench::setup::Setup;

/// Sizes of the flow table.
pub const TABLES: [Table; 5] = [
    Table { entries: 10_000, flows: 10_000, flow_packets: 0 },
    Table { entries: 100_000, flows: 100_000, flow_packets: 0 },
    Table { entries: 1_000_000, flows: 1_000_000, flow_packets: 0 },
    Table { entries: 4_000_000, flows: 4_000_000, flow_packets: 0 },
    Table { entries: 10_000_000, flows: 4_000_000, flow_packets: 4 },
];
/// Part of the entries that must exist: a bucket may overflow, and evict one.
const FILLED: f64 = 0.99;
/// Time limit for that.
pub const FILL_PATIENCE: Duration = Duration::from_secs(120);
/// Bytes of an entry, with its share of free slots.
const ENTRY_BYTES: u64 = 98;

/// Entries of a flow table, and the generator's flows that make them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// At the beginning of the measurement.
    pub entries: u32,
    pub flows: u32,
    /// Packets of a flow, after which another replaces it; 0 if flows do not end.
    pub flow_packets: u32,
}

impl Table {
    /// Capacity of the flow table: flows that end go on adding entries.
    fn max_flows(self) -> u32 {
        (self.entries / 2 * 3).max(1 << 20)
    }

    /// A setup with these flows.
    pub fn of(self, mut setup: Setup) -> Setup {
        setup.max_flows = Some(self.max_flows());
        for traffic in &mut setup.traffic {
            (traffic.flows, traffic.flow_packets) = (self.flows, self.flow_packets);
        }
        setup
    }

    /// Whether a table with this many flows is filled.
    pub fn is_filled(self, flows: u64) -> bool {
        flows as f64 >= FILLED * f64::from(self.entries)
    }

    /// Why the host has too little memory for it, if so.
    pub fn too_large(self, available_kib: Option<u64>) -> Option<String> {
        let kib = u64::from(self.max_flows()) * ENTRY_BYTES / 1024;
        let has_room = available_kib.is_none_or(|available| available >= 2 * kib);
        (!has_room).then(|| format!("a flow table of {} MiB takes more than half of the host's available memory", kib / 1024))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_that_the_host_has_no_memory_for_is_left_out() {
        let [small, .., large] = TABLES;
        assert_eq!((small.max_flows(), large.max_flows()), (1 << 20, 15_000_000));
        assert_eq!([None, Some(4 << 20)].map(|kib| large.too_large(kib)), [None, None]);
        assert!(large.too_large(Some(2 << 20)).unwrap().starts_with("a flow table of 1401 MiB"));
    }

    #[test]
    fn a_table_is_filled_where_next_to_all_flows_are_in_it() {
        assert!(TABLES[0].is_filled(9_900) && !TABLES[0].is_filled(9_899));
    }
}
