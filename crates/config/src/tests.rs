//! Error messages of wrong configurations, word by word; no text makes the parser panic.

use std::path::Path;

use proptest::prelude::*;

use sluice_api::config::{self as model, Config};

use super::*;

/// A valid configuration, without warnings, that cases extend.
const BASE: &str = r#"
[[port]]
name = "in0"
kind = "gen"
[[port]]
name = "out0"
kind = "sink"
[[service]]
name = "ids"
exec = "ids"
[[chain]]
name = "web"
services = ["ids"]
egress = "out0"
[[rule]]
port = "in0"
vlan = 7
chain = "web"
"#;

/// Each problem of a text as `LINE:COL: message | help`, warnings marked.
fn said(text: &str) -> Vec<String> {
    let problems = match load::read_text(text, "a.toml") {
        Ok(loaded) => loaded.warnings,
        Err(errors) => errors.problems,
    };
    let line = |p: &Problem| {
        let at = p.location.as_ref().map_or("-".into(), |l| format!("{}:{}", l.line, l.column));
        let first = p.earlier_line.map_or(String::new(), |l| format!(" (first: {l})"));
        let warning = if p.is_error() { "" } else { "warning: " };
        format!("{at}: {warning}{}{first} | {}", p.message, p.help)
    };
    problems.iter().map(line).collect()
}

/// Checks the problems of each text. One with `+` is appended to [`BASE`]; lines count from there.
fn check(cases: &[(&str, &[&str])]) {
    let base_lines = BASE.matches('\n').count();
    for (text, expected) in cases {
        let (whole, skip) = match text.strip_prefix('+') {
            Some(rest) => (format!("{BASE}{rest}"), base_lines),
            None => (text.to_string(), 0),
        };
        let got: Vec<String> = said(&whole)
            .into_iter()
            .map(|line| match line.split_once(':').and_then(|(n, rest)| Some((n.parse::<usize>().ok()?, rest))) {
                Some((n, rest)) if n > skip => format!("{}:{rest}", n - skip),
                _ => line,
            })
            .collect();
        assert_eq!(got, *expected, "of\n{text}");
    }
}

#[test]
fn syntax() {
    check(&[
        (
            "x = ",
            &["1:5: not valid TOML: string values must be quoted, expected literal string | put strings between double quotes"],
        ),
        (
            "[manager]\nrx = [0\n",
            &["2:8: not valid TOML: unclosed array, expected `]` | the file is TOML; https://toml.io says how it is written"],
        ),
        (
            "[memory]\nframes = 512\nframes = 513\n",
            &["3:1: not valid TOML: duplicate key | a key may stand once in its section; remove one"],
        ),
        (
            "[manager\n[memory]\nhugepages = auto\n",
            &[
                "1:9: not valid TOML: unclosed table, expected `]` | the file is TOML; https://toml.io says how it is written",
                "3:13: not valid TOML: string values must be quoted, expected literal string | put strings between double quotes",
            ],
        ),
    ]);
}

#[test]
fn sections_and_keys() {
    check(&[
        ("[[ports]]\nname = \"a\"\n", &["1:3: no section is called \"ports\" | did you mean \"port\"?"]),
        (
            "[port]\nname = \"a\"\nkind = \"sink\"\n",
            &["1:2: there can be several of port, so each stands below double brackets | write [[port]]"],
        ),
        (
            "[[manager]]\nrx = [0]\n",
            &["1:3: manager is one table, not a list | write [manager] on a line, once, and its keys below"],
        ),
        ("frames = 512\n", &["1:1: no section is called \"frames\" | it is a key of [memory]; write it below that line"]),
        ("manager = 3\n", &["1:1: manager is one table, not a whole number | write [manager] on a line, once, and its keys below"]),
        ("port = [1]\n", &["1:9: an entry of port is a table, not a whole number | write [[port]] on a line, and its keys below"]),
        (
            "[memory]\nframe = 600\nhugepagse = \"auto\"\n",
            &[
                "2:1: [memory] has no key \"frame\" | did you mean \"frames\"?",
                "3:1: [memory] has no key \"hugepagse\" | did you mean \"hugepages\"?",
            ],
        ),
        ("[manager]\nframes = 600\n", &["2:1: [manager] has no key \"frames\" | it is a key of [memory]"]),
        (
            "[memory]\nzebra = 1\n",
            &[
                "2:1: [memory] has no key \"zebra\" | write one of \"frames\", \"tenants\", \"packet_bytes\", \"hugepages\", \"after_violation\", \"dpdk\", \"io_ways\", \"rx_frames\"",
            ],
        ),
        ("[[chain]]\nname = \"a\"\n", &["1:1: chain \"a\" lacks `egress` | write egress = \"…\""]),
        ("[[rule]]\n", &["1:1: this rule lacks `chain` | write chain = \"…\""]),
    ]);
}

#[test]
fn kinds_and_words() {
    check(&[
        ("[[port]]\nname = \"a\"\nkind = \"pacp\"\nread = \"x\"\n", &["3:8: kind cannot be \"pacp\" | did you mean \"pcap\"?"]),
        ("[[port]]\nname = \"a\"\n", &["1:1: port \"a\" lacks `kind` | write kind = \"gen\""]),
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nread = \"x\"\n",
            &["4:1: a port of kind \"gen\" has no key \"read\" | it is a key of [[port]] of kind \"pcap\""],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nflow = 7\n",
            &["4:1: a port of kind \"gen\" has no key \"flow\" | did you mean \"flows\"?"],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"sink\"\noverload = \"wiat\"\n",
            &["4:12: overload cannot be \"wiat\" | did you mean \"wait\"?"],
        ),
        (
            "[memory]\nhugepages = \"perhaps\"\n",
            &["2:13: hugepages cannot be \"perhaps\" | write one of \"auto\", \"always\", \"never\""],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"sink\"\nzebra = 1\n",
            &[
                "4:1: a port of kind \"sink\" has no key \"zebra\" | write one of \"name\", \"kind\", \"overload\", \"queues\", \"tenant\"",
            ],
        ),
    ]);
}

