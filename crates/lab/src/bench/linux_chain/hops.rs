//! Hops of the kernel: a network namespace each, which routes, with rules of nftables.
//!
//! ```text
//! sender ── left  hop 0  right ── left  hop 1  right ── receiver
//! ```
//! Sender and receiver think that they are on one wire: the left end of each hop has the receiver's
//! MAC address. So a packet goes through the same headers as in a chain of ours, but for its TTL.
//! Dropping [`Hops`] removes the namespaces, with the interfaces in them.

use std::io::Write;

use anyhow::Context;
use sluice_host::netns::{Netns, path_of};

use crate::bench::sched::netns::{INSIDE, OUTSIDE, Wires, call};

/// UDP port of all packets.
pub const PORT: u16 = 9;
/// The senders' prefix.
pub const SENDERS: &str = "10.99.0.0/24";
/// The address that stands for the senders behind the NAT.
pub const TRANSLATED: &str = "192.0.2.1";

/// What a hop does with packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NfKind {
    Firewall,
    Nat,
    Monitor,
}

impl NfKind {
    /// The same work as that of our NF, as rules of nftables.
    pub fn rules(self) -> String {
        match self {
            // Stateful, as ours: answers pass, the rest is denied.
            Self::Firewall => format!(
                "table inet chain_firewall {{\n  chain forward {{\n    type filter hook forward priority 0; policy drop;\n    \
                 ct state established,related accept\n    ip saddr {SENDERS} udp dport {PORT} accept\n  }}\n}}\n"
            ),
            Self::Nat => format!(
                "table ip chain_nat {{\n  chain postrouting {{\n    type nat hook postrouting priority 100; policy accept;\n    \
                 ip saddr {SENDERS} udp dport {PORT} snat to {TRANSLATED}\n  }}\n}}\n"
            ),
            // Packets and bytes of each flow.
            Self::Monitor => "table inet chain_monitor {\n  set flows {\n    \
                 type ipv4_addr . inet_service . ipv4_addr . inet_service\n    size 65536\n    flags dynamic\n  }\n  \
                 chain forward {\n    type filter hook forward priority 10; policy accept;\n    \
                 update @flows { ip saddr . udp sport . ip daddr . udp dport counter }\n  }\n}\n"
                .into(),
        }
    }
}

/// Makes a namespace drop the packets that arrive, which its interface has counted by then.
///
/// # Errors
/// nft refuses; the error has its words.
pub fn end_packets(namespace: &str) -> anyhow::Result<()> {
    let rules = format!(
        "table inet chain_end {{\n  chain prerouting {{\n    type filter hook prerouting priority -300; policy accept;\n    \
         udp dport {PORT} drop\n  }}\n}}\n"
    );
    load_rules(namespace, &rules)
}

fn load_rules(namespace: &str, rules: &str) -> anyhow::Result<()> {
    let mut file = tempfile::NamedTempFile::new().context("cannot make a file for rules")?;
    file.write_all(rules.as_bytes()).context("cannot write a file of rules")?;
    let path = file.path().to_str().context("the temporary folder has a name that is no text")?;
    call("ip", &["netns", "exec", namespace, "nft", "-f", path]).map(drop)
}

/// Namespaces between the ends of wires.
#[derive(Debug)]
pub struct Hops(Vec<String>);

