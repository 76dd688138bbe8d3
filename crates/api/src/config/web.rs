//! The keys of the web page and of its listener.

use std::collections::BTreeMap;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::order::in_order;

/// The web page, `/metrics` for Prometheus, `/healthz` and `/readyz`, by HTTP. All of it only
/// reads; `operators` may do more.
/// The control socket has them too, whatever is set here.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(transform = in_order::<Self>)]
pub struct WebPage {
    /// Address and port of a TCP listener for them, such as `127.0.0.1:9180`. One that is not of
    /// loopback needs `certificate`, `key`, and `token` or `operators`. Port 0 is a free one, which
    /// the log names. Left out: no listener.
    pub listen: Option<String>,
    /// File with the certificate of the listener in PEM, and behind it those that lead to its
    /// authority. It is read again when it changes. Left out: no TLS.
    #[schemars(extend("format" = "path"))]
    pub certificate: Option<PathBuf>,
    /// File with the private key of the certificate in PEM, without a passphrase, which its owner,
    /// and a group, alone may read. It may be the file of the certificate.
    #[schemars(extend("format" = "path"))]
    pub key: Option<PathBuf>,
    /// File with a secret that requests to the listener must have: one line of 16 to 256
    /// characters, which its owner alone may read. Browsers ask for it as a password, Prometheus
    /// sends it as a bearer token; probes of health need none. It is read again when it changes.
    /// Left out, without `operators` too: every user of this host, NFs too, may read what the page
    /// shows.
    #[schemars(extend("format" = "path"))]
    pub token: Option<PathBuf>,
    /// Files with such secrets of operators, by name, such as `{ alice = "alice.token" }`. They may
    /// do all that the control API can, which the listener has then for them; `token` may read it.
    /// What they change is logged with the name. Only with `certificate`.
    pub operators: BTreeMap<String, PathBuf>,
}
