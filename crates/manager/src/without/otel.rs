//! Pushed metrics in a build without the feature: there are none. A configuration that names a
//! collector is refused before ([`crate::features`]).

use std::convert::Infallible;
use std::sync::Arc;

use crate::control::Backend;
use sluice_api::config::Config;
use sluice_api::model::Otlp;

#[derive(Debug)]
pub struct PushCounts(Infallible);

impl PushCounts {
    pub(crate) fn of(_: &Config) -> Option<Arc<Self>> {
        None
    }

    pub(crate) fn report(&self) -> Otlp {
        match self.0 {}
    }
}

#[derive(Debug)]
pub struct PushSettings(Infallible);

impl PushSettings {
    pub fn of(_: &Config) -> Option<Self> {
        None
    }
}

pub struct MetricsPusher(Infallible);

impl MetricsPusher {
    pub fn stop(self) {
        match self.0 {}
    }
}

pub fn start(settings: PushSettings, _: Arc<PushCounts>, _: Arc<dyn Backend>) -> std::io::Result<MetricsPusher> {
    match settings.0 {}
}
