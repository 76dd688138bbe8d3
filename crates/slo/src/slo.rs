//! What a tenant asks for.
//!
//! An *SLO* names an NF or a chain, its configuration and its traffic. It is one of two kinds.
//! *Reserved*: a throughput in packets per second, of which 95 % leave within a latency in
//! microseconds; it is admitted by a profile and kept whatever other tenants do. *On demand*: only
//! a latency, up to a cap; it needs no profile, and the agent shares what is leased to all SLOs of
//! this kind on a server ([`crate::on_demand`]).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Digest;

/// Most instances of one SLO: more is a mistake, or should be several SLOs.
pub const MOST_INSTANCES: usize = 256;

/// What runs: an NF, or a chain that is profiled and placed as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A service, by name.
    Nf(String),
    /// The services of a chain, in order.
    Chain(Vec<String>),
}

impl Workload {
    pub fn services(&self) -> Vec<&str> {
        match self {
            Self::Nf(service) => vec![service],
            Self::Chain(services) => services.iter().map(String::as_str).collect(),
        }
    }
}

impl std::fmt::Display for Workload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Nf(service) => f.write_str(service),
            Self::Chain(services) => f.write_str(&services.join(" → ")),
        }
    }
}

/// Where a promise on demand ends. At least one of the two is required.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Cap {
    /// Most instances.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instances: Option<u32>,
    /// Highest load of all instances together, in packets per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_pps: Option<f64>,
}

impl std::fmt::Display for Cap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ends = |n: u32| if n == 1 { "" } else { "s" };
        let instances = self.instances.map(|n| format!("{n} instance{}", ends(n)));
        let load = self.load_pps.map(|pps| format!("{pps:.0} packets/s"));
        f.write_str(&[instances, load].into_iter().flatten().collect::<Vec<_>>().join(" and "))
    }
}

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[schemars(rename = "SloTerms")]
pub enum Promise {
    /// Throughput and latency, kept whatever others do.
    Reserved {
        /// Packets per second.
        throughput_pps: f64,
        /// 95 % of the packets leave within this many microseconds.
        latency_us: f64,
    },
    /// Latency only, as far as the resources leased to all such SLOs allow.
    OnDemand {
        /// 95 % of the packets leave within this many microseconds.
        latency_us: f64,
        /// Where the promise ends: nothing is promised beyond it, and excess packets are policed.
        cap: Cap,
    },
}

impl Promise {
    pub fn latency_us(&self) -> f64 {
        match self {
            Self::Reserved { latency_us, .. } | Self::OnDemand { latency_us, .. } => *latency_us,
        }
    }

    pub fn throughput_pps(&self) -> Option<f64> {
        match self {
            Self::Reserved { throughput_pps, .. } => Some(*throughput_pps),
            Self::OnDemand { .. } => None,
        }
    }
}

impl std::fmt::Display for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Reserved { throughput_pps, latency_us } => {
                write!(f, "{throughput_pps:.0} packets/s, 95 % within {latency_us:.1} µs")
            }
            Self::OnDemand { latency_us, cap } => write!(f, "on demand up to {cap}, 95 % within {latency_us:.1} µs"),
        }
    }
}

/// A service level objective.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Its name, unique in a placement.
    pub name: String,
    /// What runs.
    pub workload: Workload,
    /// Digest of the configuration that it runs with.
    pub configuration: Digest,
    /// Its traffic: the settings of a generator or the name of a capture, as in its profile.
    pub traffic: String,
    /// What is promised.
    pub promise: Promise,
}

/// Why an SLO is invalid, whatever the profile.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SloError {
    #[error("an SLO needs a name")]
    NoName,
    #[error("SLO \"{0}\" names no NF")]
    NoNf(String),
    #[error("SLO \"{name}\" asks for {throughput_pps} packets/s: a throughput is above 0 and finite")]
    Throughput { name: String, throughput_pps: f64 },
    #[error("SLO \"{name}\" asks for a latency of {latency_us} µs: a latency is above 0 and finite")]
    Latency { name: String, latency_us: f64 },
    #[error(
        "SLO \"{0}\" is on demand and has no cap: cap = {{ instances = 4 }}, cap = {{ load_pps = 2e6 }}, or both, say where the promise ends"
    )]
    NoCap(String),
    #[error("SLO \"{name}\" has a cap of {cap}: that is 1 to {MOST_INSTANCES} instances, and a load above 0 and finite")]
    Cap { name: String, cap: Cap },
}

