//! Two network namespaces around a daemon, for experiments with real TCP.
//!
//! ```text
//! inside                                outside
//! 10.99.0.1 ── host end ──► sluiced ──► host end ── 10.99.0.2
//! ```
//! Creating them needs root, `ip` and `ethtool`; `iperf3` is needed for TCP flows. All are run by
//! name. Names contain this process's number, so two experiments at once do not clash. Dropping
//! [`Wires`] removes whatever is left.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::bench::daemon::Programs;

pub const INSIDE: &str = "10.99.0.1";
pub const OUTSIDE: &str = "10.99.0.2";
/// Second addresses of both, where they are added.
pub const SECOND: [&str; 2] = ["10.99.0.3", "10.99.0.4"];
/// Port of iperf3's server, its own default.
const PORT: u16 = 5201;
/// Time limit of each action besides the measured time.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time limit for a flow to begin, and to end after its time; without loss, either takes
/// milliseconds.
const GIVE_UP: Duration = Duration::from_secs(5);
/// Bytes of a packet's headers: IPv4, and TCP with the time stamps that Linux sends.
const HEADERS: u64 = 52;

/// Settings of ethtool with which traffic is as on a wire: real checksums, no segments beyond the
/// MTU.
pub const PLAIN: [&str; 8] = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];

/// A port of a kernel interface as TOML, with the rule that leads its packets to a chain.
pub fn port(kind: &str, name: &str, interface: &str, chain: &str) -> String {
    format!(
        "[[port]]\nname = \"{name}\"\nkind = \"{kind}\"\ninterface = \"{interface}\"\n\n\
         [[rule]]\nport = \"{name}\"\nchain = \"{chain}\"\n\n"
    )
}

/// Result of a TCP flow.
#[derive(Debug, Clone, PartialEq)]
pub enum TcpResult {
    /// It ran to its end; bits per second that arrived.
    Whole(f64),
    /// It did not connect or could not end for lack of packets; bits per second that arrived until
    /// it was given up.
    Starved(f64),
}

/// Why namespaces with iperf3 are impossible here, if so.
pub fn missing() -> Option<String> {
    missing_without(&[])
}

/// Like [`missing`], without a need for these programs.
pub fn missing_without(unneeded: &[&str]) -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, for network namespaces; run it with sudo".into());
    }
    let there = |program: &str, args: &[&str]| {
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok()
    };
    let programs = [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool"), ("iperf3", "--version", "iperf3")];
    let absent = programs.iter().find(|(program, version, _)| !unneeded.contains(program) && !there(program, &[version]))?;
    Some(format!("there is no {} here; install {}", absent.0, absent.2))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// Where flows begin.
    Inside,
    /// Where flows lead.
    Outside,
}

/// Both namespaces and their host ends.
#[derive(Debug)]
pub struct Wires {
    inside: End,
    outside: End,
}

#[derive(Debug)]
struct End {
    namespace: String,
    /// Name of the host's end.
    host: String,
}

/// Runs a program to its end, and returns its output.
pub(crate) fn call(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}; install it"))?;
    ensure!(out.status.success(), "{program} {} failed: {}", args.join(" "), String::from_utf8_lossy(&out.stderr).trim());
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

impl End {
    fn lay(&self, address: &str) -> anyhow::Result<()> {
        let (ns, host) = (self.namespace.as_str(), self.host.as_str());
        call("ip", &["netns", "add", ns])?;
        call("ip", &["link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", ns])?;
        call("ip", &["-n", ns, "addr", "add", &format!("{address}/24"), "dev", "eth0"])?;
        call("ip", &["-n", ns, "link", "set", "lo", "up"])?;
        call("ip", &[&["netns", "exec", ns, "ethtool", "-K", "eth0"], &PLAIN[..]].concat())?;
        call("ethtool", &[&["-K", host], &PLAIN[..]].concat())?;
        call("ip", &["-n", ns, "link", "set", "eth0", "up"])?;
        call("ip", &["link", "set", host, "up"])?;
        Ok(())
    }

