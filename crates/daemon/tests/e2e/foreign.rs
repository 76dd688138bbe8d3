//! Foreign programs as hops: a kernel firewall, a switch, proxies, sniffers.
//! Namespaces, interfaces, programs and the TCP through them are real.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sluice_api::model::{Apply, ChainState, Nf, NfForeign, NfState, Stats, TraceRequest};
use sluice_host::link;
use sluice_host::netns::{self, Netns};

use crate::scheduling::{group_of, has_weight};
use crate::skip::skip;
use crate::support::{Daemon, chain, find_chain, find_nf, find_port, head, is_alive, port, refusal, service, wait_until_gone};

/// Time limit of a connection that must succeed, and of one that must not.
const CONNECT: Duration = Duration::from_secs(30);
const GIVE_UP: Duration = Duration::from_secs(1);

/// Whether this is root and these programs are installed. In CI, else an error.
pub fn can(tools: &[&str]) -> bool {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let is_there = |tool: &&&str| std::env::split_paths(&path).any(|folder| folder.join(tool).exists());
    let missing: Vec<_> = tools.iter().filter(|tool| !is_there(tool)).collect();
    let good = missing.is_empty() && rustix::process::geteuid().is_root();
    if !good {
        skip(format_args!("this needs root and {missing:?}; run `make deps`"));
    }
    good
}

/// A client and a server that only Sluice joins:
///
/// ```text
/// client 10.0.0.2 ── c  [ sluiced ]  s ── 10.0.1.2 server
/// ```
pub struct Site {
    /// Namespace of the daemon's ends.
    middle: Named,
    client: Netns,
    server: Netns,
    gateways: Option<[String; 2]>,
    /// Whether interfaces keep their initial offloads.
    offloads: bool,
    body: Arc<Vec<u8>>,
    /// HTTP head that the server sends on a request; if empty, it waits for no request.
    head: String,
}

fn run(ns: &Netns, command: &str) {
    let status = ns.visit(|| Command::new("sh").args(["-ec", command]).status()).unwrap();
    assert!(status.success(), "{command}: {status}");
}

impl Site {
    /// Gateways of client and server; without them both have addresses of one network.
    pub fn new(gateways: Option<(&str, &str)>) -> Self {
        Self::with(gateways, false)
    }

    /// A site whose interfaces keep their initial offloads, as those of containers do.
    pub fn with_offloads() -> Self {
        Self::with(None, true)
    }

