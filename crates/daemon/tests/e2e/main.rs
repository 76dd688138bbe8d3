//! End-to-end tests of `sluiced`, with real NF processes, from port to port.
//!
//! Each test runs its own daemon in its own folder, waits for conditions and never for a time, and
//! leaves nothing behind, even when it fails.

mod acceptance;
mod apply;
mod attach;
mod canary;
mod capture;
mod changes;
mod chaos;
mod container;
mod control;
mod counters;
mod deaths;
#[cfg(feature = "dpdk")]
mod dpdk;
mod drops;
mod ecn;
mod estimate;
mod faults;
mod flows;
mod foreign;
mod fused;
mod guards;
mod holes;
mod hostile;
mod inline;
mod input;
mod interfaces;
mod lifecycle;
mod log;
mod neighbours;
mod observe;
mod openflow;
#[cfg(feature = "otel")]
mod otel;
mod overload;
mod pack;
#[cfg(feature = "page")]
mod page;
mod pcap;
mod pools;
mod profile;
mod programs;
mod promises;
#[path = "../../../manager/src/timeline/reader.rs"]
#[allow(dead_code)] // the tests of the manager use all of it
mod reader;
mod record;
mod replay;
mod requests;
mod revise;
mod scheduling;
mod shadow;
mod shards;
#[path = "../../../host/src/skip.rs"]
mod skip;
mod sockets;
mod support;
mod tenants;
#[cfg(feature = "dpdk")]
mod testpmd;
#[cfg(feature = "tls")]
mod tls;
mod upgrade;
mod wakeups;
mod zygote;
