//! The keys of the web page and of its listener.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// The web page, `/metrics` for Prometheus, `/healthz` and `/readyz`, by HTTP. All of it only
/// reads.
/// The control socket has them too, whatever is set here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct WebPage {
    /// Address and port of a TCP listener for them, such as `127.0.0.1:9180`. Only a loopback
    /// address: there is no TLS. Port 0 is a free one, which the log names. Left out: no listener.
    pub listen: Option<String>,
    /// File with a secret that requests to the listener must have: one line of 16 to 256
    /// characters, which its owner alone may read. Browsers ask for it as a password, Prometheus
    /// sends it as a bearer token; probes of health need none. Left out: every user of this host,
    /// NFs too, may read what the page shows.
    #[schemars(extend("format" = "path"))]
    pub token: Option<PathBuf>,
}