#[test]
fn a_page_for_this_host_or_with_tls_and_a_token() {
    let tls = "certificate = \"c.pem\"\nkey = \"k.pem\"\n";
    let open = format!("+[page]\nlisten = \"0.0.0.0:9180\"\n{tls}");
    check(&[
        ("+[page]\nlisten = \"127.0.0.1:9180\"\ntoken = \"secret\"\n", &[]),
        ("+[page]\nlisten = \"[::1]:0\"\n", &[]),
        (
            "+[page]\nlisten = \"0.0.0.0:9180\"\n",
            &[
                "2:10: the page would be open to other hosts at 0.0.0.0:9180, and there is no TLS | write certificate, key and token, or \
                 listen = \"127.0.0.1:9180\"; from elsewhere `ssh -L 9180:127.0.0.1:9180 HOST` leads there",
            ],
        ),
        (
            "+[page]\nlisten = \"localhost:9180\"\n",
            &["2:10: \"localhost:9180\" is no address with a port | write it like \"127.0.0.1:9180\" or \"[::1]:9180\""],
        ),
        (
            "+[page]\ntoken = \"secret\"\n",
            &["2:9: token is for the listener, and there is none | write listen = \"127.0.0.1:9180\", or leave token out"],
        ),
        (&format!("{open}token = \"t\"\n"), &[]),
        (&format!("{open}operators = {{ alice = \"a\" }}\n"), &[]),
        (&format!("+[page]\nlisten = \"127.0.0.1:9180\"\n{tls}"), &[]),
        (
            &open,
            &["2:10: anybody could read the page at 0.0.0.0:9180: there is no token | write token = \"FILE\"; \
                 `(umask 77; openssl rand -hex 32 > FILE)` makes one"],
        ),
        (
            "+[page]\nlisten = \"127.0.0.1:9180\"\ncertificate = \"c.pem\"\n",
            &["3:15: the certificate has no key | write key = \"FILE\" beside it"],
        ),
        (
            "+[page]\nlisten = \"127.0.0.1:9180\"\nkey = \"k.pem\"\n",
            &["3:7: the key has no certificate | write certificate = \"FILE\" beside it"],
        ),
        (
            "+[page]\nlisten = \"127.0.0.1:9180\"\noperators = { alice = \"a\" }\n",
            &[
                "3:13: tokens of operators would be sent without TLS | write certificate and key beside them, or leave operators out",
            ],
        ),
        (
            &format!("{open}operators = {{ \"al ice\" = \"a\" }}\n"),
            &[
                "5:13: the name of an operator cannot be \"al ice\" | use 1 to 63 of the letters A to Z and a to z, digits, \".\", \"_\" \
                 and \"-\"",
            ],
        ),
        (
            &format!("{open}operators = {{ alice = 1 }}\n"),
            &[
                "5:23: operators takes a table of strings, such as { NAME = \"value\" }, not a whole number | write operators = { NAME = \
                 \"value\" }",
            ],
        ),
    ]);
}

#[test]
fn a_collector_to_push_metrics_to() {
    let like = "write it like \"http://127.0.0.1:4318\" or \"http://[2001:db8::1]:4318\"";
    let wrong = |text: &str| format!("2:8: {text:?} is no address of HTTP with a port | {like}");
    for text in
        ["127.0.0.1:4318", "http://127.0.0.1", "http://:4318", "http://user@host:4318", "http://a:4318/x?y", "http://::1:4318"]
    {
        let (config, said) = (format!("+[telemetry]\notlp = {text:?}\n"), wrong(text));
        check(&[(config.as_str(), &[said.as_str()])]);
    }
    check(&[
        ("+[telemetry]\notlp = \"http://127.0.0.1:4318\"\n", &[]),
        ("+[telemetry]\notlp = \"http://[::1]:4318/\"\ninterval_ms = 60000\n", &[]),
        ("+[telemetry]\notlp = \"http://collector.example.org:9090/api/v1/otlp\"\n", &[]),
        (
            "+[telemetry]\notlp = \"https://127.0.0.1:4318\"\n",
            &[
                "2:8: \"https://127.0.0.1:4318\" asks for TLS, which is not spoken here | write the address of a collector on this host, \
                 such as \"http://127.0.0.1:4318\", which sends on by TLS",
            ],
        ),
    ]);
}

#[test]
fn a_controller_to_ask() {
    check(&[
        ("+[openflow]\ncontroller = \"tcp:127.0.0.1:6653\"\nmiss = \"wait\"\n", &[]),
        (
            "+[openflow]\ncontroller = \"127.0.0.1:6653\"\nfail = \"open\"\n",
            &["3:8: fail cannot be \"open\" | write one of \"standalone\", \"secure\""],
        ),
        (
            "+[openflow]\ncontroller = \"127.0.0.1:6653\"\necho_ms = 20000\nretry_ms = 9000\n",
            &[
                "1:1: the connection would be given up (15000 ms) before an echo is asked for (20000 ms) | write dead_ms = 15000, \
                 echo_ms = 5000",
                "1:1: the longest time between attempts (8000 ms) is less than the first (9000 ms) | write retry_ms = 500, \
                 retry_max_ms = 8000",
                "2:14: \"127.0.0.1:6653\" is no address of a controller | write it like \"tcp:127.0.0.1:6653\"",
            ],
        ),
    ]);
}

#[test]
fn a_log_of_flows() {
    check(&[
        ("+[flow_log]\nfile = \"/var/log/flows.json\"\ncollector = \"[2001:db8::1]:4739\"\n", &[]),
        (
            "+[flow_log]\ncollector = \"collector.example.org:4739\"\n",
            &["2:13: \"collector.example.org:4739\" is no address of a collector | write it like \"192.0.2.1:4739\" or \
                 \"[2001:db8::1]:4739\""],
        ),
        (
            "+[flow_log]\nflows = 1000\nidle_ms = 0\n",
            &[
                "2:9: flows cannot be 1000 | write a whole number, 1024 to 4194304",
                "3:11: idle_ms cannot be 0 | write a whole number, 100 to 86400000",
            ],
        ),
    ]);
}