    fn mac(&self) -> anyhow::Result<String> {
        mac_of(&call("ip", &["-n", &self.namespace, "-j", "link", "show", "eth0"])?)
    }
}

fn mac_of(json: &str) -> anyhow::Result<String> {
    let links: Value = serde_json::from_str(json).context("ip's answer is no JSON")?;
    links[0]["address"].as_str().map(String::from).context("ip names no address")
}

impl Wires {
    /// Creates both namespaces.
    ///
    /// # Errors
    /// A step fails; what was created until then is removed.
    pub fn lay() -> anyhow::Result<Self> {
        let process = std::process::id();
        let end =
            |word: &str| End { namespace: format!("sluice-bench-{process}-{word}"), host: format!("slb{process}{}", &word[..1]) };
        let wires = Self { inside: end("inside"), outside: end("outside") };
        wires.inside.lay(INSIDE)?;
        wires.outside.lay(OUTSIDE)?;
        // Static neighbours: no resolution can fail under overload.
        let known = |at: &End, address: &str, of: &End| {
            call("ip", &["-n", &at.namespace, "neigh", "add", address, "lladdr", &of.mac()?, "dev", "eth0"])
        };
        known(&wires.inside, OUTSIDE, &wires.outside)?;
        known(&wires.outside, INSIDE, &wires.inside)?;
        Ok(wires)
    }

    /// Names of the inner and outer host ends.
    pub fn hosts(&self) -> [&str; 2] {
        [&self.inside.host, &self.outside.host]
    }

    /// Names of the inner and outer namespaces.
    pub fn namespaces(&self) -> [&str; 2] {
        [&self.inside.namespace, &self.outside.namespace]
    }

    /// MAC addresses of both ends, the inner one first.
    pub fn macs(&self) -> anyhow::Result<[String; 2]> {
        Ok([self.inside.mac()?, self.outside.mac()?])
    }

    /// Adds a second address to both ends, and a route from the inner to the outer one.
    pub fn lay_second(&self) -> anyhow::Result<()> {
        for (end, own, other, of) in
            [(&self.inside, SECOND[0], SECOND[1], &self.outside), (&self.outside, SECOND[1], SECOND[0], &self.inside)]
        {
            call("ip", &["-n", &end.namespace, "addr", "add", &format!("{own}/32"), "dev", "eth0"])?;
            call("ip", &["-n", &end.namespace, "route", "add", &format!("{other}/32"), "dev", "eth0", "src", own])?;
            call("ip", &["-n", &end.namespace, "neigh", "add", other, "lladdr", &of.mac()?, "dev", "eth0"])?;
        }
        Ok(())
    }

    /// Joins both host ends by a bridge of the kernel, in place of a daemon.
    pub fn join(&self) -> anyhow::Result<()> {
        call("ip", &["link", "add", &self.bridge(), "type", "bridge"])?;
        for host in self.hosts() {
            call("ip", &["link", "set", host, "master", &self.bridge()])?;
        }
        call("ip", &["link", "set", &self.bridge(), "up"]).map(drop)
    }

    fn bridge(&self) -> String {
        format!("{}b", self.inside.host.trim_end_matches('i'))
    }

    /// DPDK device arguments of the inner host end.
    pub fn inside_devargs(&self) -> String {
        devargs(0, &self.inside.host)
    }

    /// DPDK device arguments of the outer host end.
    pub fn outside_devargs(&self) -> String {
        devargs(1, &self.outside.host)
    }

