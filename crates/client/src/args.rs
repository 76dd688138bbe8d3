//! The command line of `sluice`, with its help.

mod upgrade;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use sluice_api::DEFAULT_SOCKET;
use sluice_api::config::{OnFailure, Run};
use sluice_api::model::EventKind;
use sluice_api::{drops, nearest};
use sluice_cli::lab::LabCommand;
use sluice_cli::top::Top;
use sluice_cli::usage::{Json, seconds, seconds_within};

pub use upgrade::{Allowed, NfUpgrade};

/// See and change what a running sluiced does, and check configurations before it does it.
#[derive(Debug, Parser)]
#[command(
    name = "sluice",
    version,
    propagate_version = true,
    after_help = "\
Words:
  port      where packets enter and leave        chain     an ordered list of services and an egress port
  service   a kind of NF, such as \"fw\"           rule      says which packets take which chain; the first match wins
  NF        one process of a service: \"fw.0\"

First steps:
  sluice init sluice.toml           write a first configuration
  sluice check sluice.toml          find mistakes before anything starts
  sluiced sluice.toml               start the daemon (in another terminal)
  sluice status                     is it there, and how is it?
  sluice top                        watch packets flow
  sluice trace --count 3            follow three packets, hop by hop

The commands slo, plan and top are of one server; with --cluster they are of a Kubernetes cluster.

