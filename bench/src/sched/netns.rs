//! Two network namespaces that only a daemon joins, for experiments with real TCP.
//!
//! ```text
//! inside                                outside
//! 10.99.0.1 ── host end ──► sluiced ──► host end ── 10.99.0.2
//! ```
//! Root alone can make them; `ip`, `ethtool` and `iperf3` are called by their names. Names carry this process's number, so two
//! experiments at once do not meet. Dropping [`Wires`] removes everything, whatever is left of it.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::daemon::Programs;

const INSIDE: &str = "10.99.0.1";
const OUTSIDE: &str = "10.99.0.2";
/// Port of iperf3's server, its own default.
const PORT: u16 = 5201;
/// How long anything may take besides the measured time.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why there can be no namespaces here, if so.
pub fn missing() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("it needs root, for network namespaces; run it with sudo".into());
    }
    let there = |program: &str, args: &[&str]| {
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).stdin(Stdio::null()).status().is_ok()
    };
    let programs = [("ip", "-V", "iproute2"), ("ethtool", "--version", "ethtool"), ("iperf3", "--version", "iperf3")];
    let absent = programs.iter().find(|(program, version, _)| !there(program, &[version]))?;
    Some(format!("there is no {} here; install {}", absent.0, absent.2))
}

/// Both namespaces and their host ends.
#[derive(Debug)]
pub struct Wires {
    inside: End,
    outside: End,
}

#[derive(Debug)]
struct End {
    /// Name of the namespace.
    namespace: String,
    /// Name of the host's end.
    host: String,
}

fn call(program: &str, args: &[&str]) -> anyhow::Result<String> {
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
        // What leaves a namespace is what a wire would carry: real checksums, no segments beyond the MTU.
        let plain = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        call("ip", &[&["netns", "exec", ns, "ethtool", "-K", "eth0"], &plain[..]].concat())?;
        call("ethtool", &[&["-K", host], &plain[..]].concat())?;
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
    /// Makes them.
    ///
    /// # Errors
    /// A step of it fails; what was made until then is removed.
    pub fn lay() -> anyhow::Result<Self> {
        let process = std::process::id();
        let end =
            |word: &str| End { namespace: format!("sluice-bench-{process}-{word}"), host: format!("slb{process}{}", &word[..1]) };
        let wires = Self { inside: end("inside"), outside: end("outside") };
        wires.inside.lay(INSIDE)?;
        wires.outside.lay(OUTSIDE)?;
        // Nobody has to ask who is where, so no answer can be lost to an overload.
        let known = |at: &End, address: &str, of: &End| {
            call("ip", &["-n", &at.namespace, "neigh", "add", address, "lladdr", &of.mac()?, "dev", "eth0"])
        };
        known(&wires.inside, OUTSIDE, &wires.outside)?;
        known(&wires.outside, INSIDE, &wires.inside)?;
        Ok(wires)
    }

    /// DPDK's words for the host end of the inner namespace.
    pub fn inside_devargs(&self) -> String {
        devargs(0, &self.inside.host)
    }

    /// DPDK's words for the host end of the outer namespace.
    pub fn outside_devargs(&self) -> String {
        devargs(1, &self.outside.host)
    }

    /// A TCP flow from the inner to the outer namespace, at most at `mbit` million bits a second, from processes on `cores`: bits per
    /// second that arrived.
    ///
    /// # Errors
    /// iperf3 fails, or the experiment was interrupted.
    pub fn tcp(&self, programs: &Programs, cores: &[usize], mbit: u32, seconds: f64) -> anyhow::Result<f64> {
        let list = cores.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let iperf = |end: &End, args: &[&str]| -> anyhow::Result<Running> {
            let child = Command::new("taskset")
                .args(["-c", &list, "ip", "netns", "exec", &end.namespace, "iperf3", "-p", &PORT.to_string()])
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .context("cannot run taskset; install util-linux")?;
            Ok(Running(child))
        };
        let mut server = iperf(&self.outside, &["-s", "-1"])?;
        let began = Instant::now();
        while !listens(server.0.id()) {
            if let Some(status) = server.0.try_wait()? {
                bail!("iperf3 -s ended at once ({status})");
            }
            ensure!(began.elapsed() < PATIENCE, "iperf3 -s does not listen after {PATIENCE:?}");
            programs.pause(Duration::from_millis(5))?;
        }
        let (rate, time) = (format!("{mbit}M"), format!("{}", seconds.ceil().max(1.0)));
        let client = iperf(&self.inside, &["-c", OUTSIDE, "-b", &rate, "-t", &time, "-J", "--connect-timeout", "5000"])?;
        received(&client.text(programs, Duration::from_secs_f64(seconds) + PATIENCE)?)
    }
}