    /// Runs a TCP flow from the inner to the outer namespace, at `mbit` million bits per second or,
    /// with 0, as fast as possible, from processes on `cores`. It ends after `seconds`, or is given
    /// up soon after.
    ///
    /// # Errors
    /// iperf3 fails for a reason other than packet loss, or the experiment was interrupted.
    pub fn tcp(&self, programs: &Programs, cores: &[usize], mbit: u32, seconds: f64) -> anyhow::Result<TcpResult> {
        let port = PORT.to_string();
        let iperf = |side: Side, args: &[&str]| self.spawn(side, cores, &[&["iperf3", "-p", &port], args].concat());
        let mut server = iperf(Side::Outside, &["-s", "-1"])?;
        let began = Instant::now();
        while !listens(server.id(), PORT) {
            if let Some(status) = server.ended()? {
                bail!("iperf3 -s ended at once ({status})");
            }
            ensure!(began.elapsed() < PATIENCE, "iperf3 -s does not listen after {PATIENCE:?}");
            programs.pause(Duration::from_millis(5))?;
        }
        let (rate, time) = (format!("{mbit}M"), format!("{}", seconds.ceil().max(1.0)));
        let timeout = GIVE_UP.as_millis().to_string();
        let began = Instant::now();
        let client = iperf(Side::Inside, &["-c", OUTSIDE, "-b", &rate, "-t", &time, "-J", "--connect-timeout", &timeout])?;
        let answer = client.text(programs, Duration::from_secs_f64(seconds.ceil()) + GIVE_UP)?;
        match answer.as_deref().map(received).transpose()?.flatten() {
            Some(bps) => Ok(TcpResult::Whole(bps)),
            None => Ok(TcpResult::Starved(self.arrived()? as f64 * 8.0 / began.elapsed().as_secs_f64())),
        }
    }

    fn end(&self, side: Side) -> &End {
        match side {
            Side::Inside => &self.inside,
            Side::Outside => &self.outside,
        }
    }

    pub fn host(&self, side: Side) -> &str {
        &self.end(side).host
    }

    /// Runs a program in a namespace, on `cores`; captures its output but not its errors.
    ///
    /// # Errors
    /// There is no taskset.
    pub fn spawn(&self, side: Side, cores: &[usize], command: &[&str]) -> anyhow::Result<Running> {
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let child = Command::new("taskset")
            .args(["-c", &list, "ip", "netns", "exec", &self.end(side).namespace])
            .args(command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run taskset; install util-linux")?;
        Ok(Running(child))
    }

    /// Payload bytes that arrived in the outer namespace, by its own counters.
    fn arrived(&self) -> anyhow::Result<u64> {
        let counters = call("ip", &["netns", "exec", &self.outside.namespace, "cat", "/proc/net/snmp", "/proc/net/netstat"])?;
        payload(&counters).context("the kernel does not count what arrives in a namespace (/proc/net/netstat)")
    }
}

fn devargs(number: u32, host: &str) -> String {
    format!("net_af_packet{number},iface={host},framecnt=4096")
}

impl Drop for Wires {
    fn drop(&mut self) {
        let _ = call("ip", &["link", "del", &self.bridge()]);
        for end in [&self.inside, &self.outside] {
            // Either may not exist. A host end goes with its namespace, but not at once.
            let _ = call("ip", &["link", "del", &end.host]);
            let _ = call("ip", &["netns", "del", &end.namespace]);
        }
    }
}

/// A process that ends with its owner.
#[derive(Debug)]
pub(crate) struct Running(pub(crate) Child);

impl Running {
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Its exit status, if it has ended.
    pub fn ended(&mut self) -> std::io::Result<Option<std::process::ExitStatus>> {
        self.0.try_wait()
    }

    /// Waits for its end, and returns its output; nothing if it has not ended in time.
    ///
    /// # Errors
    /// Its output cannot be read, or the experiment was interrupted.
    pub fn text(mut self, programs: &Programs, patience: Duration) -> anyhow::Result<Option<String>> {
        let mut pipe = self.0.stdout.take().context("it has no output")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut pipe, &mut text).map(|_| text)
        });
        let began = Instant::now();
        while self.0.try_wait()?.is_none() {
            if began.elapsed() >= patience {
                return Ok(None);
            }
            programs.pause(Duration::from_millis(10))?;
        }
        let text = reader.join().map_err(|_| anyhow::anyhow!("cannot read what it says"))?;
        text.map(Some).context("cannot read what it says")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails if it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process's namespace has a listener on a port.