#[test]
fn types_and_ranges() {
    check(&[
        (
            "[manager]\nrx = 0\ntx = [\"0\"]\nwakeup = \"0\"\nidle = 1\nmax_nfs = 65001\n",
            &[
                "2:6: rx takes a list of core numbers, such as [0, 1], not a whole number | write rx = [0]",
                "3:7: tx takes a list of core numbers, such as [0, 1], not a string | write tx = [0]",
                "4:10: wakeup takes a list of core numbers, such as [0, 1], not a string | write wakeup = [0]",
                "5:8: idle takes \"adaptive\" or \"spin\" or \"sleep\", not a whole number | write idle = \"adaptive\"",
                "6:11: max_nfs cannot be 65001 | write a whole number, 1 to 65000",
            ],
        ),
        (
            "[memory]\nframes = 511\npacket_bytes = 65345\n",
            &[
                "2:10: frames cannot be 511 | write a whole number, 512 to 67108864",
                "3:16: packet_bytes cannot be 65345 | write a whole number, 64 to 65344",
            ],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nrate = -1.0\nsize = 41\nipv6 = \"yes\"\nsrc = \"ten\"\nimix = [[60], [70, \
             0]]\n",
            &[
                "4:8: rate cannot be -1.0 | write a number, 0 or more",
                "5:8: size cannot be 41 | write a whole number, 42 to 65344",
                "6:8: ipv6 takes true or false, not a string | write ipv6 = false",
                "7:7: \"ten\" is no IP address | write it like \"192.0.2.1\" or \"2001:db8::1\"",
                "8:9: imix takes a list of [size, weight] pairs, such as [[60, 7], [1514, 1]], not a list | write imix = [[60, \
                 7], [1514, 1]]",
                "8:20: a weight cannot be 0 | write a whole number, 1 to 4294967295",
            ],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nrate = inf\nvlan = 4095\ndscp = 64\n",
            &[
                "4:8: rate cannot be inf | write a number, 0 or more",
                "5:8: vlan cannot be 4095 | write a whole number, 1 to 4094",
                "6:8: dscp cannot be 64 | write a whole number, 0 to 63",
            ],
        ),
        ("[[port]]\nname = \"a\"\nkind = \"sink\"\nqueues = 0\n", &["4:10: queues cannot be 0 | write a whole number, 1 to 256"]),
        (
            "[[service]]\nname = 3\nargs = \"x\"\nenv = { A = 1 }\n",
            &[
                "2:8: name takes a string, not a whole number | write name = \"…\"",
                "3:8: args takes a list of strings, not a string | write args = [\"x\"]",
                "4:13: env takes a table of strings, such as { NAME = \"value\" }, not a whole number | write env = { NAME = \
                 \"value\" }",
            ],
        ),
        (
            "[[rule]]\nchain = \"a\"\nsrc_port = 65536\nvlan = 4095\ndst_port = true\n",
            &[
                "3:12: src_port cannot be 65536 | write a whole number, 0 to 65535",
                "4:8: vlan cannot be 4095 | write a whole number, 0 to 4094",
                "5:12: dst_port takes a port number, such as 80, or a range, such as \"1000-2000\", not true | write dst_port = 80",
            ],
        ),
        (
            "[manager]\nmax_flows = 99999999999999999999\n",
            &["2:13: max_flows cannot be 99999999999999999999 | write a whole number, 1 to 134217728"],
        ),
    ]);
}

#[test]
fn what_is_advised_does_no_harm() {
    let rate = "packets per second as a number, such as rate = 1e6";
    for kind in ["gen", "pcap"] {
        let text = format!("[[port]]\nname = \"a\"\nkind = {kind:?}\nrate = \"1 Gbit\"\n");
        let expected = format!("4:8: rate takes a number, 0 or more, not a string | write {rate}");
        check(&[(&text, &[&expected])]);
    }
    check(&[
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nrate = 99999999999999999999999\n",
            &[
                "4:8: rate cannot be 99999999999999999999999: a whole number is 9223372036854775807 at most | write it with a point or an \
              exponent, such as 1e6",
            ],
        ),
        (
            "[[port]]\nname = \"a\"\nkind = \"gen\"\nrate = -99999999999999999999999\n",
            &["4:8: rate cannot be -99999999999999999999999 | write a number, 0 or more"],
        ),
        (
            "[[chain]]\nname = \"a\"\nservices = \"mark\"\negress = \"b\"\n[manager]\nrx = 3\n",
            &[
                "3:12: services takes a list of names, such as [\"a\", \"b\"], not a string | write services = [\"mark\"]",
                "6:6: rx takes a list of core numbers, such as [0, 1], not a whole number | write rx = [3]",
            ],
        ),
        (
            "+[[port]]\nname = \"b\"\nkind = \"af_packet\"\ninterface = \"lo\"\n[[rule]]\nport = \"b\"\nchain = \"web\"\n",
            &[
                "4:13: the loopback interface cannot be a port: its packets never leave the host | name another interface (`ip link` \
              lists them); to try a configuration without one, use a port of kind \"gen\"",
            ],
        ),
        (
            "+[[port]]\nname = \"in0\"\nkind = \"sink\"\n[[rule]]\nport = \"zebra\"\nchain = \"web\"\n",
            &[
                "2:8: two ports are called \"in0\" (first: 3) | give this one another name",
                "5:8: no port is called \"zebra\" | write one of \"in0\", \"out0\"",
            ],
        ),
    ]);
}

#[test]
fn a_configuration_of_nothing_warns() {
    for text in ["", "# all is gone\n", "[manager]\nidle = \"sleep\"\n"] {
        let said = said(text);
        assert!(said.len() == 1 && said[0].starts_with("1:1: warning: this configuration has no port, no service"), "{said:?}");
    }
}

#[test]
fn names_and_references() {
    check(&[
        (
            "+[[rule]]\nchain = \"wbe\"\nport = \"in\"\n",
            &["2:9: no chain is called \"wbe\" | did you mean \"web\"?", "3:8: no port is called \"in\" | did you mean \"in0\"?"],
        ),
        (
            "+[[port]]\nname = \"in0\"\nkind = \"sink\"\n",
            &["2:8: two ports are called \"in0\" (first: 3) | give this one another name"],
        ),
        (
            "+[[service]]\nname = \"ids\"\nexec = \"ids\"\n",
            &["2:8: two services are called \"ids\" (first: 9) | NFs of one name are instances: set `instances`, or give this \
                 one another name"],
        ),
        (
            "+[[service]]\nname = \"ids.1\"\nexec = \"x\"\n",
            &["2:8: the name of a service cannot be \"ids.1\" | use 1 to 63 of the letters A to Z and a to z, digits, \"_\" and \
                 \"-\"; a dot sets off the number of an instance"],
        ),
        (
            "+[[port]]\nname = \"a b\"\nkind = \"sink\"\n",
            &["2:8: the name of a port cannot be \"a b\" | use 1 to 63 of the letters A to Z and a to z, digits, \".\", \"_\" \
                 and \"-\""],
        ),
        (
            "+[[chain]]\nname = \"two\"\nservices = [\"idz\", \"ids\"]\negress = \"out\"\n",
            &[
                "3:13: no service is called \"idz\" | did you mean \"ids\"?",
                "4:10: no port is called \"out\" | did you mean \"out0\"?",
            ],
        ),
        (
            "+[[rule]]\nname = \"r\"\nchain = \"web\"\nport = \"in0\"\n[[rule]]\nname = \"r\"\nchain = \"web\"\nport = \"in0\"\n",
            &["6:8: two rules are called \"r\" (first: 20) | give this one another name"],
        ),
        ("[[rule]]\nchain = \"web\"\n", &["2:9: no chain is called \"web\" | there are no chains; add a [[chain]] with this name"]),
        (
            "+[[service]]\nname = \"s\"\nattach = true\ntenant = \"a/b\"\n",
            &["4:10: the name of a tenant cannot be \"a/b\" | use 1 to 63 of the letters A to Z and a to z, digits, \".\", \
                 \"_\" and \"-\""],
        ),
    ]);
}