fn devargs(number: u32, host: &str) -> String {
    format!("net_af_packet{number},iface={host},framecnt=4096")
}

impl Drop for Wires {
    fn drop(&mut self) {
        for end in [&self.inside, &self.outside] {
            // Either may not have been made. A host end goes with its namespace, but not at once.
            let _ = call("ip", &["link", "del", &end.host]);
            let _ = call("ip", &["netns", "del", &end.namespace]);
        }
    }
}

/// A process that ends with its owner.
struct Running(Child);

impl Running {
    /// Waits for its end, and gives back what it said.
    fn text(mut self, programs: &Programs, patience: Duration) -> anyhow::Result<String> {
        let mut pipe = self.0.stdout.take().context("iperf3 has no output")?;
        let reader = std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut pipe, &mut text).map(|_| text)
        });
        let began = Instant::now();
        while self.0.try_wait()?.is_none() {
            ensure!(began.elapsed() < patience, "iperf3 has not ended after {patience:?}; its packets do not come through");
            programs.pause(Duration::from_millis(10))?;
        }
        reader.join().map_err(|_| anyhow::anyhow!("cannot read what iperf3 says"))?.context("cannot read what iperf3 says")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Fails where it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether a process's namespace has a listener on iperf3's port.
fn listens(pid: u32) -> bool {
    ["tcp", "tcp6"]
        .iter()
        .any(|kind| std::fs::read_to_string(format!("/proc/{pid}/net/{kind}")).is_ok_and(|text| has_listener(&text)))
}

/// Of `/proc/PID/net/tcp`: the second field is the local address, the fourth the state, of which 0A is listening.
fn has_listener(text: &str) -> bool {
    let port = format!(":{PORT:04X}");
    text.lines().any(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(1).is_some_and(|local| local.ends_with(&port)) && fields.get(3) == Some(&"0A")
    })
}

/// Bits per second that the server received, of iperf3's JSON.
fn received(json: &str) -> anyhow::Result<f64> {
    let json: Value = serde_json::from_str(json).context("iperf3's answer is no JSON")?;
    if let Some(error) = json["error"].as_str() {
        bail!("iperf3: {error}");
    }
    json["end"]["sum_received"]["bits_per_second"].as_f64().context("iperf3 names no rate")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_other_programs_are_understood() {
        assert_eq!(mac_of(r#"[{"ifname":"eth0","address":"02:00:00:00:00:01"}]"#).unwrap(), "02:00:00:00:00:01");
        assert!(mac_of("[]").is_err() && mac_of("no").is_err());
        assert_eq!(received(r#"{"end":{"sum_received":{"bits_per_second":2e8}}}"#).unwrap(), 2e8);
        assert_eq!(received(r#"{"error":"unable to connect"}"#).unwrap_err().to_string(), "iperf3: unable to connect");
        assert!(received(r#"{"end":{}}"#).is_err());
    }

    #[test]
    fn a_listener_is_told_from_a_connection() {
        let line = |local: &str, state: &str| format!("   0: {local} 00000000:0000 {state} 00000000:00000000 00:00000000\n");
        let head = "  sl  local_address rem_address   st tx_queue rx_queue\n".to_string();
        assert!(has_listener(&(head.clone() + &line("00000000:1451", "0A"))));
        assert!(!has_listener(&(head.clone() + &line("00000000:1451", "01"))));
        assert!(!has_listener(&(head + &line("00000000:1452", "0A"))));
    }

    #[test]
    fn names_of_host_ends_are_short_enough() {
        // An interface's name has at most 15 characters, a process at most 7 digits.
        assert!(format!("slb{}i", 4_194_304).len() <= 15);
        assert_eq!(devargs(1, "slb1o"), "net_af_packet1,iface=slb1o,framecnt=4096");
    }
}
