//! Why packets are dropped: each reason once, with its name, its meaning and its remedy.
//!
//! Statistics, metrics, traces, the API's document and the book take them from here. A reason
//! belongs to what counts it: a chain ([`DropReason`]), a packet thread before a chain is entered
//! ([`Refusal`]), or a port ([`PortDrop`]).

use schemars::Schema;
use serde_json::Value;

/// A reason in words.
#[derive(Debug)]
pub struct ReasonText {
    /// Its name in statistics, metrics and traces.
    pub name: &'static str,
    /// Its meaning, as sentences.
    pub meaning: &'static str,
    /// Whether an NF had worked on the packet.
    pub is_wasted: bool,
    /// What an operator does about it, as Markdown of the book.
    pub remedy: &'static str,
}

/// Declares the reasons of one counter. The doc comment of a reason is its meaning.
macro_rules! reasons {
    (
        $(#[doc = $about:literal])+
        pub enum $kind:ident: $number:ident {
            $($(#[doc = $meaning:literal])+ $variant:ident = $name:literal, wasted: $is_wasted:literal, $remedy:literal;)+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr($number)]
        pub enum $kind {
            $($(#[doc = $meaning])+ $variant,)+
        }

        impl $kind {
            /// All of them, in the order of their numbers.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];

            const REASONS: &'static [ReasonText] = &[$(ReasonText {
                name: $name,
                meaning: concat!($($meaning),+).trim_ascii_start(),
                is_wasted: $is_wasted,
                remedy: $remedy,
            }),+];

            /// Its name in statistics, metrics and traces.
            pub fn name(self) -> &'static str {
                Self::REASONS[self as usize].name
            }

            /// Whether an NF had worked on the packet: wasted work.
            pub fn is_wasted(self) -> bool {
                Self::REASONS[self as usize].is_wasted
            }
        }
    };
}

reasons! {
/// Why a chain drops a packet, at its entry or inside.
pub enum DropReason: usize {
    /// The chain's gate was closed: an NF of the chain has no room, or is throttled. This is
    /// overload, and healthy: no work was lost.
    Entry = "entry", wasted: false,
        "Find the throttled NF (`sluice top`), and give it more instances, a core, or `priority`. With `overload = \"wait\"` \
         the port waits instead of dropping.";
    /// An NF returned it with the verdict `drop`.
    Verdict = "verdict", wasted: false,
        "Nothing, if the NF is meant to drop it. Otherwise see the NF's rules, and its lines in the daemon's log.";
    /// The next NF had no room. With `backpressure = false` full rings drop; otherwise only packets
    /// that an NF sends to a service by its verdict can find no room.
    RingFull = "ring_full", wasted: true,
        "Leave `backpressure = true`; give the service a larger `ring`.";
    /// The NF that held it died.
    NfDied = "nf_died", wasted: true,
        "See the NF's death in `sluice events --kind death`.";
    /// The next NF was gone when the packet got there.
    NfGone = "nf_gone", wasted: true,
        "See the NF's death in `sluice events --kind death`.";
    /// The buffer before the egress port was full: the port takes less than it is given, or a round
    /// of a packet thread has more for it than its 512 packets, as of many ports at once.
    TxFull = "tx_full", wasted: true,
        "Use more `queues`, more packet threads, a faster port, or `overload = \"wait\"` of that port, which closes the gates \
         instead.";
    /// The egress port was removed, or an NF named a port or service that is not there.
    NoSuchPort = "no_such_port", wasted: true,
        "Correct the chain, or the NF's verdict.";
    /// The NF returned it with an offset or length outside its frame, or with an undefined verdict:
    /// a violation.
    Violation = "violation", wasted: true,
        "Look for a memory error in the NF. [After too many](operate-troubleshooting.md#an-nf-does-not-run) it is stopped.";
    /// It went into a foreign program, and did not come out within `inside_ms`.
    NotBack = "not_back", wasted: true,
        "Look inside (`ip netns exec sluice-NAME.0 …`): routes, forwarding, firewall. A program that consumes packets by \
         design has `drops = \"by-design\"`, and then this reason does not occur.";
    /// An NF sent it by a verdict to a service whose instances are given to flows (a pool).
    NotShared = "not_shared", wasted: true,
        "Send to shared services only.";
    /// Its tenant sends more than its SLO promises.
    Policed = "policed", wasted: false,
        "Promise more (`sluice slo add`), or let the tenant send less.";
    /// An NF sent it by a verdict to a port or service where its own may not send; or NFs sent it
    /// to services for the eighth time.
    NotAllowed = "not_allowed", wasted: true,
        "List the destination in `may_send_to` of the NF's service. NFs must not send packets to each other in a circle.";
    /// The memory of the next NF's tenant had no free frame to copy it into.
    NoFrame = "no_frame", wasted: true,
        "Give the tenant more frames (`[memory] tenants = { NAME = N }`); `sluice tenant list` shows which have few. An NF that \
         keeps frames causes this in its own tenant.";
}
}

reasons! {
/// Why a packet thread drops a packet before a chain is entered. No chain counts these, even where
/// the chain is known.
pub enum Refusal: u8 {
    /// No rule matches.
    NoRule = "no_rule", wasted: false,
        "Add a rule for the packet that `sluice drops` shows, or a last one without a condition. Fragments have no ports, and match \
         no rule with ports.";
    /// A service of its chain has no living instance, and the chain does not bypass it.
    NfDown = "nf_down", wasted: false,
        "See [why it does not run](operate-troubleshooting.md#an-nf-does-not-run). `on_failure = \"bypass\"` leaves the hop out, \
         if that is allowed.";
    /// There are as many combinations of instances as `max_paths` allows, and its flow can share
    /// none.
    NoPath = "no_path", wasted: false,
        "Use fewer instances for each service of a chain, or raise `max_paths`.";
    /// The SDN controller forbids its flow.
    Forbidden = "forbidden", wasted: false,
        "Look at the controller's entries.";
    /// Its flow needed an answer of the SDN controller, and none came.
    Unanswered = "unanswered", wasted: false,
        "See the state of the connection in `sluice status`; `miss` and `fail` of `[openflow]` say what happens meanwhile.";
    /// No instance of a pool is idle that its flow could have to itself.
    NoneIdle = "none_idle", wasted: false,
        "Raise `max`, lower `linger_ms` or the idle times, use `zygote = true`, or `when_empty = \"wait\"`.";
}
}

reasons! {
/// Why a port drops a packet.
pub enum PortDrop: u8 {
    /// The egress port did not accept it in time.
    Untaken = "port_tx", wasted: true,
        "As for [`tx_full`](#tx_full).";
    /// The interface or its other end is down, or was removed.
    NoLink = "no_link", wasted: true,
        "See that both ends are up (`ip link`). An interface of that name that comes back is used at once.";
    /// It is larger than the MTU of the egress interface, and cannot be cut.
    Mtu = "mtu", wasted: true,
        "Make MTUs equal.";
    /// It is larger than a frame of packet memory. It does not count as received.
    Oversize = "oversize", wasted: false,
        "Raise `packet_bytes` in `[memory]` for jumbo frames.";
    /// It came in while all places of the port's queue were taken, or before a daemon that starts
    /// has read its ports. It does not count as received, and nothing of it is known: the kernel or
    /// the NIC dropped it.
    Overrun = "overrun", wasted: false,
        "The port is read too rarely: see BUSY of its packet thread (`sluice top`), and whether something else runs on its core. \
         More `queues` with more packet threads take more; `slots` hold longer bursts. Without free frames (`frames` in `[memory]`) \
         nothing is read, either.";
}
}

impl ReasonText {
    /// What an operator does about it, for a terminal: without links.
    pub fn advice(&self) -> String {
        let (mut text, mut rest) = (String::new(), self.remedy);
        // A link is `[words](target)`.
        while let Some((before, link)) = rest.split_once("](") {
            let (lead, words) = before.rsplit_once('[').unwrap_or((before, ""));
            text += lead;
            text += words;
            rest = link.split_once(')').map_or("", |(_, after)| after);
        }
        text + rest
    }
}

/// The reason with this name, if there is one.
pub fn find(name: &str) -> Option<&'static ReasonText> {
    all().find(|reason| reason.name == name)
}

/// All reasons: of chains, of packet threads before a chain, and of ports.
pub fn all() -> impl Iterator<Item = &'static ReasonText> {
    [DropReason::REASONS, Refusal::REASONS, PortDrop::REASONS].into_iter().flatten()
}