#[test]
fn chains() {
    check(&[
        (
            "+[[chain]]\nname = \"two\"\nservices = [\"ids\", \"ids\"]\negress = \"out0\"\n",
            &["3:20: chain loop: chain \"two\" sends packets from \"ids\" to \"ids\" | the same service may come again, but not \
                 twice in a row; remove one"],
        ),
        (
            "+[[port]]\nname = \"cap\"\nkind = \"pcap\"\nread = \"a.pcap\"\n[[chain]]\nname = \"two\"\negress = \"cap\"\n",
            &["7:10: packets cannot leave through \"cap\", which has no file to write | give that port `write = \"FILE\"`, or \
                 name another port"],
        ),
        (
            "+[[port]]\nname = \"load\"\nkind = \"gen\"\n[[chain]]\nname = \"two\"\negress = \"load\"\n",
            &[
                "6:10: packets cannot leave through \"load\", which only generates | name a port of kind \"sink\", which takes all, or \
                 one that leads somewhere",
            ],
        ),
    ]);
}

#[test]
fn manager() {
    check(&[
        (
            "[manager]\nrx = []\ntx = [0, 1, 0]\n",
            &["2:6: rx names no core | write rx = [0]", "3:13: core 0 stands twice in tx | a role runs once on a core; remove one"],
        ),
        (
            "+[manager]\nmax_nfs = 1\n[[service]]\nname = \"s\"\nexec = \"s\"\ninstances = 3\n",
            &["2:11: the services have 4 instances in all, and max_nfs is 1 | write max_nfs = 4 or more in [manager], or start \
                 fewer instances"],
        ),
        (
            "[manager]\nruntime_dir = \"/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"\n",
            &["2:15: the path of the runtime folder has 81 bytes | choose one with 1 to 80: the addresses of Unix sockets are \
                 short"],
        ),
        ("[manager]\nruntime_dir = \"\"\n", &["2:15: runtime_dir is no path | write a path, or leave the key out"]),
    ]);
}

#[test]
fn services() {
    check(&[
        (
            "+[[service]]\nname = \"s\"\n",
            &["2:8: service \"s\" has no program | write exec = \"PROGRAM\", or attach = true if it is started from outside"],
        ),
        (
            "+[[service]]\nname = \"s\"\nattach = true\nzygote = true\n",
            &[
                "4:10: service \"s\" attaches by itself, so nothing is started with `zygote` | remove `zygote`, or remove attach = true",
            ],
        ),
        (
            "+[[service]]\nname = \"s\"\nkind = \"foreign\"\nexec = \"s\"\nzygote = true\n",
            &["5:10: service \"s\" is foreign, and cannot have `zygote` | its program is started as it is; remove `zygote`"],
        ),
        (
            "+[[service]]\nname = \"s\"\nattach = true\nexec = \"s\"\nargs = [\"a\"]\nuser = \"nobody\"\n",
            &[
                "4:8: service \"s\" attaches by itself, so nothing is started with `exec` | remove `exec`, or remove attach = true",
                "5:8: service \"s\" attaches by itself, so nothing is started with `args` | remove `args`, or remove attach = true",
            ],
        ),
        (
            "+[[service]]\nname = \"s\"\nexec = \"s\"\nring = 1000\ncores = []\nenv = { SLUICE_NF = \"x\", \"A=B\" = \"y\" \
             }\nuser = \"\"\n",
            &[
                "4:8: a ring of 1000 is no power of two | write ring = 512 or ring = 1024",
                "5:9: service \"s\" names no core | write cores = [1]",
                "6:7: \"A=B\" is no environment variable | use a name without \"=\" and zero bytes",
                "6:7: SLUICE_NF is set by the manager | remove it",
                "7:8: user is neither a name nor a number | write the name of a user, or leave it out",
            ],
        ),
    ]);
}

#[test]
fn workflow() {
    check(&[
        ("+[workflow]\nmechanism = \"signal\"\ncores = { 2 = \"none\", 3 = \"freeze\" }\nnear = 16\ndivisor = 2\n", &[]),
        ("[workflow]\nmechanism = \"freez\"\n", &["2:13: mechanism cannot be \"freez\" | did you mean \"freeze\"?"]),
        (
            "+[workflow]\ncores = { two = \"none\" }\n",
            &["2:9: \"two\" is no core | write the number of a core, such as cores = { 2 = \"signal\" }"],
        ),
        (
            "+[workflow]\ncores = { 2 = \"freez\" }\n",
            &["2:9: the mechanism of core 2 cannot be \"freez\" | write \"auto\" or \"none\" or \"realtime\" or \"freeze\" or \
                 \"signal\" or \"freezer\" or \"gate\" or \"doorbell\""],
        ),
        (
            "+[workflow]\ndivisor = 0.5\n",
            &[
                "2:11: divisor cannot be 0.5: a slice would be longer than a ring of packets takes | write divisor = 1.0, or more for \
                 shorter slices",
            ],
        ),
        ("+[workflow]\nnear = 0\n", &["2:8: near cannot be 0 | write a whole number, 1 to 1024"]),
    ]);
}

