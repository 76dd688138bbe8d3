//! Puts an 802.1Q tag on every packet, or takes the outermost one off.
//!
//! `tag` adds a tag in front of any existing ones, with any TPID (0x88a8 for a service tag).
//! `untag` removes the outermost tag: any, or only that of one VLAN. Packets without such a tag
//! pass or are dropped (`--others`). A packet without space for a tag, or too short for one, is
//! dropped. A packet that `untag` makes shorter than 60 bytes stays so: padding is the port's task.

use clap::{Parser, Subcommand, ValueEnum};
use sluice_nf::header::{parse, pop_vlan, push_vlan};
use sluice_nf::{Burst, Context, Handler, Packet};
use sluice_nf_parts::report::{Report, ReportArgs, Reported, Reports};
use std::error::Error;

/// Place of a tag's TPID.
const TPID: std::ops::Range<usize> = 12..14;
const TPIDS: [u16; 3] = [0x8100, 0x88a8, 0x9100];

/// Puts a VLAN tag on every packet, or takes it off
#[derive(Debug, Parser)]
#[command(name = "sluice-nf-vlan", version, after_help = "Example: sluice-nf-vlan tag --id 100 --priority 3")]
struct Args {
    #[command(subcommand)]
    what: What,
    #[command(flatten)]
    report: ReportArgs,
}

#[derive(Debug, Clone, Copy, Subcommand)]
enum What {
    /// Put a tag on every packet
    Tag {
        /// VLAN id, 0 to 4094 (0: priority only)
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4094))]
        id: u16,
        /// Priority (PCP), 0 to 7
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=7))]
        priority: u8,
        /// 0x8100 (customer tag) or 0x88a8 (service tag)
        #[arg(long, default_value = "0x8100", value_parser = tpid)]
        tpid: u16,
    },
    /// Take the outermost tag off
    Untag {
        /// Only a tag of this VLAN
        #[arg(long, value_parser = clap::value_parser!(u16).range(0..=4094))]
        id: Option<u16>,
        /// What happens to packets without such a tag
        #[arg(long, value_enum, default_value_t = Others::Pass)]
        others: Others,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Others {
    Pass,
    Drop,
}

fn tpid(text: &str) -> Result<u16, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u16::from_str_radix(digits, 16).ok().filter(|t| TPIDS.contains(t)).ok_or_else(|| "a TPID is 0x8100, 0x88a8 or 0x9100".into())
}

#[derive(Debug)]
struct Vlan {
    what: What,
    done: u64,
    others: u64,
    no_room: u64,
}

impl Vlan {
    fn new(what: What) -> Self {
        Self { what, done: 0, others: 0, no_room: 0 }
    }

    fn tag(&mut self, packet: &mut Packet<'_>, tpid: u16, tci: u16) {
        if push_vlan(packet, tci).is_err() {
            self.no_room += 1;
            packet.drop();
            return;
        }
        packet.data_mut()[TPID].copy_from_slice(&tpid.to_be_bytes());
        self.done += 1;
    }

    fn untag(&mut self, packet: &mut Packet<'_>, id: Option<u16>, others: Others) {
        let is_ours = match id {
            Some(id) => parse(packet.data()).is_some_and(|headers| headers.vlan_ids().first() == Some(&id)),
            None => true,
        };
        if is_ours && pop_vlan(packet).is_some() {
            self.done += 1;
            return;
        }
        self.others += 1;
        if others == Others::Drop {
            packet.drop();
        }
    }
}

impl Handler for Vlan {
    fn burst(&mut self, burst: &mut Burst<'_>) {
        for mut packet in burst.iter_mut() {
            match self.what {
                What::Tag { id, priority, tpid } => self.tag(&mut packet, tpid, u16::from(priority) << 13 | id),
                What::Untag { id, others } => self.untag(&mut packet, id, others),
            }
        }
    }
}

impl Reports for Vlan {
    fn report(&self, _now_ns: u64) -> Report {
        let report = Report::new("vlan");
        match self.what {
            What::Tag { .. } => report.counter("tagged", self.done).counter("dropped_no_room", self.no_room),
            What::Untag { others: Others::Pass, .. } => report.counter("untagged", self.done).counter("passed", self.others),
            What::Untag { others: Others::Drop, .. } => report.counter("untagged", self.done).counter("dropped_other", self.others),
        }
    }
}

fn make(args: Args, _context: &Context) -> Result<impl Handler + use<>, Box<dyn Error>> {
    Ok(Reported::new(Vlan::new(args.what), &args.report)?)
}

sluice_nf_parts::nf!(Args, make);

#[cfg(test)]
mod tests {
    use sluice_nf::Verdict;
    use sluice_nf::harness::Harness;

    use super::*;

    fn nf(args: &[&str]) -> Harness<Vlan> {
        let args = Args::try_parse_from(["vlan"].iter().chain(args)).unwrap();
        Harness::new(Vlan::new(args.what))
    }

    fn packet() -> Vec<u8> {
        (0..60).collect()
    }

    #[test]
    fn a_tag_goes_on_and_comes_off() {
        let tagged = nf(&["tag", "--id", "100", "--priority", "3"]).send(&packet()).bytes;
        assert_eq!(tagged[..12], packet()[..12]);
        assert_eq!(tagged[12..16], [0x81, 0x00, 0x60, 100]);
        assert_eq!(tagged[16..], packet()[12..]);
        let twice = nf(&["tag", "--id", "7", "--tpid", "0x88a8"]).send(&tagged).bytes;
        assert_eq!(twice[12..20], [0x88, 0xa8, 0, 7, 0x81, 0x00, 0x60, 100]);
        let mut untag = nf(&["untag"]);
        let once = untag.send(&twice).bytes;
        assert_eq!(once, tagged);
        assert_eq!(untag.send(&once).bytes, packet());
        assert_eq!(untag.handler().report(0).get("untagged"), Some(2));
    }

    #[test]
    fn only_the_vlan_asked_for_is_untagged() {
        let tagged = nf(&["tag", "--id", "100"]).send(&packet()).bytes;
        for (others, verdict) in [("pass", Verdict::Next), ("drop", Verdict::Drop)] {
            let mut untag = nf(&["untag", "--id", "101", "--others", others]);
            for bytes in [&tagged, &packet(), &vec![0x81; 13]] {
                let outcome = untag.send(bytes);
                assert_eq!((outcome.verdict, &outcome.bytes), (verdict, bytes));
            }
        }
        assert_eq!(nf(&["untag", "--id", "100"]).send(&tagged).bytes, packet());
    }

    #[test]
    fn a_packet_without_an_ethernet_header_is_dropped() {
        let mut tag = nf(&["tag", "--id", "1"]);
        assert_eq!(tag.send(&[1; 13]).verdict, Verdict::Drop);
        assert_eq!(tag.handler().report(0).get("dropped_no_room"), Some(1));
    }

    #[test]
    fn wrong_arguments_are_refused() {
        for args in
            [&["tag"][..], &["tag", "--id", "4095"], &["tag", "--id", "1", "--tpid", "0x800"], &["untag", "--priority", "1"]]
        {
            assert!(Args::try_parse_from(["vlan"].iter().chain(args)).is_err(), "{args:?}");
        }
    }
}
