//! The network namespace of a foreign program, with its wires, cgroup and setup commands.
//!
//! # Approach
//! The far ends of the wires lie in a private namespace without a name. So they take no names on
//! the host, no other stack answers on them (the host's would answer ARP for its addresses), and
//! they end with the manager in any case, as do the program's interfaces. A killed manager leaves
//! the program's namespace, if it has a name, its cgroup, and its processes: all of this is in the
//! [record](sluice_host::record).
//!
//! Commands run through `/bin/sh -c`, in the namespace and the cgroup, one after another. Processes
//! that they leave belong to the program, and end with it.
//!
//! # Limits
//! Building a namespace takes milliseconds plus its commands, so it needs a thread of its own. An
//! existing namespace is used and left: of its processes, only those in the cgroup are known to be
//! the program's.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::backlog::Backlog;
use sluice_api::config::Via;
use sluice_dataplane::port::{Kinds, WireEnd, WireOptions};
use sluice_host::announce;
use sluice_host::cgroup::{Group, NfGroup, processes_below};
use sluice_host::link;
use sluice_host::netns::{self, Netns};
use sluice_host::process::{self, Exit, Identity, Proc};
use sluice_host::processes::{Refused, Target};
use sluice_host::spawn::{self, ProcessLimits, SpawnSpec};

/// Maximum time for one command.
const PATIENCE: Duration = Duration::from_secs(30);

/// Ethernet header and VLAN tag, which an MTU does not count.
const TAGGED: usize = 18;

#[derive(Debug, Clone)]
pub struct NamespacePlan {
    /// Name of the NF, for messages.
    pub name: String,
    pub netns: String,
    /// Whether an existing namespace of that name is used.
    pub may_exist: bool,
    /// How packets get to the program and back.
    pub via: Via,
    pub interfaces: Vec<String>,
    pub mtu: u32,
    /// Number of packets that wait behind each.
    pub slots: u32,
    /// Largest packet that fits in a frame, in bytes.
    pub room: usize,
    /// Commands before its program starts.
    pub setup: Vec<String>,
    /// Commands after its program has ended.
    pub teardown: Vec<String>,
    pub env: Vec<(OsString, OsString)>,
    pub core: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ForeignError {
    #[error(
        "{nf}: there is a network namespace {netns} already; if no other sluiced uses it, remove it (`ip netns del {netns}`), or write \
         netns = \"{netns}\" to use it as it is"
    )]
    NamespaceTaken { nf: String, netns: String },
    #[error(
        "{nf}: network namespace {netns} has an interface {interface} already; remove it (`ip -n {netns} link del {interface}`), or name \
         others in `interfaces`"
    )]
    InterfaceTaken { nf: String, netns: String, interface: String },
    #[error("{nf}: cannot {doing}: {source}{}", advice(source))]
    System { nf: String, doing: String, source: io::Error },
    #[error("{nf}: {what}")]
    Device { nf: String, what: String },
    #[error("{nf}: the command `{command}` {how}; run it by hand in the namespace (`ip netns exec NAME COMMAND`) to see why")]
    Command { nf: String, command: String, how: String },
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "; foreign services need root, with the capabilities CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN"
        }
        Some(libc::EOPNOTSUPP) => "; this kernel has no veth interfaces (CONFIG_VETH)",
        Some(libc::ENOMEM) => "; make `queue` smaller",
        _ => "",
    }
}

/// The ends of a namespace's wires, for the packet thread that feeds the program.
#[derive(Debug)]
pub struct Wires {
    /// One for each side; none if memory is shared ([`wire::device`](super::wire::device)).
    pub ends: Vec<Box<dyn WireEnd>>,
    pub backlog: Backlog,
}

/// A finished namespace. Drop does not remove it: see [`Namespace::clear`].
#[derive(Debug)]
pub struct Namespace {
    plan: NamespacePlan,
    ns: Arc<Netns>,
    /// The file of the namespace, if it was made here.
    made: Option<PathBuf>,
    /// Namespace of the wires' far ends, and a control socket there. Dropping it removes them.
    wires: Option<(Netns, OwnedFd)>,
    laid: Vec<String>,
    cgroup: Option<NfGroup>,
}