#[test]
fn scheduling() {
    check(&[
        ("+[sched]\nclass = \"batch\"\nhandover = false\n", &[]),
        ("+[sched]\nclass = \"rr\"\nrr_slice_ms = 1\n", &[]),
        ("+[sched]\nclass = \"rr\"\nhandover = false\nweights = false\n", &[]),
        (
            "+[[service]]\nname = \"s\"\nexec = \"s\"\npriority = 2\n[[chain]]\nname = \"c\"\nservices = [\"s\"]\negress = \
          \"out0\"\n[[rule]]\nchain = \"c\"\n",
            &[],
        ),
        ("[sched]\nclass = \"batsh\"\n", &["2:9: class cannot be \"batsh\" | did you mean \"batch\"?"]),
        ("[sched]\nclass = \"fifo\"\n", &["2:9: class cannot be \"fifo\" | write one of \"other\", \"batch\", \"rr\""]),
        ("[sched]\nweigths = false\n", &["2:1: [sched] has no key \"weigths\" | did you mean \"weights\"?"]),
        (
            "+[sched]\nhigh_watermark = 60\nlow_watermark = 80\n",
            &["3:17: the low watermark (80 %) is not below the high one (60 %) | a ring throttles from the high one until it is \
                 below the low one; write low_watermark = 60, high_watermark = 80"],
        ),
        (
            "+[sched]\nlow_watermark = 80\n",
            &["2:17: the low watermark (80 %) is not below the high one (80 %) | a ring throttles from the high one until it is \
                 below the low one; write low_watermark = 60, high_watermark = 80"],
        ),
        (
            "+[sched]\nrr_slice_ms = 1\n",
            &["2:15: warning: the time slice of SCHED_RR has no effect on NFs of another class | write class = \"rr\", or leave \
                 rr_slice_ms out"],
        ),
        (
            "+[sched]\nclass = \"rr\"\nhandover = false\nweights = true\n",
            &["4:11: warning: the kernel's weights mean nothing to NFs of class \"rr\", and these do not divide their core by \
                 themselves | write handover = true, by which they do, or another class, or weights = false"],
        ),
        (
            "+[[service]]\nname = \"s\"\nexec = \"s\"\npriority = 0\n",
            &["4:12: service \"s\" has no priority, and its NFs would never run | write a number above 0; 1 is what the others \
                 have, 2 twice that"],
        ),
        ("+[[service]]\nname = \"s\"\nexec = \"s\"\npriority = -1\n", &["4:12: priority cannot be -1 | write a number, 0 or more"]),
    ]);
}

