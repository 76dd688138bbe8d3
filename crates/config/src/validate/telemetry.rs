//! The collector that metrics are pushed to.

use sluice_api::parse;

use super::Validation;
use crate::problem::At;

impl Validation<'_> {
    pub(super) fn telemetry(&mut self) {
        let Some(text) = &self.config.telemetry.otlp else { return };
        let Err(what) = parse::http_address(text) else { return };
        let help = match text.starts_with("https:") {
            true => "write the address of a collector on this host, such as \"http://127.0.0.1:4318\", which sends on by TLS",
            false => "write it like \"http://127.0.0.1:4318\" or \"http://[2001:db8::1]:4318\"",
        };
        self.error(At::key("telemetry", "otlp"), what, help);
    }
}