Exit codes: 0 done, 1 failed or refused, 2 wrong usage; of `sluice status` also 3, see there."
)]
pub struct Cli {
    /// Control socket of the daemon
    #[arg(long, global = true, value_name = "PATH", env = "SLUICE_CONTROL", default_value = DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write a first configuration
    #[command(after_help = crate::init::HELP)]
    Init(crate::init::InitArgs),
    /// Find mistakes in a configuration; nothing is started
    #[command(after_help = "\
Examples:
  sluice check sluice.toml             all mistakes, each with its line and what to do
  sluice check --no-host edge.toml     leave out what depends on this host (cores, files, permissions)
  sluice check --strict sluice.toml    fail on warnings too, as before a configuration is rolled out
  sluice check --explain | less        every key that a configuration can have")]
    Check(Check),
    /// Show the daemon's health: healthy, or what does not work and since when
    #[command(after_help = "\
Examples:
  sluice status                           the verdict first
  sluice status --json | jq .health       for scripts
  sluice status > /dev/null || echo help  a check of monitoring

It is degraded while a chain bypasses a service or takes no packets because no NF of a service runs, and while an NF has failed or has
ended three times in a row. A chain that is throttled, which is what overload does, is healthy. A generator that cannot keep its rate is
a warning.

Exit codes: 0 healthy, 1 there is no daemon or it does not answer, 2 wrong usage, 3 degraded.")]
    Status(Json),
    /// Watch packets flow: rates, queues, CPU, drops by reason
    #[command(after_help = "\
Keys: q quit · s sort NFs by the next column · p pause · ↑ ↓ scroll the NFs · ? show these
Columns of NFs: IN, OUT and DROPS are packets per second; QUEUE is how full the NF's rings are; CPU is the share of one core
that it used, SHARE the one that it was given, LOAD the cores that it asks for: the larger of its packets times what one costs and of
what it used, waking and switching with it (of one that polls, its packets alone); BURST and P99 are the time that it takes
for a burst (half and 99 of 100 are faster), COST the one for a packet. Its STATE is \"throttled\" while chains are refused
because of it, and \"held\" while its packets would only wait further on. Columns of chains: WASTED are the packets per second
that were dropped after an NF had worked on them. A generator that cannot keep its rate is \"behind\" in KIND. A narrow
terminal leaves some columns out.
Written to a pipe or a file, it is one snapshot.

Of a Kubernetes cluster (--cluster) it shows nodes and how they keep SLOs, at each change:
  sluice top --cluster -A")]
    Top(Top),
    /// Print what has happened: deaths of NFs and why, restarts, upgrades, changes, decisions about
    /// shares of cores
    #[command(after_help = "\
Examples:
  sluice events                         what has happened lately, oldest first, in seconds before now
  sluice events --kind death,restart    some kinds alone
  sluice events --follow                and go on, until Ctrl-C, in seconds from now
  sluice events --follow --nf ids.0     of one NF
  sluice events --json | jq '.[] | select(.event == \"death\")'

Kinds: death, restart, upgrade, move, apply, add, remove; chain (it refuses, bypasses, drops or takes packets again); throttle (chains
refused and let in again because of an NF) and share (of a core), of which a line sums up a tenth of a second; promise (an SLO was
broken), timeline (the flight recorder wrote a file) and priority (an NF asked for another). The daemon keeps the last 1,024 of each
kind. Times of day are UTC.")]
    Events(EventsArgs),
    /// NFs: processes of a service
    #[command(subcommand, visible_alias = "nfs")]
    Nf(NfCommand),
    /// Services: kinds of NF
    #[command(subcommand, visible_alias = "services")]
    Service(ServiceCommand),
    /// Chains: ordered lists of services
    #[command(subcommand, visible_alias = "chains")]
    Chain(ChainCommand),
    /// Rules: which packets take which chain
    #[command(subcommand, visible_alias = "rules")]
    Rule(RuleCommand),
    /// Ports: where packets enter and leave
    #[command(subcommand, visible_alias = "ports")]
    Port(PortCommand),
    /// Tenants: whose packets lie in whose memory
    #[command(subcommand, visible_alias = "tenants")]
    Tenant(TenantCommand),
    /// Print every counter
    #[command(after_help = "\
Examples:
  sluice stats                                   tables
  sluice stats --json | jq .drops                for scripts
  sluice stats --json --watch > run.jsonl        one line each second, until Ctrl-C
  sluice stats --prometheus                      what a Prometheus scraper gets at /v1/metrics")]
    Stats(StatsArgs),
    /// Switch the running daemon to another configuration
    #[command(after_help = "\
Examples:
  sluice apply --dry-run sluice.toml    what would change: old and new values
  sluice apply sluice.toml              show that, ask, and change it; what is new in services is tried out first, and
                                        if that does not work, nothing has changed
  sluice apply --yes sluice.toml        ask nothing, as where there is no terminal
  sluice undo                           go back")]
    Apply(ApplyArgs),
    /// Print the configuration in force, as TOML
    #[command(after_help = "\
Examples:
  sluice config > now.toml         to keep it: with what was set, and what single commands have added (nf add, rule add, port add)
  sluice apply -n sluice.toml      how the daemon differs from a file

Paths are absolute; comments of the file that it came from, and keys that have their default, are not in it. It may have secrets, in the
environments of services.")]
    Config,
    /// Set keys of the running configuration
    #[command(after_help = "\
Examples:
  sluice set service ids priority=2              an object has a name
  sluice set sched high_watermark=70 ecn=false   a section that stands once has none
  sluice set port load rate=1e6 --save           and in the daemon's configuration file
  sluice set service ids pool.max=128            a key of a nested table
  sluice set service ids memory=                 back to its default

What is set is checked as a whole configuration is, and put in force as by an apply. Without --save it holds until the daemon ends or
another configuration is applied. `sluice check --explain` lists the keys. These change while packets move, and replace nothing: priority
of services and rules; rate of generators; keys of pools but ring and class; cores and number of instances; log_level and latency_sample
of manager; ecn, the watermarks, queueing_us, weight_every_ms, weight_margin_percent, min_share_percent, tenants, rr_slice_ms, and class
between other and batch, of sched; all keys of flow_log but flows, and of recorder. Other keys of services and ports replace the object;
those of sections that stand once need a restart, and are refused.")]
    Set(SetArgs),
    /// Go back to the configuration before the last apply or set
    #[command(after_help = "\
Examples:
  sluice undo              go back by one; once more: by two
  sluice undo --list       the last ten that are kept, with what replaced each
  sluice undo --to 7       back to one of these
  sluice undo --dry-run    what that would change

The daemon keeps them in manager.history, over its restarts. Those that it has gone back to or behind are kept no more. What was added and
removed by single commands since then (sluice nf add, sluice rule add) is undone, too.")]
    Undo(UndoArgs),
    /// Follow packets on their way, hop by hop
    #[command(after_help = "\
Examples:
  sluice trace                          ten packets of any chain, or of none
  sluice trace --chain web --count 3    three packets of one chain
  sluice trace --rule ssh --timeout 60  wait a minute for packets of a rule
  sluice trace --port lan --filter 'host 10.0.0.7 and udp port 53'

While a trace waits for a rule, a port or a filter, each packet is looked at. `man pcap-filter` describes filters; `sluice capture
--hop drop` and `sluice drops` show dropped packets alone.")]
    Trace(TraceArgs),
    /// Show what is dropped: each reason with its rate, where, a packet, and what to do about it
    #[command(after_help = "\
Examples:
  sluice drops                            what is dropped within two seconds
  sluice drops --chain web --seconds 60   of one chain, within a minute
  sluice drops --reason no_rule --watch   one reason, again and again, until Ctrl-C
  sluice drops --json | jq '.reasons[] | {reason, per_s}'

A packet is shown of what is dropped meanwhile: its headers, its chain and path, and the NF or the port where it was dropped. The line of
headers can be given to `sluice why`.")]
    Drops(DropsArgs),
    /// Say what a packet would meet: rule, chain, path, and what would drop or hold it now
    #[command(after_help = "\
Examples:
  sluice why 'tcp 10.0.0.1:1234 > 10.0.1.2:80 on lan'
  sluice why udp [2001:db8::1]:53 to [2001:db8::2]:99 --port lan
  sluice why 'vlan 5 icmp 10.0.0.1 > 10.0.1.2 dscp 46 bytes 1400 on lan'
  sluice why --port lan 0200000000010200000000020800450000280000000040060000
  sluice why --port lan --pcap drops.pcapng --number 3
  sluice why --flow 1234                    if the flow with this number came again

Without a packet: the packet thread that would receive it is asked, and nothing is counted or kept. What happens behind the entry is not
foreseen, as an NF's verdict.")]
    Why(WhyArgs),
    /// Capture packets at hops of their way: pcapng, for Wireshark and others
    #[command(after_help = "\
Examples:
  sluice capture --chain web -w web.pcapng           every hop of a chain, until Ctrl-C
  sluice capture --hop nat.0:in --hop nat.0:out -w - | wireshark -k -i -
  sluice capture --hop port:lan --filter 'tcp port 80 and net 10.0.0.0/8' --seconds 10 -w lan.pcapng
  sluice capture --hop drop --count 100 -w d.pcapng  what is dropped, with the reason in its comment

Each hop is an interface of the file. A packet's comment has its chain, the NFs of its path, the NF of the hop, and why it was dropped.
No packet waits for a capture: what is not written in time is missed, and counted (after Ctrl-C, up to the last second).
`man pcap-filter` describes filters.")]
    Capture(crate::capture::CaptureArgs),
    /// Send a capture through NFs, and print what becomes of its packets; no daemon is needed
    #[command(after_help = crate::replay::HELP)]
    Replay(crate::replay::ReplayArgs),
    /// Flows: what each had, where it went, how it ended
    #[command(after_help = "\
Examples:
  sluice flows                             those with the latest packets, live and ended
  sluice flows --top bytes --live -n 10    the ten that have sent most
  sluice flows --verdict dropped           with packets that were dropped, and why
  sluice flows --follow --chain web        a line for each flow of a chain that ends, until Ctrl-C
  sluice flows --filter 'tcp port 443 and net 10.0.0.0/8' --json
  sluice flows --number 1234               the one that an exemplar of /metrics names

A flow is one direction of a connection. Flows are metered from the first question on, and until a minute after the last one; with a file
or a collector in [flow_log] of the configuration, at all times. Packets that a port drops are in no flow: see `sluice drops`.
`man pcap-filter` describes filters.")]
    Flows(crate::flows::FlowsArgs),
    /// Record a timeline: which NF had which core, queues, throttles, wakes, drops; for Perfetto
    #[command(after_help = "\
Examples:
  sluice record --seconds 5 -w trace.pftrace    open it at https://ui.perfetto.dev; it stays in the browser
  sluice record --rate 20000 --seconds 1 -w t.pftrace
  sluice record --list                          what the flight recorder has written when something went wrong
  sluice record --last -w last.pftrace          the last one of these

The daemon samples: what begins and ends between two samples shows in counts alone. More samples show more, and cost more.
The flight recorder is part of the configuration (recorder.memory_mib).")]
    Record(crate::record::RecordArgs),
    /// Answer Wireshark, which lists the hops as interfaces (extcap)
    #[command(hide = true)]
    Extcap(crate::capture::ExtcapArgs),
    /// A command that `sluice-lab` runs, or `sluice-cluster`
    #[command(flatten)]
    Lab(LabCommand),
    /// Show what this host has for each feature, what is missing, and what to do (no daemon needed)
    #[command(after_help = crate::doctor::HELP)]
    Doctor(crate::doctor::DoctorArgs),
    /// Write completions for a shell
    #[command(after_help = "\
Examples:
  sluice completions bash > /etc/bash_completion.d/sluice
  sluice completions zsh > \"${fpath[1]}/_sluice\"
  sluice completions fish > ~/.config/fish/completions/sluice.fish")]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write a man page for each command into a folder, for packages
    #[command(hide = true)]
    Man {
        /// The folder
        folder: PathBuf,
    },
    /// Stop the daemon: packets inside leave first
    Stop(Stop),
}

