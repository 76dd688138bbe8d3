//! Packets for an NF that is measured: crafted, or from a capture.

use std::path::{Path, PathBuf};

use sluice_api::config::Gen;
use sluice_cli::lab::estimate::MOST_PACKETS;
use sluice_dataplane::frame::{FrameCache, FramePool, Packet};
use sluice_ports::capture::{self, CaptureError};
use sluice_ports::{PortError, generator};
use sluice_shm::BURST;
use sluice_shm::arena::{Arena, Geometry};
use sluice_shm::clock::monotonic_ns;
use sluice_shm::memory::MemoryError;

use super::stand::ROOM;

#[derive(Debug, thiserror::Error)]
pub enum PacketsError {
    #[error(transparent)]
    Generator(#[from] PortError),
    #[error("cannot make packets: {0}")]
    Memory(#[from] MemoryError),
    #[error("cannot read {path}: {source}; give a pcap or pcapng file", path = path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}", path = path.display())]
    Capture { path: PathBuf, source: CaptureError },
}

/// The first packets of a generator with these settings: one per flow, at least a burst, at most
/// [`MOST_PACKETS`].
///
/// # Errors
/// [`PacketsError::Generator`], [`PacketsError::Memory`].
pub fn crafted(settings: &Gen) -> Result<Vec<Vec<u8>>, PacketsError> {
    // As fast as possible: packets that are due later would never come.
    let settings = Gen { rate: 0.0, count: 0, ..settings.clone() };
    let mut port = generator::open("crafted", 1, &settings, ROOM)?;
    let frames = 2 * BURST as u32;
    let (_memory, arena) = Arena::create(Geometry { first: 0, frames, stride: Geometry::stride_for(ROOM) as u32 }, false)?;
    let mut cache = FrameCache::new(FramePool::new(frames), arena, frames as usize);
    let wanted = (settings.flows as usize).clamp(BURST, MOST_PACKETS);
    let mut packets = Vec::with_capacity(wanted + BURST);
    while packets.len() < wanted {
        let mut burst = [Packet::default(); BURST];
        let n = port.queues[0].rx_burst(&mut burst, &mut cache, monotonic_ns());
        for packet in &burst[..n] {
            let mut bytes = vec![0; usize::from(packet.len)];
            assert!(cache.arena().read(packet.frame, packet.offset, &mut bytes), "the generator's packets are in their frames");
            packets.push(bytes);
            cache.free(packet.frame);
        }
    }
    packets.truncate(wanted);
    Ok(packets)
}

/// The first packets of a capture, at most [`MOST_PACKETS`].
///
/// # Errors
/// [`PacketsError::Read`], [`PacketsError::Capture`].
pub fn captured(path: &Path) -> Result<Vec<Vec<u8>>, PacketsError> {
    let bytes = std::fs::read(path).map_err(|source| PacketsError::Read { path: path.into(), source })?;
    let capture = capture::decode(bytes, ROOM).map_err(|source| PacketsError::Capture { path: path.into(), source })?;
    Ok(capture.records.iter().take(MOST_PACKETS).map(|record| capture.parts_of(record).concat()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crafted_packets_are_of_as_many_flows_as_asked() {
        let packets = crafted(&Gen { flows: 100, size: 80, rate: 5.0, count: 3, ..Gen::default() }).unwrap();
        assert_eq!(packets.len(), 100);
        let sources: std::collections::BTreeSet<Vec<u8>> = packets
            .iter()
            .map(|packet| {
                let parsed = etherparse::SlicedPacket::from_ethernet(packet).expect("a whole packet");
                assert_eq!(packet.len(), 80);
                let Some(etherparse::NetSlice::Ipv4(ip)) = parsed.net else { panic!("it is IPv4") };
                ip.header().source().to_vec()
            })
            .collect();
        assert_eq!(sources.len(), 100);
        assert_eq!(crafted(&Gen { flows: 1, ..Gen::default() }).unwrap().len(), BURST);
        assert!(matches!(crafted(&Gen { size: 20, ..Gen::default() }), Err(PacketsError::Generator(_))));
    }

    #[test]
    fn a_capture_that_is_not_there_is_named() {
        let error = captured(Path::new("/nowhere/x.pcap")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/x.pcap"), "{error}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.pcap");
        std::fs::write(&path, b"no capture").unwrap();
        assert!(matches!(captured(&path), Err(PacketsError::Capture { .. })));
    }
}