pub fn listens(pid: u32, port: u16) -> bool {
    ["tcp", "tcp6"]
        .iter()
        .any(|kind| std::fs::read_to_string(format!("/proc/{pid}/net/{kind}")).is_ok_and(|text| has_listener(&text, port)))
}

/// Reads `/proc/PID/net/tcp`: the second field is the local address, the fourth the state; 0A is
/// LISTEN.
fn has_listener(text: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    text.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&port)) && fields.get(3) == Some(&"0A")
    })
}

/// Bits per second that the server received, from iperf3's JSON; none without a connection in time.
fn received(json: &str) -> anyhow::Result<Option<f64>> {
    let json: Value = serde_json::from_str(json).context("iperf3's answer is no JSON")?;
    match json["error"].as_str() {
        Some(error) if error.ends_with("timed out") => Ok(None),
        Some(error) => bail!("iperf3: {error}"),
        None => json["end"]["sum_received"]["bits_per_second"].as_f64().map(Some).context("iperf3 names no rate"),
    }
}

/// Payload bytes from a namespace's counters.
fn payload(counters: &str) -> Option<u64> {
    let of = |word: &str, name: &str| counter(counters, word, name);
    Some(of("IpExt:", "InOctets")?.saturating_sub(of("Ip:", "InReceives")? * HEADERS))
}

/// One of a namespace's counters. They are pairs of lines, names and numbers, with the same first
/// word.
pub(crate) fn counter(counters: &str, word: &str, name: &str) -> Option<u64> {
    let mut lines = counters.lines().filter_map(|line| line.strip_prefix(word)).map(str::split_ascii_whitespace);
    let at = lines.next()?.position(|n| n == name)?;
    lines.next()?.nth(at)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_other_programs_are_understood() {
        assert_eq!(mac_of(r#"[{"ifname":"eth0","address":"02:00:00:00:00:01"}]"#).unwrap(), "02:00:00:00:00:01");
        assert!(mac_of("[]").is_err() && mac_of("no").is_err());
        assert_eq!(received(r#"{"end":{"sum_received":{"bits_per_second":2e8}}}"#).unwrap(), Some(2e8));
        assert_eq!(received(r#"{"end":{},"error":"unable to connect to server: Connection timed out"}"#).unwrap(), None);
        assert_eq!(received(r#"{"error":"unable to connect"}"#).unwrap_err().to_string(), "iperf3: unable to connect");
        assert!(received(r#"{"end":{}}"#).is_err());
    }

    #[test]
    fn what_arrived_is_counted_without_headers() {
        let counters = "Ip: Forwarding InReceives InHdrErrors\nIp: 2 10 0\nTcp: InSegs\nTcp: 9\n\
            IpExt: InNoRoutes InOctets\nIpExt: 0 15520\n";
        assert_eq!(payload(counters), Some(15_000));
        assert_eq!(payload(&counters.replace("15520", "100")), Some(0), "less than headers");
        assert_eq!((payload("Ip: InReceives\nIp: 1\n"), payload("")), (None, None));
    }

    #[test]
    fn a_listener_is_distinguished_from_a_connection() {
        let line = |local: &str, state: &str| format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000\n");
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n".to_string();
        assert!(has_listener(&(head.clone() + &line("00000000:1451", "0A")), PORT));
        assert!(!has_listener(&(head.clone() + &line("00000000:1451", "01")), PORT));
        assert!(!has_listener(&(head + &line("00000000:1452", "0A")), PORT));
    }

    #[test]
    fn names_of_host_ends_are_short_enough() {
        // An interface's name has at most 15 characters, a process number at most 7 digits.
        assert!(format!("slb{}i", 4_194_304).len() <= 15);
        assert_eq!(devargs(1, "slb1o"), "net_af_packet1,iface=slb1o,framecnt=4096");
    }
}