#[derive(Debug, Args)]
pub struct Check {
    /// The configuration
    #[arg(required_unless_present = "explain")]
    pub config: Option<PathBuf>,
    /// Print every key that a configuration can have, with its type, default and meaning
    #[arg(long)]
    pub explain: bool,
    /// Check the text alone, not what this host has: cores, files, programs, permissions, hugepages
    #[arg(long)]
    pub no_host: bool,
    /// Fail if there are warnings, as if they were errors
    #[arg(long)]
    pub strict: bool,
}

#[derive(Debug, Subcommand)]
pub enum NfCommand {
    /// List NFs
    List(Json),
    /// Show one NF: its state, and how it died last
    #[command(after_help = "Example: sluice nf show ids.0")]
    Show {
        /// The NF, such as ids.0
        name: String,
        /// Print JSON, as the API gives it
        #[arg(long)]
        json: bool,
    },
    /// Start one more instance of a service
    #[command(after_help = "Example: sluice nf add ids --core 2")]
    Add {
        /// The service
        service: String,
        /// Its core; by default the next of the service's
        #[arg(long, value_name = "N")]
        core: Option<usize>,
    },
    /// Stop an instance; packets inside come back first
    #[command(
        visible_alias = "rm",
        after_help = "\
Example: sluice nf remove ids.1

The last instance of a service that an open chain passes is not removed without --force: the chain's packets would be dropped, or
go on without it where the chain says on_failure = \"bypass\"."
    )]
    Remove {
        /// The NF, such as ids.1
        name: String,
        /// Even if it is the last instance of a service that an open chain passes
        #[arg(long)]
        force: bool,
    },
    /// Replace this instance by one on another core, while packets flow
    #[command(after_help = "\