impl Namespace {
    /// Builds a namespace and runs its setup commands; a failure leaves nothing behind.
    ///
    /// `kinds` opens the far ends of the wires; `group` is the daemon's cgroup, if it has one.
    pub fn build(plan: NamespacePlan, kinds: &dyn Kinds, group: Option<&Group>) -> Result<(Self, Wires), ForeignError> {
        let failed = |doing: &str| {
            let (nf, doing) = (plan.name.clone(), doing.to_string());
            move |source| ForeignError::System { nf, doing, source }
        };
        let path = netns::path_of(&plan.netns);
        let (ns, made) = match Netns::named(&plan.netns) {
            Ok(ns) => (ns, Some(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && plan.may_exist => {
                (Netns::open(&path).map_err(failed("open its network namespace"))?, None)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(ForeignError::NamespaceTaken { nf: plan.name, netns: plan.netns });
            }
            Err(error) => return Err(failed("make its network namespace")(error)),
        };
        let mut namespace = Self { plan, ns: Arc::new(ns), made, wires: None, laid: Vec::new(), cgroup: None };
        match namespace.furnish(kinds, group) {
            Ok(wires) => Ok((namespace, wires)),
            Err(error) => {
                namespace.clear();
                Err(error)
            }
        }
    }

    fn furnish(&mut self, kinds: &dyn Kinds, group: Option<&Group>) -> Result<Wires, ForeignError> {
        match group.map(|group| group.add_nf(&self.plan.name, self.plan.core)) {
            Some(Ok(cgroup)) => self.cgroup = Some(cgroup),
            Some(Err(error)) => warn!("{} gets no weight from the kernel: {error}", self.plan.name),
            None => {}
        }
        if self.made.is_some() {
            // Many programs need the loopback of their namespace.
            let _ = self.ns.visit(|| link::up("lo"));
        }
        let mut ends = Vec::new();
        if !self.plan.via.is_device() {
            let made = Netns::private().and_then(|wires| Ok((wires.visit(link::control)?, wires)));
            let (control, wires) = made.map_err(self.failed("make a network namespace for its wires"))?;
            ends = self.lay(kinds, &wires)?;
            self.wires = Some((wires, control));
        }
        let interfaces = || self.laid.iter().map(|interface| link::index(interface)).collect::<io::Result<Vec<_>>>();
        let backlog =
            self.ns.visit(|| Backlog::here(interfaces()?)).map_err(self.failed("look at the sockets in its namespace"))?;
        self.run(&self.plan.setup)?;
        Ok(Wires { ends, backlog })
    }

    /// Makes the wires, and opens their far ends.
    fn lay(&mut self, kinds: &dyn Kinds, wires: &Netns) -> Result<Vec<Box<dyn WireEnd>>, ForeignError> {
        let plan = self.plan.clone();
        let mut queues = Vec::with_capacity(plan.interfaces.len());
        for (number, interface) in plan.interfaces.iter().enumerate() {
            let far = wire_name(number);
            let address = Some(address_of(&plan.name, interface));
            let pair = wires.visit(|| link::make_pair_with(&far, interface, self.ns.fd(), plan.mtu, address));
            pair.map_err(|error| match error.kind() {
                io::ErrorKind::AlreadyExists => {
                    ForeignError::InterfaceTaken { nf: plan.name.clone(), netns: plan.netns.clone(), interface: interface.clone() }
                }
                _ => self.failed(&format!("make interface {interface}"))(error),
            })?;
            self.laid.push(interface.clone());
            let prepare = |name: &str| link::plain(name).and_then(|()| link::up(name));
            self.ns.visit(|| prepare(interface)).map_err(self.failed(&format!("prepare interface {interface}")))?;
            let NamespacePlan { via, slots, room, .. } = plan;
            let options = WireOptions { interface: &far, via, slots, largest: plan.mtu as usize + TAGGED, room };
            let open = || {
                prepare(&far)?;
                let end = kinds.wire(&options);
                end.map_err(|(doing, error)| io::Error::new(error.kind(), format!("{doing} it: {error}")))
            };
            queues.push(wires.visit(open).map_err(self.failed(&format!("open the wire of interface {interface}")))?);
        }
        Ok(queues)
    }

    fn failed(&self, doing: &str) -> impl FnOnce(io::Error) -> ForeignError {
        let (nf, doing) = (self.plan.name.clone(), doing.to_string());
        move |source| ForeignError::System { nf, doing, source }
    }

    /// The first interface of the program that was removed, with its wire.
    pub fn missing(&self) -> Option<&str> {
        let (_, control) = self.wires.as_ref()?;
        let is_gone = |number: &usize| link::index_by(control, &wire_name(*number)).is_err();
        (0..self.laid.len()).find(is_gone).map(|number| &*self.laid[number])
    }

    /// Announces the program's addresses to its neighbours.
    ///
    /// These are all addresses in its namespace, or those of its own interfaces in an existing one.
    pub fn announce(&self) -> io::Result<()> {
        let is_its_own = |name: &str| self.made.is_some() || self.laid.iter().any(|laid| laid == name);
        self.ns.visit(|| announce::addresses(is_its_own))
    }

    pub fn netns(&self) -> &str {
        &self.plan.netns
    }

    /// The settings to start a program in this namespace.
    pub fn spec(&self, exec: &Path, args: &[String]) -> SpawnSpec {
        SpawnSpec {
            args: args.iter().map(Into::into).collect(),
            env: self.plan.env.clone(),
            cores: [self.plan.core].into(),
            limits: ProcessLimits { goes_first: true, ..ProcessLimits::default() },
            netns: Some(self.ns.clone()),
            cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().join("cgroup.procs")),
            ..SpawnSpec::new(self.plan.name.clone(), exec)
        }
    }

    /// Runs commands in the namespace, one after another, up to the first failure.
    ///
    /// # Errors
    /// [`ForeignError::Command`], [`ForeignError::System`].
    pub fn run(&self, commands: &[String]) -> Result<(), ForeignError> {
        for command in commands {
            let ended = |how: String| ForeignError::Command { nf: self.plan.name.clone(), command: command.clone(), how };
            let spec = self.spec(Path::new("/bin/sh"), &["-c".into(), command.clone()]);
            let shell = spawn::spawn(&spec).map_err(|error| ended(format!("could not be run: {error}")))?;
            let over = process::wait_readable(shell.pidfd.as_fd(), Some(PATIENCE.as_millis() as u64)).unwrap_or(false);
            if !over {
                let _ = process::kill_group(shell.pidfd.as_fd());
            }
            let exit = process::wait(shell.pidfd.as_fd()).map_err(|error| ended(format!("could not be waited for: {error}")))?;
            match exit {
                _ if !over => return Err(ended(format!("was stopped after {} s", PATIENCE.as_secs()))),
                Exit::Code(0) => {}
                exit => return Err(ended(format!("failed: {exit}"))),
            }
        }
        Ok(())
    }

    /// The program's processes, including all that it and its commands have started.
    pub fn members(&self) -> Vec<Pid> {
        self.processes().members()
    }

    /// Finds the program's processes, for another thread.
    pub fn processes(&self) -> ProcessSet {
        let ns = self.made.is_some().then(|| self.ns.clone());
        ProcessSet { cgroup: self.cgroup.as_ref().map(|cgroup| cgroup.path().to_path_buf()), ns, only: None }
    }

    pub fn cgroup(&self) -> Option<&NfGroup> {
        self.cgroup.as_ref()
    }

    /// Ends what is left of the program, runs its teardown commands, and removes what was made.
    pub fn clear(mut self) {
        let name = self.plan.name.clone();
        let report = |what: &str, error: &dyn std::fmt::Display| warn!("{name}: {what}: {error}");
        let end = |this: &Self| {
            if let Err(error) = this.kill() {
                report("what it has started does not end", &error);
            }
        };
        end(&self);
        if let Err(error) = self.run(&self.plan.teardown) {
            warn!("{error}");
        }
        // Processes that the commands have left.
        end(&self);
        drop(self.wires.take());
        if self.made.is_none() {
            // The wires disappear shortly after their namespace; the names must be free at once.
            let remove = || {
                self.laid.iter().for_each(|interface| drop(link::remove(interface)));
                Ok::<(), io::Error>(())
            };
            let _ = self.ns.visit(remove);
        }
        if let Some(cgroup) = self.cgroup.take()
            && let Err(error) = cgroup.remove()
        {
            report("its cgroup is left", &error);
        }
        if let Some(path) = self.made.take()
            && let Err(error) = netns::unname(&path)
        {
            report("its network namespace is left", &error);
        }
    }

    fn kill(&self) -> io::Result<()> {
        let proc = Proc::default();
        if self.made.is_some() {
            self.ns.kill_members(&proc)?;
        }
        // Repeated until there is none: a process that was being made is found in the next round.
        loop {
            let members = self.members();
            if members.is_empty() {
                return Ok(());
            }
            for pid in members {
                let Some(identity) = proc.identity(pid) else { continue };
                let Ok(Some(pidfd)) = identity.open(&proc) else { continue };
                if self.members().contains(&pid) {
                    process::send_signal(pidfd.as_fd(), Signal::KILL)?;
                    if !process::wait_readable(pidfd.as_fd(), Some(PATIENCE.as_millis() as u64))? {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
            }
        }
    }
}

fn wire_name(number: usize) -> String {
    format!("wire{number}")
}

/// The MAC address of a program's interface.
///
/// It is derived from the names, so that it is the same after each start and neighbours keep their
/// entries, and from the host, so that no other host has it.
fn address_of(nf: &str, interface: &str) -> [u8; 6] {
    static HOST: LazyLock<String> = LazyLock::new(|| {
        let known = |file| std::fs::read_to_string(file).ok().map(|text| text.trim().to_string()).filter(|text| !text.is_empty());
        known("/etc/machine-id").or_else(|| known("/proc/sys/kernel/hostname")).unwrap_or_default()
    });
    link::address_of(&format!("{} {nf} {interface}", *HOST))
}

/// Finds the processes of a program: those in or below its cgroup, or else in its namespace.
#[derive(Debug, Clone, Default)]
pub struct ProcessSet {
    cgroup: Option<PathBuf>,
    ns: Option<Arc<Netns>>,
    only: Option<Identity>,
}

impl ProcessSet {
    /// A process started elsewhere, with its descendants.
    pub fn only(identity: Identity) -> Self {
        Self { only: Some(identity), ..Self::default() }
    }

    /// All processes in or below a cgroup, which must hold no others.
    pub fn in_cgroup(folder: &Path) -> Self {
        Self { cgroup: Some(folder.into()), ..Self::default() }
    }

    /// These of its processes as a target, which stays in their cgroup and so keeps its weight.
    ///
    /// # Errors
    /// As [`Target::of_pids`].
    pub fn target(&self, proc: &Proc, name: &str, pids: &[i32]) -> Result<Target, Refused> {
        let target = Target::of_pids(proc, name, pids)?;
        Ok(match &self.cgroup {
            Some(folder) => target.in_cgroup(folder),
            None => target,
        })
    }

    pub fn members(&self) -> Vec<Pid> {
        let proc = Proc::default();
        if let Some(only) = &self.only {
            let pid = Pid::from_raw(only.pid).filter(|pid| proc.identity(*pid).as_ref() == Some(only));
            return pid.into_iter().flat_map(|pid| std::iter::once(pid).chain(proc.descendants(pid))).collect();
        }
        match (&self.cgroup, &self.ns) {
            (Some(folder), _) => {
                let mut pids = Vec::new();
                // An unreadable cgroup counts as far as it was read.
                let _ = processes_below(folder, &mut pids);
                let pids = pids.into_iter().filter_map(Pid::from_raw);
                // Skips ended, uncollected ones.
                pids.filter(|pid| proc.identity(*pid).is_some()).collect()
            }
            (None, Some(ns)) => ns.members(&proc).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skip::skip;
    use sluice_dataplane::fake::cache;
    use sluice_dataplane::frame::Packet;

    fn plan(name: &str) -> NamespacePlan {
        NamespacePlan {
            name: format!("{name}.0"),
            netns: format!("sluice-test-{}-{name}", std::process::id()),
            may_exist: false,
            via: Via::AfPacket,
            interfaces: vec!["in".into(), "out".into()],
            mtu: 1500,
            slots: 64,
            room: 2112,
            setup: Vec::new(),
            teardown: Vec::new(),
            env: std::env::vars_os().filter(|(name, _)| name == "PATH").collect(),
            core: 0,
        }
    }

    #[test]
    fn a_bridge_of_the_kernel_passes_packets_from_wire_to_wire() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let bridge =
            ["ip link add br0 type bridge", "ip link set in master br0", "ip link set out master br0", "ip link set br0 up"];
        let plan = NamespacePlan { setup: bridge.map(String::from).into(), ..plan("bridge") };
        let file = netns::path_of(&plan.netns);
        let (namespace, Wires { ends: mut queues, .. }) = Namespace::build(plan, &sluice_ports::All::default(), None).unwrap();
        assert!(file.exists());
        let mut frames = cache(512);
        let builder = etherparse::PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4([10, 0, 0, 1], [10, 0, 1, 1], 9).udp(1000, 2000);
        let mut bytes = Vec::new();
        builder.write(&mut bytes, b"through the bridge").unwrap();
        let until = std::time::Instant::now() + Duration::from_secs(20);
        let mut out = [Packet::default(); 8];
        // The bridge forwards after it has seen its ports come up.
        loop {
            let mut frame = [0];
            frames.alloc(&mut frame);
            let packet = Packet::fresh(frame[0], bytes.len() as u16);
            assert!(frames.arena().write(packet.frame, packet.offset, &bytes));
            assert_eq!(queues[0].tx_burst(&[packet], &mut frames, 0), 1);
            let n = queues[1].rx_burst(&mut out, &mut frames, 0);
            if n > 0 {
                let mut got = vec![0; out[0].len.into()];
                frames.arena().read(out[0].frame, out[0].offset, &mut got);
                assert_eq!(got, bytes);
                break;
            }
            assert!(std::time::Instant::now() < until, "nothing came through");
        }
        namespace.clear();
        assert!(!file.exists());
    }

    #[test]
    fn what_commands_leave_running_is_found_and_ends_with_the_namespace() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let folder = tempfile::tempdir().unwrap();
        let (left, after) = (folder.path().join("left"), folder.path().join("after"));
        let leave = format!("sleep 1000 & echo $! > {}", left.display());
        let plan = NamespacePlan { setup: vec![leave], teardown: vec![format!("touch {}", after.display())], ..plan("left") };
        let (namespace, _queues) = Namespace::build(plan, &sluice_ports::All::default(), None).unwrap();
        let pid: i32 = std::fs::read_to_string(left).unwrap().trim().parse().unwrap();
        let pid = Pid::from_raw(pid).unwrap();
        assert_eq!(namespace.members(), [pid]);
        namespace.clear();
        assert!(after.exists(), "the commands for afterwards were run");
        assert!(Proc::default().identity(pid).is_none());
    }

    #[test]
    fn what_fails_is_reported_and_leaves_nothing() {
        if !rustix::process::geteuid().is_root() {
            return skip("only root can make network namespaces");
        }
        let failing = NamespacePlan { setup: vec!["exit 3".into()], ..plan("failing") };
        let file = netns::path_of(&failing.netns);
        let said = Namespace::build(failing.clone(), &sluice_ports::All::default(), None).unwrap_err().to_string();
        assert!(said.contains("failing.0: the command `exit 3` failed") && said.contains('3'), "{said}");
        assert!(!file.exists());
        // A foreign namespace is used if that is wanted, and left.
        let theirs = Netns::named(&failing.netns).unwrap();
        let said = Namespace::build(failing.clone(), &sluice_ports::All::default(), None).unwrap_err().to_string();
        assert!(said.contains("already") && said.contains("ip netns del"), "{said}");
        let shared = NamespacePlan {
            may_exist: true,
            setup: vec!["ip link add taken type dummy || ip link add taken type bridge".into()],
            ..failing
        };
        let (namespace, _queues) = Namespace::build(shared.clone(), &sluice_ports::All::default(), None).unwrap();
        let taken = NamespacePlan { interfaces: vec!["taken".into()], ..shared.clone() };
        let said = Namespace::build(taken, &sluice_ports::All::default(), None).unwrap_err().to_string();
        assert!(said.contains("interface taken already"), "{said}");
        assert!(theirs.visit(|| link::index("taken")).is_ok(), "it is not ours");
        namespace.clear();
        assert!(file.exists(), "it is not ours");
        let again = NamespacePlan { setup: Vec::new(), ..shared };
        Namespace::build(again, &sluice_ports::All::default(), None).unwrap().0.clear();
        netns::unname(&file).unwrap();
    }
}