impl Cap {
    /// Checks the cap of the SLO `slo`.
    ///
    /// # Errors
    /// [`SloError::NoCap`] and [`SloError::Cap`].
    pub fn check(&self, slo: &str) -> Result<(), SloError> {
        if *self == Self::default() {
            return Err(SloError::NoCap(slo.into()));
        }
        let good = self.instances.is_none_or(|n| n > 0 && n as usize <= MOST_INSTANCES)
            && self.load_pps.is_none_or(|pps| pps > 0.0 && pps.is_finite());
        if good { Ok(()) } else { Err(SloError::Cap { name: slo.into(), cap: *self }) }
    }
}

impl Slo {
    /// Checks what can be checked without a profile.
    ///
    /// # Errors
    /// [`SloError`].
    pub fn check(&self) -> Result<(), SloError> {
        let name = || self.name.clone();
        let is_amount = |value: f64| value > 0.0 && value.is_finite();
        if self.name.is_empty() {
            return Err(SloError::NoName);
        }
        let named = match &self.workload {
            Workload::Nf(service) => !service.is_empty(),
            Workload::Chain(services) => !services.is_empty() && services.iter().all(|service| !service.is_empty()),
        };
        if !named {
            return Err(SloError::NoNf(name()));
        }
        if let Some(throughput_pps) = self.promise.throughput_pps().filter(|pps| !is_amount(*pps)) {
            return Err(SloError::Throughput { name: name(), throughput_pps });
        }
        if !is_amount(self.promise.latency_us()) {
            return Err(SloError::Latency { name: name(), latency_us: self.promise.latency_us() });
        }
        if let Promise::OnDemand { cap, .. } = self.promise {
            cap.check(&self.name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::examples::slo;

    #[test]
    fn what_makes_no_sense_is_refused() {
        assert_eq!(slo(1e6, 50.0).check(), Ok(()));
        assert!(matches!(slo(0.0, 50.0).check(), Err(SloError::Throughput { .. })));
        assert!(matches!(slo(f64::NAN, 50.0).check(), Err(SloError::Throughput { .. })));
        assert!(matches!(slo(1e6, -1.0).check(), Err(SloError::Latency { .. })));
        assert!(matches!(slo(1e6, f64::INFINITY).check(), Err(SloError::Latency { .. })));
        assert_eq!(Slo { name: String::new(), ..slo(1.0, 1.0) }.check(), Err(SloError::NoName));
        let empty = Slo { workload: Workload::Chain(vec![]), ..slo(1.0, 1.0) };
        assert_eq!(empty.check().unwrap_err().to_string(), "SLO \"acme\" names no NF");
    }

    #[test]
    fn an_slo_is_written_as_people_would() {
        let text = r#"{"name": "acme", "workload": {"chain": ["firewall", "nat"]}, "configuration": "00ff", "traffic": "64 B",
            "promise": {"reserved": {"throughput_pps": 2e6, "latency_us": 80}}}"#;
        let slo: Slo = serde_json::from_str(text).unwrap();
        assert_eq!(slo.workload.to_string(), "firewall → nat");
        assert_eq!(slo.promise.to_string(), "2000000 packets/s, 95 % within 80.0 µs");
        let unknown = text.replace("latency_us", "latency_ms");
        assert!(serde_json::from_str::<Slo>(&unknown).unwrap_err().to_string().contains("latency_ms"));
    }

    #[test]
    fn on_demand_has_a_latency_and_a_cap_and_no_throughput() {
        let read = |promise: &str| {
            let text = format!(
                r#"{{"name": "acme", "workload": {{"nf": "nat"}}, "configuration": "", "traffic": "", "promise": {{"on_demand": {promise}}}}}"#
            );
            serde_json::from_str::<Slo>(&text)
        };
        let slo = read(r#"{"latency_us": 80, "cap": {"instances": 4, "load_pps": 2e6}}"#).unwrap();
        assert_eq!((slo.check(), slo.promise.throughput_pps()), (Ok(()), None));
        assert_eq!(slo.promise.to_string(), "on demand up to 4 instances and 2000000 packets/s, 95 % within 80.0 µs");
        assert!(read(r#"{"latency_us": 80}"#).unwrap_err().to_string().contains("cap"));
        assert!(read(r#"{"latency_us": 80, "throughput_pps": 1, "cap": {"instances": 1}}"#).is_err());
        let said = |cap: &str| read(&format!(r#"{{"latency_us": 80, "cap": {cap}}}"#)).unwrap().check().unwrap_err().to_string();
        assert!(said("{}").contains("has no cap: cap = { instances = 4 }"));
        assert!(said(r#"{"instances": 0}"#).contains("a cap of 0 instances"));
        assert!(said(r#"{"instances": 257}"#).contains("1 to 256"));
        assert!(said(r#"{"load_pps": -1}"#).contains("a load above 0"));
    }
}