Example: sluice nf move ids.1 --core 2

The new instance is started beside the old one, and takes its place when it is ready: no packet is lost, and none overtakes another. What
the old one knew of its flows is not handed over. Foreign NFs, those that attach, and those with a flow to themselves stay where they are.")]
    Move {
        /// The NF, such as ids.1
        name: String,
        /// Its new core
        #[arg(long, value_name = "N")]
        core: usize,
    },
    /// Switch to another version of a service's program, while packets flow
    #[command(after_help = "\
Examples:
  sluice nf upgrade ids --exec /opt/nfs/ids-2
  sluice nf upgrade fw --exec ./firewall --args --rules /etc/sluice/rules
  sluice nf upgrade ids --exec ids-2 --canary 1% --for 60s   on a part of new flows first; a fault brings them back
  sluice nf upgrade ids --exec ids-2 --shadow --for 60s      on copies first, whose verdicts and bytes are compared
  sluice nf upgrade ids --abort                              end one of these

The new version is started beside the old one. When it is ready, each instance hands its place over: no packet is lost, and none
overtakes another. In a pool new flows go to new members, and old ones leave with their flows. A version that does not work changes
nothing. It stays until the daemon ends or another configuration is applied: write it into the file too, or the next
`sluice apply` goes back to the one that stands there.

With --canary one instance of the new version gets that part of new flows. Its flows go back if it ends or breaks the rules, drops
more than the old version by --max-drops, takes longer for bursts than --max-burst, gets too few packets to be compared, or if an SLO
near it is violated meanwhile. Nothing is lost then, but for the packets in the ring of one that crashes. Else its version takes over
after --for.

