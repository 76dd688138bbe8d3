//! What a tenant asks for.
//!
//! An *SLO* names an NF or a chain, its configuration and its traffic, and is one of two kinds. *Reserved*: so many packets a second,
//! 95 % of them within so many microseconds; admitted by a profile, and kept whatever others do. *On demand*: only a latency; the agent
//! shares out what is leased to all SLOs of this kind on a server.

use serde::{Deserialize, Serialize};

/// What runs: one NF, or a chain that is profiled and placed as one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A service, by name.
    Nf(String),
    /// The services of a chain, in order.
    Chain(Vec<String>),
}

impl Workload {
    /// The NFs, in order.
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

/// What is promised.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Promise {
    /// Throughput and latency, kept whatever others do.
    Reserved {
        /// Packets per second.
        throughput_pps: f64,
        /// 95 % of the packets leave within this many microseconds.
        latency_us: f64,
    },
    /// Latency, as far as what is leased to all such SLOs allows.
    OnDemand {
        /// 95 % of the packets leave within this many microseconds.
        latency_us: f64,
    },
}

impl Promise {
    /// The promised 95th percentile of latency, in microseconds.
    pub fn latency_us(&self) -> f64 {
        match self {
            Self::Reserved { latency_us, .. } | Self::OnDemand { latency_us } => *latency_us,
        }
    }

    /// The promised packets per second; none on demand.
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
            Self::OnDemand { latency_us } => write!(f, "95 % within {latency_us:.1} µs"),
        }
    }
}

/// A service level objective.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Slo {
    /// Its name, unique in a placement.
    pub name: String,
    /// What runs.
    pub workload: Workload,
    /// Digest of the configuration ([`crate::profile::Digest`]) that it runs with.
    pub configuration: crate::profile::Digest,
    /// Its traffic: the settings of a generator or the name of a capture, written as in its profile.
    pub traffic: String,
    /// What is promised.
    pub promise: Promise,
}

/// Why an SLO makes no sense, whatever the profile.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum SloError {
    /// No name.
    #[error("an SLO needs a name")]
    NoName,
    /// Nothing runs.
    #[error("SLO \"{0}\" names no NF")]
    NoNf(String),
    /// A rate that is none.
    #[error("SLO \"{name}\" asks for {throughput_pps} packets/s: a throughput is above 0 and finite")]
    Throughput {
        /// The SLO.
        name: String,
        /// What it asks for.
        throughput_pps: f64,
    },
    /// A time that is none.
    #[error("SLO \"{name}\" asks for a latency of {latency_us} µs: a latency is above 0 and finite")]
    Latency {
        /// The SLO.
        name: String,
        /// What it asks for.
        latency_us: f64,
    },
}

impl Slo {
    /// Whether it makes sense by itself.
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
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slo(throughput_pps: f64, latency_us: f64) -> Slo {
        Slo {
            name: "acme".into(),
            workload: Workload::Nf("nat".into()),
            configuration: crate::profile::Digest::of(b""),
            traffic: "64 B".into(),
            promise: Promise::Reserved { throughput_pps, latency_us },
        }
    }

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
}