    fn with(gateways: Option<(&str, &str)>, offloads: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let middle = Named(format!("sluice-e2e-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
        let ns = Netns::named(&middle.0).unwrap();
        let (client, server) = (Netns::private().unwrap(), Netns::private().unwrap());
        let gateways = gateways.map(|(near, far)| [near.to_string(), far.to_string()]);
        // Eight MiB that no compression or repetition could imitate.
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut body = Vec::with_capacity(8 << 20);
        while body.len() < 8 << 20 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            body.extend(state.to_le_bytes());
        }
        let site = Self { middle, client, server, gateways, offloads, body: Arc::new(body), head: String::new() };
        ["c", "s"].iter().for_each(|name| site.make(&ns, name));
        site
    }

    /// Makes the pair of interfaces of a port in a namespace.
    /// The host's end keeps its MAC address: a peer would use the former one for up to 30 s.
    fn make(&self, ns: &Netns, name: &str) {
        let plain = |name: &str| if self.offloads { Ok(()) } else { link::plain(name) };
        let (end, address, side) = if name == "c" { (&self.client, "10.0.0.2", 0) } else { (&self.server, "10.0.1.2", 1) };
        ns.visit(|| {
            link::make_pair_with(name, "eth0", end.fd(), 1500, Some([2, 0, 0, 0, 1, side as u8]))?;
            plain(name)?;
            link::up(name)
        })
        .unwrap();
        end.visit(|| plain("eth0").and_then(|()| link::up("eth0"))).unwrap();
        let bits = if self.gateways.is_some() { 24 } else { 16 };
        run(end, &format!("ip link set lo up; ip addr add {address}/{bits} dev eth0"));
        if let Some(gateways) = &self.gateways {
            run(end, &format!("ip route add default via {}", gateways[side]));
        }
    }

    /// The current namespace of the daemon's ends.
    fn middle_now(&self) -> Netns {
        Netns::open(&netns::path_of(&self.middle.0)).unwrap()
    }

    /// Runs a command in the namespace of the daemon's ends.
    pub fn run_in_middle(&self, command: &str) {
        run(&self.middle_now(), command);
    }

    pub fn run_in_client(&self, command: &str) {
        run(&self.client, command);
    }

    pub fn run_in_server(&self, command: &str) {
        run(&self.server, command);
    }

    /// Removes a port's interface, and thereby its peer.
    pub fn remove_interface(&self, name: &str) {
        self.middle_now().visit(|| link::remove(name)).unwrap();
    }

    pub fn make_interface(&self, name: &str) {
        self.make(&self.middle_now(), name);
    }

    /// Replaces the namespace of the daemon's ends by one with the same interfaces.
    pub fn make_middle_anew(&self) {
        assert!(netns::unname(&netns::path_of(&self.middle.0)).unwrap());
        let until = std::time::Instant::now() + crate::support::PATIENCE;
        while [&self.client, &self.server].iter().any(|end| end.visit(|| link::index("eth0")).is_ok()) {
            assert!(std::time::Instant::now() < until, "the namespace lives on");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ns = Netns::named(&self.middle.0).unwrap();
        ["c", "s"].iter().for_each(|name| self.make(&ns, name));
    }

    /// Reaches a port of the server, with retries.
    #[track_caller]
    pub fn reach(&self, daemon: &Daemon, port: u16) {
        let until = std::time::Instant::now() + CONNECT;
        // A packet lost while an interface is made is sent again after 1 s: a new try is faster.
        while let Err(error) = self.connect(port, Duration::from_millis(200)) {
            assert!(std::time::Instant::now() < until, "{error}\n{:#?}\n{}", daemon.client().stats(), daemon.log());
        }
    }

    /// Makes the server answer HTTP requests.
    pub fn speak_http(&mut self) {
        self.head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", self.body.len());
    }

    /// The sections of both ports.
    pub fn ports(&self) -> String {
        let keys = |interface: &str| format!("interface = \"{interface}\"\nnetns = \"{}\"", self.middle.0);
        port("c", "af_packet", &keys("c")) + &port("s", "af_packet", &keys("s"))
    }

    /// Serves the body on these ports of the server.
    pub fn serve(&self, ports: &[u16]) {
        for port in ports {
            let listener = self.server.visit(|| TcpListener::bind(("0.0.0.0", *port))).unwrap();
            let (head, body) = (self.head.clone(), self.body.clone());
            // Ends with the test's process.
            std::thread::spawn(move || {
                for mut connection in listener.incoming().flatten() {
                    let (head, body) = (head.clone(), body.clone());
                    std::thread::spawn(move || {
                        let mut request = Vec::new();
                        while !head.is_empty() && !request.ends_with(b"\r\n\r\n") {
                            let mut byte = [0];
                            connection.read_exact(&mut byte)?;
                            request.push(byte[0]);
                        }
                        connection.write_all(head.as_bytes())?;
                        connection.write_all(&body)
                    });
                }
            });
        }
    }

    pub fn body(&self) -> &[u8] {
        &self.body
    }

    /// Runs `act` in the client's namespace.
    pub fn in_client<T: Send>(&self, act: impl FnOnce() -> std::io::Result<T> + Send) -> std::io::Result<T> {
        self.client.visit(act)
    }

    fn connect(&self, port: u16, patience: Duration) -> std::io::Result<TcpStream> {
        let server = SocketAddr::from(([10, 0, 1, 2], port));
        self.client.visit(|| TcpStream::connect_timeout(&server, patience))
    }

    /// Downloads the body and compares it, byte by byte.
    #[track_caller]
    pub fn download(&self, daemon: &Daemon, port: u16) {
        let got = self.connect(port, CONNECT).and_then(|mut connection| {
            connection.set_read_timeout(Some(CONNECT))?;
            let mut got = Vec::new();
            connection.read_to_end(&mut got)?;
            Ok(got)
        });
        let got = got.unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", daemon.client().stats(), daemon.log()));
        assert!(got == *self.body, "{} bytes came, of {}, and they differ", got.len(), self.body.len());
    }

    /// Checks that a forbidden port cannot be reached.
    #[track_caller]
    fn is_refused(&self, port: u16) {
        assert!(self.connect(port, GIVE_UP).is_err(), "port {port} was reached");
    }
}

/// A name of a namespace, which is removed with its test, however that ends.
struct Named(String);

impl Drop for Named {
    fn drop(&mut self) {
        let _ = netns::unname(&netns::path_of(&self.0));
    }
}

/// A foreign service's section.
fn foreign(name: &str, keys: &str) -> String {
    format!("[[service]]\nname = \"{name}\"\nkind = \"foreign\"\n{keys}\n")
}

/// A stateful firewall between the networks of client and server.
fn nftables(folder: &Path) -> String {
    let rules = folder.join("nft.rules");
    let text = "table ip fw { chain forward { type filter hook forward priority 0; policy drop;\n\
                ct state established,related accept\n tcp dport { 8080, 8081 } ct state new accept\n }\n}\n";
    std::fs::write(&rules, text).unwrap();
    let setup = [
        "ip addr add 10.0.0.1/24 dev in".to_string(),
        "ip addr add 10.0.1.1/24 dev out".into(),
        "echo 1 > /proc/sys/net/ipv4/ip_forward".into(),
        format!("nft -f {}", rules.display()),
    ];
    foreign("nft", &format!("setup = {setup:?}\ninside_ms = 200"))
}

/// A switch whose flow rules forbid one port.
fn open_v_switch(folder: &Path) -> String {
    let dir = folder.join("ovs").display().to_string();
    let setup = [
        format!("rm -rf {dir} && mkdir {dir}"),
        format!("ovsdb-tool create {dir}/conf.db /usr/share/openvswitch/vswitch.ovsschema"),
        format!("ovsdb-server {dir}/conf.db --remote=punix:{dir}/db.sock --detach --pidfile --log-file -vconsole:off"),
        "ovs-vsctl --no-wait init".into(),
    ];
    let ready = [
        "ovs-vsctl --timeout=25 add-br br0 -- set bridge br0 datapath_type=netdev fail_mode=secure \
         -- add-port br0 in -- add-port br0 out",
        "ovs-ofctl add-flow br0 priority=40000,tcp,tp_dst=8081,actions=drop",
        "ovs-ofctl add-flow br0 in_port=in,actions=output:out",
        "ovs-ofctl add-flow br0 in_port=out,actions=output:in",
    ];
    foreign(
        "ovs",
        &format!(
            "exec = \"/usr/sbin/ovs-vswitchd\"\nargs = [\"unix:{dir}/db.sock\", \"--log-file\", \"-vconsole:off\"]\n\
             env = {{ OVS_RUNDIR = {dir:?}, OVS_LOGDIR = {dir:?}, OVS_DBDIR = {dir:?} }}\n\
             setup = {setup:?}\nready = {ready:?}\ninside_ms = 200"
        ),
    )
}

/// A command that waits for a packet socket on an interface of its namespace.
/// Earlier packets have no reader, not even while a socket is open and not yet bound.
const LISTENS: &str = "until awk '$5 > 0 && $6 == 1 { found = 1 } END { exit !found }' /proc/net/packet; do sleep 0.01; done";

fn program(stats: &Stats, name: &str) -> (Nf, NfForeign) {
    let nf = find_nf(stats, name).clone();
    let foreign = nf.foreign.clone().unwrap_or_else(|| panic!("{name} is foreign"));
    (nf, foreign)
}

fn running(stats: &Stats, name: &str) -> bool {
    find_nf(stats, name).state == NfState::Running
}

/// Whether an instance has its namespace.
fn has_namespace(nf: &str) -> bool {
    netns::path_of(&format!("sluice-{nf}")).exists()
}

// Namespaces are named after instances, so services of parallel tests have different names.

#[test]
fn a_firewall_a_bridge_and_a_switch_carry_a_download() {
    if !can(&["nft", "ovs-vswitchd", "ovsdb-server", "ovs-vsctl", "ip"]) {
        return;
    }
    let site = Site::new(Some(("10.0.0.1", "10.0.1.1")));
    site.serve(&[8080, 8081, 9090]);
    let folder = crate::support::open_folder();
    let body = site.ports()
        + &nftables(folder.path())
        + &open_v_switch(folder.path())
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["nft", "bridge", "ovs"], "s", "")
        + &chain("back", "s", &["ovs:reverse", "bridge", "nft:reverse"], "c", "");
    let mut daemon = Daemon::start("", &body);
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    let before = (program(&stats, "nft.0").1, program(&stats, "ovs.0").1);
    for (name, of) in [("nft.0", &before.0), ("ovs.0", &before.1)] {
        assert!(of.entered > 5000 && of.returned > 5000, "{name}: {of:?}");
    }
    // What the firewall forbids ends there, and the switch does not see it.
    site.is_refused(9090);
    let stats = daemon.wait("the firewall's drops are counted", |s| program(s, "nft.0").1.not_back > before.0.not_back);
    let lost = |stats: &Stats| find_chain(stats, "there").drops.get("not_back").copied().unwrap_or(0);
    assert!(lost(&stats) > 0, "{:?}", find_chain(&stats, "there"));
    assert_eq!(program(&stats, "ovs.0").1.not_back, before.1.not_back, "the switch saw nothing of it");
    // What the switch forbids ends in the switch.
    site.is_refused(8081);
    let of_chain = lost(&stats);
    let stats =
        daemon.wait("the switch's drops are counted", |s| program(s, "ovs.0").1.not_back > before.1.not_back && lost(s) > of_chain);
    // Its processes are the program, and what the commands before it have left running.
    let (nf, of) = program(&stats, "ovs.0");
    let pid = nf.pid.expect("it has a process");
    assert!(of.processes.contains(&pid) && of.processes.len() >= 2, "{of:?}");
    // When killed, it is started again, and all is as before.
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    daemon.wait("the switch is back", |s| find_nf(s, "ovs.0").restarts == 1 && running(s, "ovs.0"));
    of.processes.iter().for_each(|pid| wait_until_gone(*pid));
    site.download(&daemon, 8080);
    let last = program(&daemon.stats(), "ovs.0").1.processes;
    daemon.stop();
    assert!(!has_namespace("nft.0") && !has_namespace("ovs.0"));
    // They are killed by then; the host reaps those that have left their parents.
    last.into_iter().for_each(wait_until_gone);
}

/// Commands that join the two interfaces by a bridge of the kernel.
const BRIDGE: [&str; 5] = [
    "ip link add br0 type bridge mcast_snooping 0",
    // Else it would send packets of its own.
    "echo 1 > /proc/sys/net/ipv6/conf/br0/disable_ipv6",
    "ip link set in master br0",
    "ip link set out master br0",
    "ip link set br0 up",
];

/// A kernel bridge, with a program whose end ends the NF.
fn bridge_of(name: &str, keys: &str) -> String {
    foreign(name, &format!("exec = \"/bin/sleep\"\nargs = [\"100000\"]\nsetup = {BRIDGE:?}\n{keys}"))
}

/// A client and a server joined through a bridge that is killed, under a policy.
fn mortal(name: &str, policy: &str) -> (Site, Daemon, Nf) {
    let site = Site::new(None);
    site.serve(&[8080]);
    let keys = format!("on_failure = {policy:?}");
    let body = site.ports()
        + &bridge_of(name, "")
        + &chain("there", "c", &[name], "s", &keys)
        + &chain("back", "s", &[&format!("{name}:reverse")], "c", &keys);
    let mut daemon = Daemon::start("", &body);
    site.download(&daemon, 8080);
    let stats = daemon.stats();
    let nf = find_nf(&stats, &format!("{name}.0")).clone();
    assert_eq!(nf.mode, "foreign");
    kill_process(Pid::from_raw(nf.pid.unwrap() as i32).unwrap(), Signal::KILL).unwrap();
    (site, daemon, nf)
}

#[test]
fn a_killed_program_is_left_out_of_a_chain_that_bypasses() {
    if !can(&["ip"]) {
        return;
    }
    let (site, mut daemon, nf) = mortal("bypassed", "bypass");
    daemon.wait("the hop is left out", |s| find_chain(s, "there").state == ChainState::Bypassing);
    assert_eq!(find_nf(&daemon.stats(), &nf.name).state, NfState::Failed);
    site.download(&daemon, 8080);
    daemon.wait("its namespace is gone", |_| !has_namespace(&nf.name));
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn a_killed_program_closes_a_chain_that_drops() {
    if !can(&["ip"]) {
        return;
    }
    let (site, mut daemon, nf) = mortal("dropped", "drop");
    daemon.wait("the chain is down", |s| find_chain(s, "there").state == ChainState::Down);
    site.is_refused(8080);
    let stats = daemon.wait("packets are refused at the entry", |s| find_port(s, "c").entry_drops > 0);
    assert_eq!(find_nf(&stats, &nf.name).state, NfState::Failed);
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn chains_that_stop_passing_a_program_under_load_lose_no_count() {
    if !can(&["ip"]) {
        return;
    }
    let through = |services: &[&str]| {
        port("load", "gen", "rate = 3000000\nflows = 16")
            + &port("all", "sink", "")
            + &bridge_of("leaves", "")
            + &chain("there", "load", services, "all", "")
    };
    let mut daemon = Daemon::start("", &through(&["leaves"]));
    for round in 0..40 {
        let before = find_chain(&daemon.stats(), "there").exit_packets;
        daemon.wait("packets leave the chain", |s| find_chain(s, "there").exit_packets > before + 1000);
        let services: &[&str] = if round % 2 == 0 { &[] } else { &["leaves"] };
        let config = head(daemon.folder(), "") + &through(services);
        daemon.client().apply(&Apply { config, file: None, dry_run: false }).unwrap();
    }
    daemon.silence("there", "load");
    daemon.wait_until_empty();
    let inside = |s: &Stats| {
        let chain = find_chain(s, "there");
        let at_the_entry = ["entry", "nf_down", "no_path", "policed"];
        let dropped: u64 = chain.drops.iter().filter(|(why, _)| !at_the_entry.contains(&why.as_str())).map(|(_, n)| n).sum();
        (chain.entry_packets + chain.originated_packets) as i64 - chain.exit_packets as i64 - dropped as i64
    };
    daemon.wait("all that entered has left or was counted", |s| inside(s) == 0);
    daemon.stop();
}

#[test]
fn an_instance_comes_and_goes_with_its_namespace() {
    if !can(&["ip"]) {
        return;
    }
    let (site, mut daemon, nf) = mortal("coming", "restart");
    daemon.wait("it is back", |s| find_nf(s, &nf.name).restarts == 1 && running(s, &nf.name));
    site.download(&daemon, 8080);
    daemon.client().add_nf("coming", None).unwrap();
    let stats = daemon.wait("another one runs", |s| s.nfs.len() == 2 && running(s, "coming.1"));
    assert!(has_namespace("coming.0") && has_namespace("coming.1"));
    let old = find_nf(&stats, "coming.0").pid.unwrap();
    daemon.client().remove_nf("coming.0").unwrap();
    daemon.wait("its namespace is gone", |_| !has_namespace("coming.0"));
    assert!(!is_alive(old));
    site.download(&daemon, 8080);
    daemon.wait_until_empty();
    daemon.stop();
    assert!(!has_namespace("coming.1"));
}

/// Its namespace is built, but it does not run yet: nothing reports its end.
#[test]
fn an_instance_that_is_removed_while_it_comes_goes() {
    if !can(&["ip"]) {
        return;
    }
    let folder = crate::support::open_folder();
    let built = folder.path().join("built");
    let touch = format!("touch {}", built.display());
    let body = port("in", "sink", "") + &foreign("hasty", &format!("setup = {:?}", [&BRIDGE[..], &[&touch]].concat()));
    let mut daemon = Daemon::start("", &body);
    for round in 1..=20 {
        let name = format!("hasty.{round}");
        daemon.wait("it runs", |s| s.nfs.iter().any(|nf| nf.state == NfState::Running));
        std::fs::remove_file(&built).unwrap();
        daemon.client().add_nf("hasty", None).unwrap();
        daemon.wait("its namespace is nearly there", |_| built.exists());
        // A little later each time.
        for _ in 0..round {
            daemon.stats();
        }
        daemon.client().remove_nf(&name).unwrap();
        daemon.wait("it is gone", |s| s.nfs.len() == 1 && !has_namespace(&name));
    }
    daemon.stop();
}

#[test]
fn packets_of_several_chains_come_back_to_their_own() {
    if !can(&["ip"]) {
        return;
    }
    const PACKETS: u64 = 3000;
    let mut body = bridge_of("shared", "") + &service("mine", "sluice-nf-bridge", "");
    for (name, net) in [("a", 1), ("b", 2)] {
        let keys = format!("rate = 3000\ncount = {PACKETS}\nflows = 16\nsrc = \"10.{net}.0.1\"\noverload = \"wait\"");
        body += &port(name, "gen", &keys);
        body += &port(&format!("{name}-sink"), "sink", "");
        body += &chain(&format!("{name}-chain"), name, &["shared", "mine"], &format!("{name}-sink"), "");
    }
    let mut daemon = Daemon::start("", &body);
    daemon.wait_for_all("a", "a-sink", PACKETS);
    daemon.wait_for_all("b", "b-sink", PACKETS);
    let (nf, of) = program(&daemon.stats(), "shared.0");
    assert_eq!((of.entered, of.not_back, of.missed), (2 * PACKETS, 0, 0), "{of:?}");
    assert_eq!(of.returned - of.originated, 2 * PACKETS, "{of:?}");
    assert_eq!(nf.rx_packets, 2 * PACKETS);
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn sockets_of_the_express_data_path_carry_a_download() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(None);
    site.serve(&[8080]);
    let body = site.ports()
        + &bridge_of("express", "via = \"af_xdp\"")
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["express", "bridge"], "s", "")
        + &chain("back", "s", &["bridge", "express:reverse"], "c", "");
    let mut daemon = Daemon::start("", &body);
    site.download(&daemon, 8080);
    let (_, of) = program(&daemon.stats(), "express.0");
    assert!(of.entered > 5000 && of.returned > 5000, "{of:?}");
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn packets_are_followed_and_timed_over_a_program_that_leaves_them_as_they_are() {
    if !can(&["ip"]) {
        return;
    }
    let body = port("g", "gen", "rate = 2000\nflows = 4")
        + &port("h", "gen", "rate = 2000")
        + &port("all", "sink", "")
        + &service("before", "sluice-nf-bridge", "")
        + &bridge_of("seen", "")
        + &service("after", "sluice-nf-bridge", "")
        + &foreign("eats", "exec = \"/bin/sleep\"\nargs = [\"100000\"]\ninside_ms = 100\ndrops = \"by-design\"")
        + &chain("c", "g", &["before", "seen", "after"], "all", "")
        + &chain("e", "h", &["eats"], "all", "");
    let mut daemon = Daemon::start("", &body);
    daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 100);
    let follow = |daemon: &Daemon, chain: &str| {
        let request = TraceRequest { chain: Some(chain.into()), count: 3, timeout_ms: 20_000, ..TraceRequest::default() };
        let trace = daemon.client().trace(&request).unwrap();
        assert!(!trace.timed_out && trace.packets.len() == 3, "{trace:?}");
        trace.packets
    };
    for packet in follow(&daemon, "c") {
        let places: Vec<&str> = packet.hops.iter().map(|hop| hop.place.as_str()).collect();
        let before = ["port g", "nf before.0", "nf before.0 done", "nf seen.0", "nf seen.0 went in"];
        let after = ["nf seen.0 came out", "nf after.0", "nf after.0 done", "port all"];
        assert_eq!(places, [&before[..], &after[..]].concat());
        assert_eq!(packet.outcome, "sent to all");
        assert!(packet.hops.is_sorted_by_key(|hop| hop.ns), "{packet:?}");
    }
    for packet in follow(&daemon, "e") {
        assert_eq!(packet.outcome, "went into eats.0, and none came out that is known as it");
    }
    daemon.wait("the chain's latency is measured", |s| find_chain(s, "c").latency_ns.count > 0);
    daemon.stop();
}

#[test]
fn a_slow_program_is_a_bottleneck_and_loses_nothing() {
    if !can(&["python3", "ip"]) {
        return;
    }
    const PACKETS: u64 = 20_000;
    // Sends each packet of one interface at the other, one at a time.
    let forward = "import socket as s\na, b = (s.socket(s.AF_PACKET, s.SOCK_RAW, s.htons(n)) for n in (3, 0))\n\
                   a.bind((\"in\", 3)); b.bind((\"out\", 0))\nwhile True: b.send(a.recv(9999))";
    let folder = crate::support::open_folder();
    let script = folder.path().join("forward.py");
    std::fs::write(&script, forward).unwrap();
    let body = port("fast", "gen", &format!("count = {PACKETS}\nflows = 8\nsize = 1000\noverload = \"wait\""))
        + &port("all", "sink", "")
        + &foreign(
            "slow",
            &format!("exec = \"python3\"\nargs = [{script:?}]\nready = [{LISTENS:?}]\nring = 256\ninside_ms = 20000"),
        )
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("c", "fast", &["slow", "bridge"], "all", "");
    let mut daemon = Daemon::start("", &body);
    // While it is stopped, its queue fills, then the hop's, and then the gate closes.
    let stats = daemon.wait("packets flow", |s| find_port(s, "all").tx_packets > 100);
    if let Some(group) = group_of(Path::new("/sys/fs/cgroup"), &format!("sluice-{}", stats.status.pid)) {
        // It has a weight as others do.
        daemon.wait("the kernel has its share", |s| {
            let nf = find_nf(s, "slow.0");
            nf.sched.share > 0.0 && has_weight(&group, nf)
        });
    } else {
        skip(format_args!("the daemon has no cgroup, and so there are no shares: {}", daemon.log()));
    }
    crate::support::signal(find_nf(&stats, "slow.0"), Signal::STOP);
    daemon.wait("the hop is a bottleneck", |s| find_chain(s, "c").throttled);
    crate::support::signal(find_nf(&stats, "slow.0"), Signal::CONT);
    daemon.wait_for_all("fast", "all", PACKETS);
    let (nf, of) = program(&daemon.stats(), "slow.0");
    assert_eq!((of.entered, of.returned, of.not_back, of.overruns), (PACKETS, PACKETS, 0, 0), "{of:?}");
    assert!(nf.sched.throttles > 0);
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn what_a_program_has_kept_is_shown_with_a_packet() {
    if !can(&["ip"]) {
        return;
    }
    let body = port("in", "gen", "rate = 2000\nflows = 8")
        + &port("none", "sink", "")
        + &foreign("keeper", "exec = \"/bin/sleep\"\nargs = [\"100000\"]\ninside_ms = 100")
        + &chain("kept", "in", &["keeper"], "none", "");
    let daemon = Daemon::start("", &body);
    let row = crate::drops::ask(&daemon, "not_back");
    let sample = &row["samples"][0];
    assert!(sample["headers"].as_str().unwrap().starts_with("udp 10.0.0."), "{row}");
    assert_eq!((&sample["nf"], &sample["chain"], &sample["bytes"]), (&"keeper.0".into(), &"kept".into(), &60.into()), "{row}");
    daemon.stop();
}

#[test]
fn a_program_that_eats_everything_closes_no_gate() {
    if !can(&["ip"]) {
        return;
    }
    const PACKETS: u64 = 20_000;
    // Nothing joins its interfaces.
    let body = port("all", "gen", &format!("rate = 20000\ncount = {PACKETS}\nflows = 8\noverload = \"wait\""))
        + &port("none", "sink", "")
        + &foreign("eater", "exec = \"/bin/sleep\"\nargs = [\"100000\"]\nring = 64\ninside_ms = 100")
        + &chain("eaten", "all", &["eater"], "none", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("all are eaten", |s| program(s, "eater.0").1.not_back == PACKETS);
    let (_, of) = program(&stats, "eater.0");
    assert_eq!((of.entered, of.returned, of.inside), (PACKETS, 0, 0));
    let eaten = find_chain(&stats, "eaten");
    assert_eq!((eaten.drops["not_back"], eaten.wasted), (PACKETS, PACKETS));
    daemon.wait_until_empty();
    daemon.stop();
}

#[test]
fn sniffers_see_what_passes_and_hold_nothing_up() {
    if !can(&["tcpdump", "ndpiReader", "ip"]) {
        return;
    }
    let site = Site::new(None);
    site.serve(&[8080]);
    let folder = crate::support::open_folder();
    let (capture, report) = (folder.path().join("all.pcap"), folder.path().join("ndpi.txt"));
    // ndpiReader reports on SIGINT. It has its own group: the daemon signals the whole group.
    let reader =
        format!("trap 'kill -INT $reader' TERM; setsid ndpiReader -i in > {} 2>&1 & reader=$!; wait; wait", report.display());
    let body = site.ports()
        + &foreign(
            "sniffer",
            &format!(
                "exec = \"tcpdump\"\nargs = [\"-i\", \"in\", \"-U\", \"-Z\", \"root\", \"-B\", \"16384\", \"-w\", {capture:?}]\n\
                 ready = [{LISTENS:?}]\ninterfaces = [\"in\"]\ndrops = \"by-design\""
            ),
        )
        + &foreign(
            "dpi",
            &format!(
                "exec = \"/bin/sh\"\nargs = [\"-c\", {reader:?}]\nready = [{LISTENS:?}]\ninterfaces = [\"in\"]\ndrops = \"by-design\""
            ),
        )
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["sniffer", "bridge", "dpi"], "s", "")
        + &chain("back", "s", &["dpi", "bridge", "sniffer"], "c", "");
    let mut daemon = Daemon::start("", &body);
    site.download(&daemon, 8080);
    let stats = daemon.wait("nothing is inside", |s| s.status.frames.in_use == 0);
    for name in ["sniffer.0", "dpi.0"] {
        let (nf, of) = program(&stats, name);
        assert!(of.by_design && of.entered > 5000, "{of:?}");
        assert_eq!(of.entered + of.missed, nf.rx_packets, "each is shown or missed");
    }
    let chains = ["there", "back"].map(|name| find_chain(&stats, name));
    assert!(chains.iter().all(|chain| chain.drops.is_empty()), "a tap loses nothing: {chains:#?}");
    daemon.stop();
    let bytes = std::fs::read(&capture).unwrap();
    let mut reader = pcap_file::pcap::PcapReader::new(&bytes[..]).unwrap();
    let mut payload = 0;
    while let Some(packet) = reader.next_packet() {
        payload += packet.unwrap().data.len();
    }
    assert!(payload > site.body.len() / 2, "{payload} bytes were captured");
    let said = std::fs::read_to_string(&report).unwrap();
    assert!(said.contains("TCP"), "{said}");
}

/// A proxy with an address on both sides, which listens on a port of the near one.
fn proxy_of(name: &str, listens_on: u16, keys: &str) -> String {
    let until = format!("until grep -q ':{listens_on:04X} ' /proc/net/tcp; do sleep 0.01; done");
    let addresses = "[\"ip addr add 10.0.0.1/24 dev in\", \"ip addr add 10.0.1.1/24 dev out\"]";
    foreign(name, &format!("drops = \"by-design\"\nready = [{until:?}]\nsetup = {addresses}\n{keys}"))
}

/// Checks that `fetch` gets the body through a proxy and a bridge; checks counters.
#[track_caller]
fn through_a_proxy(site: &Site, name: &str, service_of: &str, fetch: impl FnOnce() -> Result<Vec<u8>, String>) {
    site.serve(&[8080]);
    let body = site.ports()
        + service_of
        + &service("bridge", "sluice-nf-bridge", "")
        + &chain("there", "c", &["bridge", name], "s", "")
        + &chain("back", "s", &[&format!("{name}:reverse"), "bridge"], "c", "");
    let mut daemon = Daemon::start("", &body);
    let got = fetch().unwrap_or_else(|error| panic!("{error}\n{:#?}\n{}", daemon.stats(), daemon.log()));
    assert!(got == *site.body, "{} bytes came, and they differ", got.len());
    let stats = daemon.stats();
    let (_, of) = program(&stats, &format!("{name}.0"));
    assert!(of.entered > 1000 && of.returned > 1000, "{of:?}");
    assert!(!find_chain(&stats, "there").drops.contains_key("not_back"), "it eats by design");
    daemon.stop();
}

/// Downloads with curl on the client; checks the file's checksum.
fn curl(site: &Site, folder: &Path, arguments: &[&str]) -> Result<Vec<u8>, String> {
    let file = folder.join("download");
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--output"]).arg(&file).args(arguments);
    for name in ["http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"] {
        curl.env_remove(name);
    }
    let output = site.client.visit(|| curl.output()).map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(format!("curl: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)));
    }
    let served = folder.join("served");
    std::fs::write(&served, &*site.body).unwrap();
    let sums = Command::new("sha256sum").args([&file, &served]).output().unwrap();
    let sums = String::from_utf8_lossy(&sums.stdout);
    let sums: Vec<_> = sums.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(sums.len() == 2 && sums[0] == sums[1], "{sums:?}");
    Ok(std::fs::read(&file).unwrap())
}

#[test]
fn haproxy_answers_for_both_sides() {
    if !can(&["haproxy", "ip"]) {
        return;
    }
    let site = Site::new(None);
    let folder = crate::support::open_folder();
    let config = folder.path().join("haproxy.cfg");
    let text = "defaults\n mode tcp\n timeout connect 20s\n timeout client 60s\n timeout server 60s\n\
                frontend f\n bind 10.0.0.1:8080\n default_backend b\nbackend b\n server s 10.0.1.2:8080\n";
    std::fs::write(&config, text).unwrap();
    let keys = format!("exec = \"/usr/sbin/haproxy\"\nargs = [\"-db\", \"-f\", {config:?}]");
    through_a_proxy(&site, "haproxy", &proxy_of("haproxy", 8080, &keys), || {
        let connect = || {
            let server = SocketAddr::from(([10, 0, 0, 1], 8080));
            let mut connection = site.client.visit(|| TcpStream::connect_timeout(&server, CONNECT))?;
            connection.set_read_timeout(Some(CONNECT))?;
            let mut got = Vec::new();
            connection.read_to_end(&mut got)?;
            Ok::<_, std::io::Error>(got)
        };
        connect().map_err(|error| error.to_string())
    });
}

#[test]
fn nginx_passes_a_download_on() {
    if !can(&["nginx", "curl", "sha256sum", "ip"]) {
        return;
    }
    let mut site = Site::new(None);
    site.speak_http();
    let folder = crate::support::open_folder();
    let (config, dir) = (folder.path().join("nginx.conf"), folder.path().display());
    let kept = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"].map(|what| format!(" {what}_temp_path {dir}/{what};\n"));
    let text = format!(
        "daemon off;\nuser root;\npid {dir}/pid;\nerror_log {dir}/error.log;\nevents {{}}\nhttp {{\n access_log off;\n{}\
         server {{ listen 10.0.0.1:8080; location / {{ proxy_pass http://10.0.1.2:8080; proxy_max_temp_file_size 0; }} }}\n}}\n",
        kept.concat()
    );
    std::fs::write(&config, text).unwrap();
    let keys = format!("exec = \"/usr/sbin/nginx\"\nargs = [\"-e\", \"{dir}/error.log\", \"-c\", {config:?}]");
    through_a_proxy(&site, "nginx", &proxy_of("nginx", 8080, &keys), || curl(&site, folder.path(), &["http://10.0.0.1:8080/file"]));
}

#[test]
fn squid_fetches_for_its_clients() {
    if !can(&["squid", "curl", "sha256sum", "ip"]) {
        return;
    }
    let mut site = Site::new(None);
    site.speak_http();
    let folder = crate::support::open_folder();
    let (config, dir) = (folder.path().join("squid.conf"), folder.path().display());
    let text = format!(
        "http_port 10.0.0.1:3128\nhttp_access allow all\ncache deny all\nmemory_cache_shared off\npinger_enable off\n\
         visible_hostname proxy\nshutdown_lifetime 0 seconds\naccess_log none\nnetdb_filename none\n\
         cache_log {dir}/cache.log\npid_filename {dir}/pid\ncoredump_dir {dir}\n"
    );
    std::fs::write(&config, text).unwrap();
    // It refuses to run as root. Every Debian has this user for such programs.
    std::os::unix::fs::chown(folder.path(), Some(13), None).unwrap();
    let keys = format!(
        "exec = \"/usr/sbin/squid\"\nargs = [\"-N\", \"-n\", \"sluice{}\", \"-f\", {config:?}]\nuser = \"proxy\"",
        std::process::id()
    );
    through_a_proxy(&site, "squid", &proxy_of("squid", 3128, &keys), || {
        curl(&site, folder.path(), &["--proxy", "http://10.0.0.1:3128", "http://10.0.1.2:8080/file"])
    });
}

#[test]
fn what_is_wrong_with_a_program_is_reported_before_a_packet_moves() {
    if !can(&["ip"]) {
        return;
    }
    let body = |keys: &str| {
        port("g", "gen", "rate = 10") + &port("n", "sink", "") + &foreign("wrong", keys) + &chain("c", "g", &["wrong"], "n", "")
    };
    let name = Named(format!("sluice-e2e-taken-{}", std::process::id()));
    let taken = Netns::named(&name.0).unwrap();
    taken.visit(|| link::make_pair("in", "there", taken.fd(), 1500)).unwrap();
    let (in_taken, has_one) =
        (format!("setup = [\"true\"]\nnetns = {:?}", name.0), format!("namespace {} has an interface in already", name.0));
    let cases = [
        ("exec = \"/bin/false\"", "wrong.0 ended before it was given packets"),
        ("exec = \"/bin/no-such\"", "there is no program /bin/no-such"),
        ("setup = [\"echo half; exit 4\"]", "the command `echo half; exit 4` failed: exit status 4"),
        ("exec = \"/bin/sleep\"\nargs = [\"1000\"]\nready = [\"exit 5\"]", "the command `exit 5` failed: exit status 5"),
        (in_taken.as_str(), has_one.as_str()),
    ];
    for (keys, wanted) in cases {
        let folder = crate::support::open_folder();
        let output = refusal(folder.path(), &(crate::support::head(folder.path(), "") + &body(keys)));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(wanted), "{keys}: {said}");
        assert!(!has_namespace("wrong.0") && !folder.path().join("run").exists(), "{keys}: something is left\n{said}");
    }
    assert!(netns::path_of(&name.0).exists(), "what others made stays");
}

#[test]
fn what_a_killed_daemon_leaves_is_cleared_by_the_next() {
    if !can(&["ip"]) {
        return;
    }
    let body = port("g", "gen", "rate = 100")
        + &port("n", "sink", "")
        + &bridge_of("left", "teardown = [\"true\"]").replace("ip link set br0 up\"", "ip link set br0 up\", \"sleep 100001 &\"")
        + &chain("c", "g", &["left"], "n", "");
    let mut daemon = Daemon::start("", &body);
    let stats = daemon.wait("packets flow", |s| find_port(s, "n").tx_packets > 10);
    let left = program(&stats, "left.0").1.processes;
    assert_eq!(left.len(), 2, "the program, and what a command has left running");
    daemon.end(Signal::KILL);
    assert!(has_namespace("left.0") && left.iter().any(|pid| is_alive(*pid)));
    let mut daemon = Daemon::again(daemon.into_folder());
    assert!(daemon.log().contains("sluice-left.0"), "{}", daemon.log());
    left.into_iter().for_each(wait_until_gone);
    daemon.wait("packets flow again", |s| find_port(s, "n").tx_packets > 10);
    daemon.stop();
    assert!(!has_namespace("left.0"));
}

/// A router between client and server, with a program whose end ends the NF.
fn router(name: &str) -> String {
    let setup = [
        "ip addr add 10.0.0.1/24 dev in",
        "ip addr add 10.0.1.1/24 dev out",
        "echo 0 > /proc/sys/net/ipv6/conf/in/disable_ipv6",
        "ip addr add fd00::1/64 dev in nodad",
        "echo 1 > /proc/sys/net/ipv4/ip_forward",
    ];
    foreign(name, &format!("exec = \"/bin/sleep\"\nargs = [\"100000\"]\nsetup = {setup:?}\ninside_ms = 200"))
}

fn routed(site: &Site, name: &str) -> String {
    let keys = "on_failure = \"restart\"";
    site.ports()
        + &router(name)
        + &chain("there", "c", &[name], "s", keys)
        + &chain("back", "s", &[&format!("{name}:reverse")], "c", keys)
}

/// The MAC addresses of a program's interfaces.
fn addresses(netns: &str) -> Vec<String> {
    let ns = Netns::open(&netns::path_of(netns)).unwrap();
    let show = |name: &str| ns.visit(|| Command::new("ip").args(["-br", "link", "show", name]).output()).unwrap();
    ["in", "out"].map(|name| String::from_utf8_lossy(&show(name).stdout).split_whitespace().nth(2).unwrap_or("").to_string()).into()
}

#[test]
fn a_program_keeps_its_addresses_over_restarts_and_announces_them() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(Some(("10.0.0.1", "10.0.1.1")));
    site.serve(&[8080]);
    let mut daemon = Daemon::start("", &routed(&site, "mac"));
    site.reach(&daemon, 8080);
    let macs = addresses("sluice-mac.0");
    assert!(macs.iter().all(|mac| mac.len() == 17) && macs[0] != macs[1], "{macs:?}");
    for round in 1..=6 {
        let pid = find_nf(&daemon.stats(), "mac.0").pid.unwrap();
        // A neighbour with a stale MAC address learns the right one, for IPv4 and for IPv6.
        site.run_in_client(
            "ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:99 dev eth0 nud stale\n\
             echo 0 > /proc/sys/net/ipv6/conf/eth0/disable_ipv6\n\
             ip neigh replace fd00::1 lladdr 02:00:00:00:00:99 dev eth0 nud stale",
        );
        kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
        daemon.wait("it is back", |s| find_nf(s, "mac.0").restarts == round && running(s, "mac.0"));
        assert_eq!(addresses("sluice-mac.0"), macs);
        let knows = |address: &str| {
            let shown = site.in_client(|| Command::new("ip").args(["neigh", "show", address, "dev", "eth0"]).output()).unwrap();
            String::from_utf8_lossy(&shown.stdout).contains(&macs[0])
        };
        daemon.wait("its neighbour knows it", |_| knows("10.0.0.1") && knows("fd00::1"));
        site.reach(&daemon, 8080);
    }
    let folder = {
        let mut daemon = daemon;
        assert!(daemon.end(Signal::TERM).success());
        daemon.into_folder()
    };
    let daemon = Daemon::again(folder);
    assert_eq!(addresses("sluice-mac.0"), macs);
    site.reach(&daemon, 8080);
    daemon.stop();
}

#[test]
fn a_program_whose_interface_is_removed_is_started_again() {
    if !can(&["ip"]) {
        return;
    }
    let site = Site::new(Some(("10.0.0.1", "10.0.1.1")));
    site.serve(&[8080]);
    let mut daemon = Daemon::start("", &routed(&site, "cut"));
    site.reach(&daemon, 8080);
    let ns = Netns::open(&netns::path_of("sluice-cut.0")).unwrap();
    ns.visit(|| link::remove("in")).unwrap();
    daemon.wait_for_log("cut.0: its interface in was removed");
    daemon.wait("it is back", |s| find_nf(s, "cut.0").restarts == 1 && running(s, "cut.0"));
    site.reach(&daemon, 8080);
    drop(ns);
    daemon.stop();
}