With --shadow it gets copies of the packets of one instance. What it returns goes nowhere: its verdicts, bytes and order are
compared with those of that instance, and the first packets that differ are printed. Its version takes over after --for if no more
packets differ than --allow says. It uses time that others of its core leave, unless --core gives it another one.")]
    Upgrade(NfUpgrade),
}

#[derive(Debug, Subcommand)]
pub enum ServiceCommand {
    /// List services
    List(Json),
    /// Add the services of a file, and start their instances
    #[command(after_help = "\
The file holds [[service]] sections as a configuration does, or the keys of one service. `-` reads standard input:
  printf 'name = \"ids\"\\nexec = \"payload-search\"\\ncores = [1]\\n' | sluice service add -")]
    Add {
        /// The file
        file: PathBuf,
    },
    /// Remove a service that no chain passes, and stop its instances
    #[command(visible_alias = "rm")]
    Remove {
        /// The service
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum ChainCommand {
    /// List chains
    List(Json),
    /// Add a chain
    #[command(after_help = "\
Examples:
  sluice chain add web fw nat --egress out
  sluice chain add scrubbed ids --egress out --on-failure bypass
  sluice chain add fast fw nat --egress out --run fused
  sluice chain add most ids fw nat --egress out --run fused --fuse fw,nat")]
    Add {
        /// Its name
        name: String,
        /// Its services, in order; with none, packets go straight to the egress port
        services: Vec<String>,
        /// Port where packets leave
        #[arg(long, value_name = "PORT")]
        egress: String,
        /// What happens when an NF of the chain dies
        #[arg(long, value_name = "WHAT", value_enum, default_value_t = Failure::Restart)]
        on_failure: Failure,
        /// How its NFs run
        #[arg(long, value_name = "HOW", value_enum, default_value_t = How::Isolated)]
        run: How,
        /// Those of its services, neighbours, that a fused chain runs in one process [default: all]
        #[arg(long, value_name = "SERVICE,...", value_delimiter = ',')]
        fuse: Vec<String>,
    },
    /// Remove a chain that no rule names
    #[command(visible_alias = "rm")]
    Remove {
        /// The chain
        name: String,
    },
}

/// Reaction of a chain when an NF has died and no other instance of its service is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Failure {
    /// Its packets are dropped at the entry until an instance is back
    Drop,
    /// The hop is left out until an instance is back
    Bypass,
    /// The NF is started again, with growing pauses
    Restart,
}

impl From<Failure> for OnFailure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Drop => Self::Drop,
            Failure::Bypass => Self::Bypass,
            Failure::Restart => Self::Restart,
        }
    }
}

/// How the NFs of a chain run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum How {
    /// Each is a process of its own
    Isolated,
    /// All are parts of one process
    Fused,
    /// The packet threads run all of them; the services need trusted = true
    Inline,
}

impl From<How> for Run {
    fn from(how: How) -> Self {
        match how {
            How::Isolated => Self::Isolated,
            How::Fused => Self::Fused,
            How::Inline => Self::Inline,
        }
    }
}

#[derive(Debug, Subcommand)]
pub enum TenantCommand {
    /// List tenants with their packet memory: its frames, and what was copied there
    List(Json),
    /// Give a tenant fresh packet memory and start its NFs again; other tenants are not affected
    Renew {
        /// The tenant; `-` is that of services without one
        #[arg(allow_hyphen_values = true)]
        name: String,
    },
}

