//! The features of this build of the daemon.
//!
//! | feature | crate | what it adds | how a configuration asks for it |
//! |---|---|---|---|
//! | `foreign` | `sluice-foreign` | unchanged programs as hops | `kind = "foreign"` |
//! | `inline` | `sluice-nf` | chains in the packet threads | `run = "inline"` |
//! | `otel` | `sluice-otel` | metrics pushed to an OpenTelemetry collector | `[telemetry] otlp` |
//! | `page` | `sluice-page` | a web page, metrics and health by HTTP | `[page] listen` |
//! | `pools` | `sluice-pools` | an NF for each flow or class | `per` |
//! | `promises` | `sluice-promises` | SLOs: cores, cache ways, limits | `[promises]`, placements |
//! | `sdn` | `sluice-sdn` | an OpenFlow controller for new flows | `[openflow] controller` |
//! | `tls` | `sluice-page` | the web page by TLS, for other hosts too | `[page] certificate` |
//! | `turns` | `sluice-turns` | time slices for NFs that poll | `[workflow]`, `mode = "poll"` |
//!
//! Each is a Cargo feature of this crate and of the daemon, all but `otel` on by default. Its
//! module of [`crate::supervisor`] installs its hooks ([`sluice_dataplane::hooks`],
//! [`sluice_dataplane::steer`]); a build without it has a module of `supervisor/without` instead. A
//! configuration that needs a missing feature is refused before anything starts.

use sluice_api::config::{ByWhat, Config, Mode, Promises, Run};
use sluice_config::Problem;
use sluice_config::problem::At;

/// The features, and whether this build has each.
pub const FEATURES: [(&str, bool); 9] = [
    ("foreign", cfg!(feature = "foreign")),
    ("inline", cfg!(feature = "inline")),
    ("otel", cfg!(feature = "otel")),
    ("page", cfg!(feature = "page")),
    ("pools", cfg!(feature = "pools")),
    ("promises", cfg!(feature = "promises")),
    ("sdn", cfg!(feature = "sdn")),
    ("tls", cfg!(feature = "tls")),
    ("turns", cfg!(feature = "turns")),
];

/// The message for a missing feature.
pub fn lacks(feature: &str) -> String {
    format!("this sluiced was built without {feature}")
}

/// What a configuration needs and this build lacks, with its places in the file.
pub fn problems(config: &Config) -> Vec<Problem> {
    problems_without(config, |feature| FEATURES.iter().any(|(name, is_there)| *name == feature && !is_there))
}