#[test]
fn generators() {
    check(&[
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nsize = 57\n",
            &["4:8: a packet of 57 bytes is too small for UDP over IPv4, a sequence number and a time stamp | make size 58 or \
                 more"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nipv6 = true\nsize = 77\n",
            &["5:8: a packet of 77 bytes is too small for UDP over IPv6, a sequence number and a time stamp | make size 78 or \
                 more"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nipv6 = true\n",
            &["2:8: a packet of 60 bytes is too small for UDP over IPv6, a sequence number and a time stamp | make size 78 or \
                 more"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nprotocol = \"tcp\"\nvlan = 5\nsize = 73\n",
            &["6:8: a packet of 73 bytes is too small for VLAN-tagged TCP over IPv4, a sequence number and a time stamp | make \
                 size 74 or more"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nsize = 2113\n",
            &["4:8: a packet of 2113 bytes is larger than memory.packet_bytes, which is 2112 | make size 2112 or less, or raise \
                 packet_bytes in [memory]"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nimix = [[60, 1], [50, 1]]\nsize = 100\n",
            &[
                "4:18: a packet of 50 bytes is too small for UDP over IPv4, a sequence number and a time stamp | make this size \
                 58 or more",
                "5:8: `size` and `imix` exclude each other | remove one",
            ],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nsrc = \"::1\"\n",
            &["4:7: ::1 is an IPv6 address, and the packets are IPv4 | write ipv6 = true"],
        ),
        (
            "+[[port]]\nname = \"g\"\nkind = \"gen\"\nipv6 = true\nsize = 100\ndst = \"10.0.0.1\"\n",
            &["6:7: 10.0.0.1 is an IPv4 address, and the packets are IPv6 | write ipv6 = false"],
        ),
    ]);
}

#[test]
fn a_capture_is_taken_from_a_port_of_another_name() {
    let of = |ports: &[(&str, &str)]| -> Config {
        let port = |(name, file): &(&str, &str)| format!("[[port]]\nname = {name:?}\nkind = \"pcap\"\nwrite = {file:?}\n");
        toml::from_str(&ports.iter().map(port).collect::<String>()).unwrap()
    };
    let running = of(&[("a", "/x"), ("b", "/y"), ("n", "/dev/null")]);
    for (ports, taken) in [
        (&[("a", "/x"), ("b", "/z"), ("c", "/v")][..], None),
        (&[("c", "/./x")][..], Some(("c", "a"))),
        (&[("a", "/y"), ("b", "/x")][..], Some(("a", "b"))),
        (&[("a", "/dev/null"), ("b", "/y")][..], None),
    ] {
        let wanted = of(ports);
        let found = validate::taken_capture(&running, &wanted).map(|(port, other)| (port.name.as_str(), other.name.as_str()));
        assert_eq!(found, taken, "{ports:?}");
    }
}

#[test]
fn captures_and_devices() {
    check(&[
        ("+[[port]]\nname = \"p\"\nkind = \"pcap\"\n", &["3:8: pcap port \"p\" has no file | give it `read`, `write`, or both"]),
        (
            "+[[port]]\nname = \"p\"\nkind = \"pcap\"\nread = \"a\"\nwrite = \"a\"\nqueues = 2\nspeed = \"rate\"\n",
            &[
                "2:8: speed = \"rate\" needs a rate | write rate = 1000 for 1,000 packets per second",
                "5:9: a pcap port cannot write the file that it reads | give `write` another file",
                "6:10: a pcap port has one queue, which keeps the order of its packets | write queues = 1, or leave it out",
            ],
        ),
        (
            "+[[port]]\nname = \"p\"\nkind = \"pcap\"\nread = \"a\"\nwrite = \"b/.././a\"\n",
            &["5:9: a pcap port cannot write the file that it reads | give `write` another file"],
        ),
        (
            "+[[port]]\nname = \"p\"\nkind = \"pcap\"\nwrite = \"/a\"\n\
              [[port]]\nname = \"q\"\nkind = \"pcap\"\nwrite = \"/../b/..//a\"\n",
            &["8:9: ports \"p\" and \"q\" write one file, /a (first: 22) | give each of them a file of its own"],
        ),
        (
            "+[[port]]\nname = \"p\"\nkind = \"pcap\"\nread = \"a\"\nrate = 10\n",
            &["5:8: the rate of a pcap port counts only with speed = \"rate\" | write speed = \"rate\""],
        ),
        (
            "+[[port]]\nname = \"p\"\nkind = \"pcap\"\nread = \"a\"\ntimes = \"recorded\"\n",
            &["5:9: the times of a pcap port are those of the file that it writes | give it `write`, or remove `times`"],
        ),
        (
            "+[[port]]\nname = \"d\"\nkind = \"dpdk\"\n",
            &["3:8: dpdk port \"d\" names no device | give it `devargs`, such as \"net_null0\", or `pci`, such as \
                 \"0000:3b:00.0\""],
        ),
        (
            "+[[port]]\nname = \"d\"\nkind = \"dpdk\"\npci = \"0000:3b:00.0\"\ndevargs = \"net_null0\"\n",
            &["4:7: a dpdk port has either `devargs` or `pci`, not both | remove one"],
        ),
        (
            "+[[port]]\nname = \"d\"\nkind = \"dpdk\"\npci = \"eth0\"\n",
            &["4:7: \"eth0\" is no PCI address | write it like \"0000:3b:00.0\"; `lspci -D` lists them"],
        ),
    ]);
}

#[test]
fn rules() {
    check(&[
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nsrc = \"10.1.0.0/8\"\n",
            &["4:7: \"10.1.0.0/8\" has bits set behind its first 8 | write \"10.0.0.0/8\" for the network or \"10.1.0.0/32\" \
                 for the one address"],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nsrc = \"10.0.0.0/8\"\ndst = \"::/0\"\n",
            &["5:7: `src` and `dst` are of different IP versions, so no packet matches both | write two rules"],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nprotocol = \"upd\"\n",
            &["4:12: no protocol is called \"upd\" | did you mean \"udp\"?"],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nprotocol = \"icmp\"\ndst_port = 80\n",
            &["5:12: packets of protocol \"icmp\" have no ports | remove `dst_port`, or write protocol = \"tcp\" or \"udp\""],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\ndst_port = \"90-80\"\n",
            &["4:12: the range \"90-80\" runs backwards | write \"80-90\""],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nprotocol = \"non-ip\"\nsrc = \"10.0.0.0/8\"\ndscp = 1\n",
            &[
                "5:7: packets that are not IP have no addresses | remove `src`, or protocol = \"non-ip\"",
                "6:8: packets that are not IP have no DSCP | remove `dscp`, or protocol = \"non-ip\"",
            ],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nprotocol = \"icmp\"\nsrc = \"::/0\"\n",
            &["4:12: no IPv6 packet is of protocol \"icmp\", and `src` is an IPv6 prefix | write protocol = \"icmpv6\""],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nprotocol = \"icmpv6\"\ndst = \"10.0.0.0/8\"\n",
            &["4:12: no IPv4 packet is of protocol \"icmpv6\", and `dst` is an IPv4 prefix | write protocol = \"icmp\""],
        ),
    ]);
}

#[test]
fn warnings() {
    check(&[
        ("+", &[]),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"in0\"\nvlan = 7\nprotocol = \"tcp\"\n",
            &["1:1: warning: rule.1 never matches: rule.0 before it takes all its packets (first: 15) | the first rule that \
                 matches wins; move this one up, or remove it"],
        ),
        (
            "+[[rule]]\nchain = \"web\"\nport = \"out0\"\n",
            &["3:8: warning: no packet ever comes in at \"out0\", which is a sink | name another port"],
        ),
        (
            "+[[service]]\nname = \"b\"\nexec = \"b\"\ncores = [2]\n[[service]]\nname = \"a\"\nexec = \"a\"\nmode = \
             \"poll\"\ncores = [2]\n[[chain]]\nname = \"c\"\nservices = [\"a\", \"b\"]\negress = \"out0\"\n[[rule]]\nchain = \
             \"c\"\nport = \"in0\"\n[workflow]\nmechanism = \"none\"\n",
            &["4:10: warning: service \"b\" shares core 2 with \"a\", which polls and never sleeps | choose another core, or \
                 write mode = \"sleep\" for both, or let [workflow] give them turns"],
        ),
        (
            "+[[chain]]\nname = \"idle\"\negress = \"out0\"\n[[service]]\nname = \"extra\"\nexec = \"x\"\n[[port]]\nname = \
             \"spare\"\nkind = \"sink\"\n",
            &[
                "2:8: warning: no rule leads to chain \"idle\" | add a [[rule]], or remove it",
                "5:8: warning: service \"extra\" is in no chain | name it in a [[chain]], or remove it",
                "8:8: warning: port \"spare\" is in no rule and no chain | name it in one, or remove it",
            ],
        ),
        (
            "+[memory]\nframes = 1024\n",
            &["2:10: warning: 1024 frames are few: rings and ports can hold 2176 packets | write frames = 4096 in [memory], or \
                 make rings smaller; else chains are refused packets while their rings have room"],
        ),
        (
            "+[manager]\nidle = \"spin\"\nrx = [1]\n",
            &["9:8: warning: service \"ids\" runs on core 1, where a thread of the manager never sleeps | choose another core, \
                 or write idle = \"adaptive\" in [manager]"],
        ),
        (
            "+[[service]]\nname = \"a\"\nexec = \"a\"\nmode = \"poll\"\ncores = [2]\n[[service]]\nname = \"b\"\nexec = \
             \"b\"\ncores = [2]\n[[chain]]\nname = \"c\"\nservices = [\"a\", \"b\"]\negress = \"out0\"\n[[rule]]\nchain = \
             \"c\"\nport = \"in0\"\n[workflow]\nmechanism = \"none\"\n",
            &["9:10: warning: service \"b\" shares core 2 with \"a\", which polls and never sleeps | choose another core, or \
                 write mode = \"sleep\" for both, or let [workflow] give them turns"],
        ),
    ]);
}

#[test]
fn a_problem_looks_like_this() {
    let text =
        "[[rule]]\nchain = \"wbe\"\n[[chain]]\nname = \"web\"\negress = \"out0\"\n[[port]]\nname = \"out0\"\nkind = \"sink\"\n";
    let errors = crate::load::parse(text, "sluice.toml").unwrap_err();
    assert_eq!(errors.errors(), 1);
    assert_eq!(
        errors.to_string(),
        "sluice.toml:2:9: error: no chain is called \"wbe\"\n  |\n2 | chain = \"wbe\"\n  |         ^^^^^\n  = did you mean \"web\"?"
    );
    let twice = format!("{text}[[port]]\nname = \"out0\"\nkind = \"sink\"\n");
    assert!(crate::load::parse(&twice, "sluice.toml").unwrap_err().to_string().ends_with(
        "sluice.toml:10:8: error: two ports are called \"out0\"\n   |\n10 | name = \"out0\"\n   |        ^^^^^^\n   = the first is \
         on line 7\n   \
         = give this one another name"
    ));
}

#[test]
fn a_chain_is_not_too_long() {
    let hops: Vec<&str> = (0..256).map(|i| if i % 2 == 0 { "\"ids\"" } else { "\"nat\"" }).collect();
    let with = |n: usize| {
        let services = hops[..n].join(", ");
        let nat = "[[service]]\nname = \"nat\"\nexec = \"nat\"\n";
        format!("{BASE}{nat}[[chain]]\nname = \"long\"\nservices = [{services}]\negress = \"out0\"\n[[rule]]\nchain = \"long\"\n")
    };
    assert_eq!(said(&with(255)), Vec::<String>::new());
    let said = said(&with(256));
    assert_eq!(said.len(), 1);
    assert!(said[0].ends_with(": chain \"long\" has 256 services | a chain has 255 at most"), "{said:?}");
}

#[test]
fn an_empty_text_is_a_configuration() {
    assert_eq!(crate::load::parse("", "a.toml").unwrap(), Config::default());
}

#[test]
fn the_example_is_valid() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/example.toml");
    let loaded = load::read(&path).unwrap_or_else(|errors| panic!("{errors}"));
    assert_eq!(loaded.warnings, []);
    assert_eq!((loaded.config.ports.len(), loaded.config.services.len(), loaded.config.rules.len()), (3, 2, 2));
}

#[test]
fn relative_paths_count_from_the_folder_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    let text = "[manager]\nruntime_dir = \"run\"\n[[port]]\nname = \"p\"\nkind = \"pcap\"\nread = \"./in.pcap\"\nwrite = \
     \"/tmp/out.pcap\"\n\
                [[service]]\nname = \"a\"\nexec = \"a\"\n[[service]]\nname = \"b\"\nexec = \"./b\"\n\
                [page]\nlisten = \"[::]:0\"\ncertificate = \"c\"\nkey = \"/k\"\ntoken = \"t\"\noperators = { alice = \"./a\" }\n";
    std::fs::write(&file, text).unwrap();
    let config = crate::load::load(&file).unwrap();
    let folder = folder.path().canonicalize().unwrap();
    assert_eq!(config.manager.runtime_dir, folder.join("run"));
    let model::PortKind::Pcap(pcap) = &config.ports[0].kind else { panic!("a pcap port") };
    assert_eq!(pcap.read.as_deref(), Some(folder.join("in.pcap").as_path()));
    assert_eq!(pcap.write.as_deref(), Some(Path::new("/tmp/out.pcap")));
    assert_eq!(config.services[0].exec.as_deref(), Some(Path::new("a")));
    assert_eq!(config.services[1].exec.as_deref(), Some(folder.join("b").as_path()));
    assert_eq!(config.page.certificate, Some(folder.join("c")));
    assert_eq!(config.page.key.as_deref(), Some(Path::new("/k")));
    assert_eq!(config.page.token, Some(folder.join("t")));
    assert_eq!(config.page.operators["alice"], folder.join("a"));
}