#[derive(Debug, Subcommand)]
pub enum RuleCommand {
    /// List rules, in the order in which they are tried
    List(Json),
    /// Add a rule; every given key must match
    #[command(after_help = "\
Examples:
  sluice rule add --chain web --protocol tcp --dst-port 80-443 --position 0
  sluice rule add --name guests --port in --vlan 42 --src 10.42.0.0/16 --chain scrubbed
  sluice rule add --chain rest                    matches everything")]
    Add(Box<RuleAdd>),
    /// Remove a rule
    #[command(visible_alias = "rm")]
    Remove {
        /// The rule
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct RuleAdd {
    /// Chain of the packets that match
    #[arg(long)]
    pub chain: String,
    /// Its name; rule.N by default
    #[arg(long)]
    pub name: Option<String>,
    /// Its position, from 0; last by default
    #[arg(long, value_name = "N")]
    pub position: Option<usize>,
    /// Ingress port
    #[arg(long)]
    pub port: Option<String>,
    /// VLAN id; 0 matches untagged packets
    #[arg(long, value_name = "ID")]
    pub vlan: Option<u16>,
    /// tcp, udp, icmp, icmpv6, ip (any IP), non-ip, or a number
    #[arg(long)]
    pub protocol: Option<String>,
    /// Source prefix, v4 or v6
    #[arg(long, value_name = "PREFIX")]
    pub src: Option<String>,
    /// Destination prefix, v4 or v6
    #[arg(long, value_name = "PREFIX")]
    pub dst: Option<String>,
    /// Source ports: 80 or 1000-2000
    #[arg(long, value_name = "PORTS")]
    pub src_port: Option<String>,
    /// Destination ports
    #[arg(long, value_name = "PORTS")]
    pub dst_port: Option<String>,
    /// DSCP, 0 to 63
    #[arg(long)]
    pub dscp: Option<u8>,
    /// Priority of the flows that match; 1 by default
    #[arg(long, value_name = "WEIGHT")]
    pub priority: Option<f64>,
    /// Tenant of the flows that match
    #[arg(long, value_name = "NAME")]
    pub tenant: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum PortCommand {
    /// List ports
    List(Json),
    /// Open a port
    #[command(after_help = "\
Examples:
  sluice port add out sink
  sluice port add load gen size=60 flows=1000 rate=1e6
  sluice port add replay pcap read=/tmp/in.pcap speed=recorded --overload wait
  sluice port add lan af_packet interface=eth1
  sluice port add --toml 'name = \"veth\", kind = \"dpdk\", devargs = \"net_af_packet0,iface=veth0\"'

`sluice check --explain` says which keys each kind has.")]
    Add(PortAdd),
    /// Close a port that no chain and no rule names
    #[command(visible_alias = "rm")]
    Remove {
        /// The port
        name: String,
    },
}

#[derive(Debug, Args)]
pub struct PortAdd {
    /// Its name
    #[arg(required_unless_present = "toml", requires = "kind")]
    pub name: Option<String>,
    /// Its kind: gen, sink, pcap, dpdk, af_packet or af_xdp
    pub kind: Option<String>,
    /// Keys of the kind
    #[arg(value_name = "KEY=VALUE")]
    pub keys: Vec<String>,
    /// What happens to packets when their chain's gate is closed: drop or wait
    #[arg(long, value_name = "WHAT", conflicts_with = "toml")]
    pub overload: Option<String>,
    /// Receive (and transmit) queues
    #[arg(long, value_name = "N", conflicts_with = "toml")]
    pub queues: Option<u32>,
    /// All of it as TOML: lines, or `key = value` separated by commas
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["name", "kind", "keys"])]
    pub toml: Option<String>,
}

#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Print JSON: with --watch one object to a line
    #[arg(long)]
    pub json: bool,
    /// Print the text that Prometheus reads
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub prometheus: bool,
    /// Print repeatedly
    #[arg(long)]
    pub watch: bool,
    /// Seconds between two prints, with --watch
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds)]
    pub interval: f64,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Continue with new events
    #[arg(long, short)]
    pub follow: bool,
    /// Only events of this NF
    #[arg(long, value_name = "NAME")]
    pub nf: Option<String>,
    /// Only events of these kinds
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_parser = kind)]
    pub kind: Vec<EventKind>,
    /// Print JSON: with --follow one object to a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// The configuration
    pub config: PathBuf,
    #[command(flatten)]
    pub how: Caution,
}