fn problems_without(config: &Config, is_absent: impl Fn(&str) -> bool) -> Vec<Problem> {
    let help = |feature| match feature {
        "otel" => "build it with the feature otel of sluice-daemon (`make build OTEL=yes`), or do without".to_string(),
        _ => format!("build it with the feature {feature} of sluice-daemon, which is there by default, or do without"),
    };
    let mut found = Vec::new();
    let mut refuse = |feature, at| {
        if is_absent(feature) {
            found.push(Problem::error(at, lacks(feature), help(feature)));
        }
    };
    for (number, service) in config.services.iter().enumerate() {
        if service.is_foreign() {
            refuse("foreign", At::entry("service", number, "kind"));
        }
        if service.is_pooled() {
            refuse("pools", At::entry("service", number, "per"));
        }
    }
    for (number, chain) in config.chains.iter().enumerate() {
        if chain.run == Run::Inline {
            refuse("inline", At::entry("chain", number, "run"));
        }
    }
    if config.promises != Promises::default() {
        refuse("promises", At::key("promises", ""));
    }
    if config.page.listen.is_some() {
        refuse("page", At::key("page", "listen"));
    }
    if config.page.certificate.is_some() {
        refuse("tls", At::key("page", "certificate"));
    }
    if config.telemetry.otlp.is_some() {
        refuse("otel", At::key("telemetry", "otlp"));
    }
    if config.openflow.controller.is_some() {
        refuse("sdn", At::key("openflow", "controller"));
    }
    let names = |word: ByWhat| !matches!(word, ByWhat::Auto | ByWhat::None);
    if names(config.workflow.mechanism) {
        refuse("turns", At::key("workflow", "mechanism"));
    }
    if config.workflow.cores.values().any(|word| ByWhat::of(word).is_some_and(names)) {
        refuse("turns", At::key("workflow", "cores"));
    }
    let shares = |core: usize| config.services.iter().map(|service| service.most_on(core)).sum::<usize>() > 1;
    for (number, service) in config.services.iter().enumerate() {
        let polls = service.mode == Mode::Poll
            && service.cores.iter().any(|core| config.workflow.of_core(*core) != ByWhat::None && shares(*core));
        if polls && is_absent("turns") {
            let at = At::entry("service", number, "mode");
            let text = format!("{}: the kernel divides the cores of NFs that poll", lacks("turns"));
            found.push(Problem::warning(at, text, "build it with the feature turns of sluice-daemon, or give each such NF a core"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> Config {
        toml::from_str(&format!("{more}\n[manager]\n")).unwrap()
    }

    /// The problems of a configuration in a build without any feature.
    fn without_all(more: &str) -> Vec<String> {
        problems_without(&config(more), |_| true)
            .iter()
            .map(|problem| format!("{} {}", problem.at.unwrap(), problem.message))
            .collect()
    }

    #[test]
    fn what_a_build_cannot_do_is_refused_where_it_is_asked_for() {
        let service = |keys: &str| format!("[[service]]\nname = \"s\"\nexec = \"s\"\ncores = [1]\n{keys}");
        let lacks = |at: &str, feature: &str| vec![format!("{at} this sluiced was built without {feature}")];
        assert_eq!(without_all(&service("kind = \"foreign\"")), lacks("service[0].kind", "foreign"));
        assert_eq!(without_all(&service("per = \"flow\"")), lacks("service[0].per", "pools"));
        assert_eq!(without_all("[promises]\ncores = [1]"), lacks("promises", "promises"));
        assert_eq!(without_all("[page]\nlisten = \"127.0.0.1:0\""), lacks("page.listen", "page"));
        assert_eq!(without_all("[page]\ncertificate = \"c.pem\""), lacks("page.certificate", "tls"));
        assert_eq!(without_all("[telemetry]\notlp = \"http://127.0.0.1:4318\""), lacks("telemetry.otlp", "otel"));
        assert_eq!(without_all("[openflow]\ncontroller = \"127.0.0.1:6653\""), lacks("openflow.controller", "sdn"));
        assert_eq!(without_all("[workflow]\nmechanism = \"signal\""), lacks("workflow.mechanism", "turns"));
        assert_eq!(without_all("[workflow]\ncores = { 1 = \"signal\" }"), lacks("workflow.cores", "turns"));
    }

    #[test]
    fn nfs_that_poll_on_one_core_are_warned_about() {
        let service = |name: &str| format!("[[service]]\nname = \"{name}\"\nexec = \"s\"\ncores = [1]\nmode = \"poll\"\n");
        let two = config(&format!("{}{}", service("a"), service("b")));
        let found = problems_without(&two, |_| true);
        assert_eq!(found.len(), 2);
        assert!(found.iter().all(|problem| !problem.is_error() && problem.message.contains("without turns")));
        assert_eq!(problems_without(&config(&service("a")), |_| true), []);
        assert_eq!(problems_without(&two, |feature| feature != "turns"), []);
    }

    #[test]
    fn configurations_that_are_refused_for_other_reasons_are_looked_at_too() {
        let service = |name: &str, keys: &str| format!("[[service]]\nname = \"{name}\"\nexec = \"s\"\n{keys}\n");
        let odd = service("a", "cores = [1]\nmode = \"poll\"")
            + &service("b", "cores = []")
            + &service("c", "cores = [1]\ninstances = 4294967295");
        assert_eq!(problems_without(&config(&odd), |_| true).len(), 1);
        assert_eq!(problems(&config(&odd)), []);
    }

    #[test]
    fn what_asks_for_no_feature_needs_none() {
        assert_eq!(without_all("[[service]]\nname = \"s\"\nexec = \"s\"\ncores = [1]\n"), [""; 0]);
    }
}