/// Whether an NF had worked on packets that were dropped for the reason with this name.
pub fn is_wasted(name: &str) -> bool {
    all().any(|reason| reason.name == name && reason.is_wasted)
}

/// Adds the names and meanings of all reasons to the description of a schema.
pub(crate) fn all_described(schema: &mut Schema) {
    describe(schema, all());
}

/// The same of the reasons that a port counts by name.
pub(crate) fn of_ports_described(schema: &mut Schema) {
    describe(schema, PortDrop::REASONS.iter().filter(|reason| reason.name != PortDrop::Untaken.name()));
}

fn describe<'a>(schema: &mut Schema, reasons: impl Iterator<Item = &'a ReasonText>) {
    let about = schema.get("description").and_then(Value::as_str).unwrap_or_default();
    let text = reasons.fold(about.to_owned(), |text, reason| format!("{text} `{}`: {}", reason.name, reason.meaning));
    schema.insert("description".into(), text.into());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::in_the_tree;

    #[test]
    fn every_reason_has_a_name_of_its_own() {
        let names: HashSet<_> = all().map(|reason| reason.name).collect();
        assert_eq!(names.len(), all().count());
        assert_eq!(names.len(), DropReason::ALL.len() + Refusal::ALL.len() + PortDrop::ALL.len());
        assert!(DropReason::ALL.iter().enumerate().all(|(i, why)| *why as usize == i));
        assert_eq!(
            (DropReason::NoFrame.name(), Refusal::NoneIdle.name(), PortDrop::Oversize.name()),
            ("no_frame", "none_idle", "oversize")
        );
    }

    #[test]
    fn advice_has_the_words_of_links_and_no_targets() {
        let advice = |name: &str| find(name).unwrap().advice();
        assert_eq!(advice("port_tx"), "As for `tx_full`.");
        assert_eq!(advice("mtu"), "Make MTUs equal.");
        assert!(advice("violation").ends_with("memory error in the NF. After too many it is stopped."), "{}", advice("violation"));
        assert!(advice("no_frame").contains("(`[memory] tenants = { NAME = N }`); `sluice tenant list`"), "{}", advice("no_frame"));
        assert!(find("none").is_none());
    }

    #[test]
    fn work_is_wasted_once_an_nf_has_done_it() {
        assert!(DropReason::RingFull.is_wasted() && is_wasted("ring_full") && is_wasted("port_tx"));
        assert!(!DropReason::Verdict.is_wasted() && !is_wasted("verdict") && !is_wasted("no_rule") && !is_wasted("oversize"));
    }

    /// `make reference` writes it.
    #[test]
    fn the_page_in_the_tree_is_that_of_the_reasons() {
        let groups = [
            ("Dropped by a chain", DropReason::REASONS),
            ("Dropped before a chain is entered", Refusal::REASONS),
            ("Dropped by a port", PortDrop::REASONS),
        ];
        let mut page = String::new();
        for (head, reasons) in groups {
            page += &format!("\n## {head}\n");
            for ReasonText { name, meaning, is_wasted, remedy } in reasons {
                let wasted = if *is_wasted { " Wasted work." } else { "" };
                page += &format!("\n### `{name}`\n\n- **Why** {meaning}{wasted}\n- **Do** {remedy}\n");
            }
        }
        in_the_tree::page("ref-drops.md", &page);
    }
}