/// How carefully a configuration is changed.
#[derive(Debug, Clone, Copy, Args)]
pub struct Caution {
    /// Print what would change, and change nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Do not ask before the change; without a terminal nothing is asked anyway
    #[arg(long, short, conflicts_with = "dry_run")]
    pub yes: bool,
    /// Print JSON, and ask nothing
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SetArgs {
    /// The section: service, port, chain, rule, sched, manager, …
    pub kind: String,
    /// The object's name, in sections that have several, and the keys
    #[arg(value_name = "[NAME] KEY=VALUE", required = true)]
    pub rest: Vec<String>,
    /// Write the keys into the daemon's configuration file, too, which stays as it is otherwise
    #[arg(long)]
    pub save: bool,
    /// Print what would change, and change nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct UndoArgs {
    /// List the configurations that are kept, the latest first
    #[arg(long, conflicts_with_all = ["to", "yes", "dry_run"])]
    pub list: bool,
    /// Number of the configuration to go back to; by default the latest
    #[arg(long, value_name = "N")]
    pub to: Option<u64>,
    #[command(flatten)]
    pub how: Caution,
}

#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Only packets of this chain
    #[arg(long)]
    pub chain: Option<String>,
    /// Only packets that this rule classifies
    #[arg(long)]
    pub rule: Option<String>,
    /// Only packets that come in at this port
    #[arg(long)]
    pub port: Option<String>,
    /// Only packets that this filter accepts by their first 256 bytes, in libpcap's language
    #[arg(long, value_name = "EXPRESSION")]
    pub filter: Option<String>,
    /// How many packets
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=i64::from(sluice_api::model::MAX_TRACED)))]
    pub count: u32,
    /// How long to wait for them, in seconds, up to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = patience)]
    pub timeout: f64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DropsArgs {
    /// Only packets of this chain
    #[arg(long)]
    pub chain: Option<String>,
    /// Only this reason, such as no_rule
    #[arg(long, value_name = "NAME", value_parser = reason)]
    pub reason: Option<String>,
    /// How long to look, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Print repeatedly
    #[arg(long)]
    pub watch: bool,
    /// Print JSON: with --watch one object to a line
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct WhyArgs {
    /// Its headers in words, or its bytes from the Ethernet header on as hexadecimal digits
    #[arg(required_unless_present_any = ["pcap", "flow"])]
    pub packet: Vec<String>,
    /// The port where it comes in, if the packet does not name it
    #[arg(long)]
    pub port: Option<String>,
    /// Take it from a capture file: pcap or pcapng
    #[arg(long, value_name = "FILE", conflicts_with = "packet")]
    pub pcap: Option<PathBuf>,
    /// Which packet of the file
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..),
          conflicts_with_all = ["packet", "flow"])]
    pub number: u64,
    /// Take a packet of the flow that ended with this number (`sluice flows --follow` prints it)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["packet", "pcap"])]
    pub flow: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct Stop {
    /// Do not wait until the daemon has gone
    #[arg(long)]
    pub no_wait: bool,
    /// How long to wait, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds, conflicts_with = "no_wait")]
    pub timeout: f64,
}

fn reason(text: &str) -> Result<String, String> {
    let known: Vec<&str> = drops::all().map(|reason| reason.name).collect();
    match drops::find(text) {
        Some(_) => Ok(text.into()),
        None => Err(format!("nothing is dropped for that; {}", nearest::hint(text, &known))),
    }
}

/// How long a trace waits, in seconds.
fn patience(text: &str) -> Result<f64, String> {
    seconds_within(text, sluice_api::model::MAX_TRACE_MS)
}