impl Hops {
    /// Puts hops between both ends; each does all that its kinds say.
    ///
    /// # Errors
    /// A step fails; what was made until then is removed.
    pub fn lay(wires: &Wires, hops: &[Vec<NfKind>]) -> anyhow::Result<Self> {
        let mut made = Self(Vec::new());
        let [inside, outside] = wires.macs()?;
        for (number, kinds) in hops.iter().enumerate() {
            let ns = format!("sluice-bench-{}-hop{number}", std::process::id());
            call("ip", &["netns", "add", &ns])?;
            made.0.push(ns.clone());
            // Before it has interfaces, which take these over.
            let settings = [("conf/all/rp_filter", "0"), ("conf/default/rp_filter", "0"), ("ip_forward", "1")];
            Netns::open(&path_of(&ns))?
                .visit(|| settings.iter().try_for_each(|(key, value)| std::fs::write(format!("/proc/sys/net/ipv4/{key}"), value)))
                .context("cannot make a namespace route packets (/proc/sys/net/ipv4)")?;
            match number.checked_sub(1).and_then(|before| made.0.get(before)) {
                None => take(&ns, wires.hosts()[0], "left")?,
                Some(before) => {
                    call(
                        "ip",
                        &["-n", before, "link", "add", "name", "right", "type", "veth", "peer", "name", "left", "netns", &ns],
                    )?;
                    join(before, "right", [&inside, &outside])?;
                }
            }
            call("ip", &["-n", &ns, "link", "set", "left", "address", &outside, "up"])?;
            for kind in kinds {
                load_rules(&ns, &kind.rules())?;
            }
        }
        if let Some(last) = made.0.last() {
            take(last, wires.hosts()[1], "right")?;
            join(last, "right", [&inside, &outside])?;
        }
        Ok(made)
    }

    /// Spreads the work of all hops over cores, by flow (receive packet steering).
    ///
    /// # Errors
    /// The kernel has no such steering, or it is not allowed here.
    pub fn steer(&self, cores: &[usize]) -> anyhow::Result<()> {
        let Some(first) = self.0.first() else { return Ok(()) };
        let set = format!("echo {} > /sys/class/net/left/queues/rx-0/rps_cpus", mask(cores));
        call("ip", &["netns", "exec", first, "sh", "-c", &set]).map(drop)
    }
}

/// Moves an interface of the host into a namespace, under another name.
fn take(namespace: &str, interface: &str, name: &str) -> anyhow::Result<()> {
    call("ip", &["link", "set", interface, "netns", namespace])?;
    call("ip", &["-n", namespace, "link", "set", interface, "name", name]).map(drop)
}

/// Makes the right end of a hop the way to the receiver; `macs` are those of both ends.
fn join(namespace: &str, right: &str, macs: [&str; 2]) -> anyhow::Result<()> {
    let [inside, outside] = macs;
    let to_receiver = format!("{OUTSIDE}/32");
    call("ip", &["-n", namespace, "link", "set", right, "address", inside, "up"])?;
    call("ip", &["-n", namespace, "route", "add", &to_receiver, "dev", right])?;
    call("ip", &["-n", namespace, "neigh", "add", OUTSIDE, "lladdr", outside, "dev", right, "nud", "permanent"])?;
    let to_sender = format!("{INSIDE}/32");
    call("ip", &["-n", namespace, "route", "add", &to_sender, "dev", "left"])?;
    call("ip", &["-n", namespace, "neigh", "add", INSIDE, "lladdr", inside, "dev", "left", "nud", "permanent"]).map(drop)
}

/// Cores as the kernel reads a set of them: hexadecimal words of 32, the highest first.
fn mask(cores: &[usize]) -> String {
    let mut words = vec![0u32; cores.iter().max().map_or(1, |most| most / 32 + 1)];
    for core in cores {
        words[core / 32] |= 1 << (core % 32);
    }
    words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
}

impl Drop for Hops {
    fn drop(&mut self) {
        for namespace in &self.0 {
            let _ = call("ip", &["netns", "del", namespace]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cores_are_as_the_kernel_reads_them() {
        assert_eq!(mask(&[0, 1]), "00000003");
        assert_eq!(mask(&[33, 0]), "00000002,00000001");
        assert_eq!(mask(&[]), "00000000");
    }

    #[test]
    fn rules_are_of_the_senders_and_their_port() {
        assert!(NfKind::Firewall.rules().contains("ip saddr 10.99.0.0/24 udp dport 9 accept\n"));
        assert!(NfKind::Nat.rules().contains("ip saddr 10.99.0.0/24 udp dport 9 snat to 192.0.2.1\n"));
        for kind in [NfKind::Firewall, NfKind::Nat, NfKind::Monitor] {
            let rules = kind.rules();
            assert_eq!(rules.matches('{').count(), rules.matches('}').count(), "{rules}");
        }
    }
}