#[test]
fn files_that_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.toml");
    let said = |path: &Path| crate::load::load(path).unwrap_err().to_string().replace(&folder.path().display().to_string(), "DIR");
    assert_eq!(
        said(&file),
        "DIR/a.toml: cannot read the configuration: No such file or directory (os error 2)\n  = give the path of a configuration; \
         `sluice check --explain` says what one can say"
    );
    std::fs::write(&file, b"[manager]\n# \xff\n").unwrap();
    assert_eq!(said(&file), "DIR/a.toml: line 2 is not UTF-8 text\n  = save the file as UTF-8");
    assert!(said(folder.path()).starts_with("DIR: cannot read the configuration: "));
    assert_eq!(said(Path::new("/dev/zero")), "/dev/zero: it is too large for a configuration\n  = keep it under 64 MiB");
}

#[test]
fn changes_through_the_api_are_held_to_the_same() {
    let port = |json: &str| serde_json::from_str::<model::Port>(json);
    let gen_port = port(r#"{"name": "a", "kind": "gen", "rate": 5, "src": "10.0.0.1", "imix": [[60, 1]]}"#).unwrap();
    assert_eq!(serde_json::from_value::<model::Port>(serde_json::to_value(&gen_port).unwrap()).unwrap(), gen_port);
    assert!(port(r#"{"name": "a", "kind": "gen", "rte": 5}"#).unwrap_err().to_string().contains("unknown field `rte`"));
    assert!(port(r#"{"name": "a", "kind": "sink", "rate": 5}"#).unwrap_err().to_string().contains("unknown field `rate`"));

    let mut config = Config { ports: vec![gen_port], ..Config::default() };
    config.ports[0].queues = 0;
    config.memory.frames = 1;
    config.manager.rx = vec![1 << 20];
    let model::PortKind::Gen(g) = &mut config.ports[0].kind else { panic!("a gen port") };
    g.rate = f64::NAN;
    g.vlan = Some(5000);
    let said: Vec<String> =
        validate::validate(&config).iter().filter(|p| p.is_error()).map(|p| p.to_string().replace("\n ", "")).collect();
    assert_eq!(
        said,
        [
            "manager.rx[0]: rx cannot be 1048576 = write a whole number, 0 to 65535",
            "memory.frames: frames cannot be 1 = write a whole number, 512 to 67108864",
            "port[0].queues: queues cannot be 0 = write a whole number, 1 to 256",
            "port[0].rate: rate cannot be null = write a number, 0 or more",
            "port[0].vlan: vlan cannot be 5000 = write a whole number, 1 to 4094",
            "port[0].imix[0]: a packet of 60 bytes is too small for VLAN-tagged UDP over IPv4, a sequence number and a time stamp \
             = make \
             this size 62 or more",
        ]
    );
}

/// Text that resembles a configuration: lines of sections, and keys with values of every type.
fn nearly() -> impl Strategy<Value = String> {
    let keys: Vec<&str> = schema::SECTIONS.iter().flat_map(|s| &s.keys).map(|k| k.name).collect();
    let values = prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        (0u32..100).prop_map(|n| n.to_string()),
        "[a-z0-9./:-]{0,8}".prop_map(|s| format!("{s:?}")),
        proptest::sample::select(vec![
            "true",
            "[]",
            "{}",
            "[1, 2]",
            "[[60, 1]]",
            "\"gen\"",
            "\"pcap\"",
            "\"dpdk\"",
            "\"sink\"",
            "\"a\"",
            "[\"a\", \"a\"]",
            "\"tcp\"",
            "{ A = \"b\" }",
            "\"10.0.0.0/8\"",
            "\"::/0\"",
            "\"5-7\"",
            "1979-05-27",
            "0xff",
            "\"é\u{301}\"",
            "'''\n\n'''",
        ])
        .prop_map(String::from),
    ];
    let head = proptest::sample::select(vec![
        "[manager]",
        "[memory]",
        "[[port]]",
        "[[service]]",
        "[[chain]]",
        "[[rule]]",
        "[rule]",
        "[x.y]",
    ]);
    let section = (head, prop::collection::btree_map(proptest::sample::select(keys), values, 0..8));
    prop::collection::vec(section, 0..8).prop_map(|sections| {
        let mut text = String::new();
        for (head, keys) in sections {
            text += head;
            text += "\n";
            for (key, value) in keys {
                text += &format!("{key} = {value}\n");
            }
        }
        text
    })
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in any::<String>()) {
        if let Err(errors) = crate::load::parse(&text, "a.toml") {
            prop_assert!(errors.errors() > 0 && !errors.to_string().is_empty());
        }
    }

    #[test]
    fn any_near_miss_is_read_or_refused(text in nearly()) {
        match crate::load::parse(&text, "a.toml") {
            // A valid configuration stays the same when it is written and read again.
            Ok(config) => prop_assert_eq!(crate::load::parse(&toml::to_string(&config).unwrap(), "b.toml").unwrap(), config),
            Err(errors) => {
                prop_assert!(errors.errors() > 0);
                // serde rejected nothing that the shape accepted.
                prop_assert!(errors.problems.iter().all(|p| p.location.is_some() && !p.help.is_empty()), "{}", errors);
            }
        }
    }
}

#[test]
fn each_shard_needs_queues_and_cores_of_its_own() {
    let two = |more: &str| {
        format!(
            "[manager]\nshards = [0, 1]\n[[port]]\nname = \"in\"\nkind = \"gen\"\nqueues = 2\n[[port]]\nname = \"out\"\nkind = \"sink\"\nqueues = 2\n\
             [[chain]]\nname = \"web\"\nservices = [\"ids\"]\negress = \"out\"\n[[rule]]\nport = \"in\"\nchain = \"web\"\n\
             [[service]]\nname = \"ids\"\nexec = \"ids\"\n{more}"
        )
    };
    let help = "give it 2 instances on 2 cores, or write all_shards = true if its instances serve all shards";
    let few = |line: u32, column: u32, instances: u32, cores: u32| {
        format!(
            "{line}:{column}: service \"ids\" has instances: {instances}, cores: {cores}, and each of the 2 shards needs its own | {help}"
        )
    };
    assert_eq!(said(&two("instances = 2\ncores = [2, 3]\n")), Vec::<String>::new());
    assert_eq!(said(&two("instances = 3\ncores = [2, 3, 4]\n")), Vec::<String>::new());
    assert_eq!(said(&two("all_shards = true\n")), Vec::<String>::new());
    assert_eq!(said(&two("instances = 2\n")).len(), 1);
    assert_eq!(said(&two("instances = 2\ncores = [2]\n")), [few(22, 9, 2, 1)]);
    assert_eq!(said(&two("instances = 1\ncores = [2, 3]\n")), [few(21, 13, 1, 2)]);
    let inline = two("trusted = true\n").replace("egress =", "run = \"inline\"\negress =");
    assert_eq!(said(&inline), Vec::<String>::new(), "its instances are in the packet threads");
    let inline_and_named = inline.replace("trusted = true", "trusted = true\nmay_send_to = [\"ids\"]");
    assert_eq!(said(&inline_and_named).len(), 1, "it has a process, which one shard would have: {:?}", said(&inline_and_named));
    let other = "instances = 2\ncores = [2, 3]\n[[service]]\nname = \"nat\"\nexec = \"nat\"\ninstances = 2\ncores = [3, 2]\n";
    let wrong = said(&two(other).replace("[\"ids\"]", "[\"ids\", \"nat\"]"));
    let order = "the cores of a service belong to the shards in turn: write them in another order, or other cores";
    assert_eq!(
        wrong,
        [
            format!("27:10: core 3 is of shard 1 and of shard 0 (first: 22) | {order}"),
            format!("27:13: core 2 is of shard 0 and of shard 1 (first: 22) | {order}"),
        ]
    );
    let one_queue = two("all_shards = true\n").replacen("queues = 2\n", "", 1);
    assert_eq!(said(&one_queue), ["4:8: port \"in\" has 1 queue, and each of the 2 shards needs its own | write queues = 2"]);
    let roles = two("all_shards = true\n").replacen("shards =", "rx = [1]\nshards =", 1);
    assert_eq!(said(&roles), ["2:6: `rx` has no effect beside `shards`, whose threads have all roles | remove `rx`, or `shards`"]);
    let single = two("").replace("shards = [0, 1]", "shards = [0]").replace("queues = 2\n", "");
    assert_eq!(said(&single), Vec::<String>::new());
}

#[test]
fn a_core_is_of_the_shard_whose_turn_it_has() {
    let mut config = Config::default();
    let service = |keys: &str| toml::from_str::<model::Service>(&format!("name = \"s\"\nexec = \"s\"\n{keys}")).unwrap();
    config.services = vec![service("all_shards = true\ncores = [9]"), service("instances = 4\ncores = [4, 5, 6, 7]")];
    assert_eq!(config.shard_of(5), None);
    config.manager.shards = vec![0, 1];
    assert_eq!([4, 5, 6, 7, 9].map(|core| config.shard_of(core)), [Some(0), Some(1), Some(0), Some(1), None]);
    assert_eq!((config.manager.cores().collect::<Vec<_>>(), config.manager.rx_cores()), (vec![0, 1], &[0, 1][..]));
    assert_eq!(config.manager.first_monitor(), 0);
}