fn kind(text: &str) -> Result<EventKind, String> {
    let found = EventKind::ALL.into_iter().find(|kind| kind.word() == text);
    found.ok_or_else(|| format!("the kinds are {}", EventKind::ALL.map(EventKind::word).join(", ")))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_chain_is_added_isolated_unless_said_otherwise() {
        for (words, run) in
            [("", Run::Isolated), ("--run isolated", Run::Isolated), ("--run fused", Run::Fused), ("--run inline", Run::Inline)]
        {
            let line = format!("sluice chain add web fw nat --egress out {words}");
            let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
            let Command::Chain(ChainCommand::Add { run: how, services, .. }) = cli.command else { panic!("{line}") };
            assert_eq!((Run::from(how), services.len()), (run, 2), "{line}");
        }
        let line = "sluice chain add web ids fw nat --egress out --run fused --fuse fw,nat";
        let cli = Cli::try_parse_from(line.split_whitespace()).unwrap();
        let Command::Chain(ChainCommand::Add { fuse, services, .. }) = cli.command else { panic!("{line}") };
        assert_eq!((fuse, services.len()), (vec!["fw".to_owned(), "nat".to_owned()], 3));
        let error = Cli::try_parse_from(["sluice", "chain", "add", "web", "fw", "--egress", "out", "--run", "fast"]).unwrap_err();
        assert!(error.to_string().contains("[possible values: isolated, fused, inline]"), "{error}");
    }

    #[test]
    fn a_canary_has_a_part_and_a_time() {
        let of = |words: &str| {
            let cli =
                Cli::try_parse_from(format!("sluice nf upgrade ids {words}").split_whitespace()).map_err(|e| e.to_string())?;
            let Command::Nf(NfCommand::Upgrade(upgrade)) = cli.command else { panic!("{words}") };
            Ok::<_, String>((upgrade.canary, upgrade.lasts, upgrade.abort))
        };
        assert_eq!(of("--exec x"), Ok((None, 60, false)));
        assert_eq!(of("--exec x --canary 1% --for 5m"), Ok((Some(1), 300, false)));
        assert_eq!(of("--exec x --canary 25 --for 90"), Ok((Some(25), 90, false)));
        assert_eq!(of("--exec x --canary 1 --max-drops 0.5% --max-burst 250"), Ok((Some(1), 60, false)));
        assert_eq!(of("--abort"), Ok((None, 60, true)));
        for wrong in [
            "",
            "--exec x --canary 0%",
            "--exec x --canary 51%",
            "--exec x --canary 1% --for 25h",
            "--exec x --for 1s",
            "--exec x --canary 1% --for s",
            "--exec x --canary 1% --max-drops nan",
            "--exec x --canary 1% --max-drops 101",
            "--exec x --canary 1% --max-burst 0",
            "--exec x --canary 1% --max-burst inf",
            "--abort --exec x",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_shadow_has_a_time_and_may_differ_a_little() {
        let of = |words: &str| {
            let cli = Cli::try_parse_from(format!("sluice nf upgrade ids --exec x {words}").split_whitespace())
                .map_err(|e| e.to_string())?;
            let Command::Nf(NfCommand::Upgrade(upgrade)) = cli.command else { panic!("{words}") };
            Ok::<_, String>((upgrade.shadow, upgrade.lasts, upgrade.allow, upgrade.core))
        };
        assert_eq!(of("--shadow"), Ok((true, 60, Allowed::Packets(0), None)));
        assert_eq!(of("--shadow --for 5m --allow 7 --core 3"), Ok((true, 300, Allowed::Packets(7), Some(3))));
        assert_eq!(of("--shadow --allow 0.5% --no-wait"), Ok((true, 60, Allowed::Percent(0.5), None)));
        for wrong in [
            "--shadow --canary 1%",
            "--shadow --max-drops 1",
            "--shadow --allow 101%",
            "--shadow --allow -1",
            "--shadow --abort",
            "--allow 7",
            "--canary 1% --core 3",
            "--no-wait",
        ] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_number_of_a_packet_is_of_a_file() {
        let of = |line: &str| Cli::try_parse_from(line.split_whitespace()).map(drop).map_err(|error| error.to_string());
        assert_eq!(of("sluice why --pcap a.pcap --number 3"), Ok(()));
        assert_eq!(of("sluice why 0200"), Ok(()));
        assert!(of("sluice why 0200 --number 3").unwrap_err().contains("cannot be used with"));
    }

    #[test]
    fn a_time_is_within_what_the_daemon_takes() {
        let error = |line: &str| Cli::try_parse_from(line.split_whitespace()).unwrap_err().to_string();
        assert!(Cli::try_parse_from("sluice trace --timeout 60".split(' ')).is_ok());
        assert!(Cli::try_parse_from("sluice record --seconds 600 -w a".split(' ')).is_ok());
        assert!(error("sluice trace --timeout 61").contains("between 0.01 and 60 seconds"));
        assert!(error("sluice record --seconds 601 -w a").contains("between 0.01 and 600 seconds"));
        assert!(error("sluice drops --seconds 86401").contains("between 0.01 and 86400 seconds"));
    }

    #[test]
    fn each_kind_of_port_is_in_the_help() {
        use sluice_config::schema::SECTIONS;
        let mut command = Cli::command();
        let add = command.find_subcommand_mut("port").unwrap().find_subcommand_mut("add").unwrap();
        let help = add.render_long_help().to_string();
        let line = help.lines().find(|line| line.contains("Its kind: ")).unwrap();
        for kind in SECTIONS.iter().map(|section| section.kind).filter(|kind| !kind.is_empty()) {
            assert!(line.split([' ', ',']).any(|word| word == kind), "{kind} is not in {line:?}");
        }
    }
}
