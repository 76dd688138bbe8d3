//! The listener of the web page: for this host alone, as there is no TLS.

use std::net::SocketAddr;

use super::Validation;
use crate::problem::At;

impl Validation<'_> {
    pub(super) fn page(&mut self) {
        let page = &self.config.page;
        let at = At::key("page", "listen");
        match page.listen.as_deref().map(|text| (text, text.parse::<SocketAddr>())) {
            Some((_, Ok(address))) if !address.ip().is_loopback() => {
                let port = address.port();
                self.error(
                    at,
                    format!("the page would be open to other hosts at {address}, and there is no TLS"),
                    format!(
                        "write listen = \"127.0.0.1:{port}\"; from elsewhere `ssh -L {port}:127.0.0.1:{port} HOST` leads there"
                    ),
                );
            }
            Some((text, Err(_))) => {
                self.error(at, format!("{text:?} is no address with a port"), "write it like \"127.0.0.1:9180\" or \"[::1]:9180\"")
            }
            None if page.token.is_some() => self.error(
                At::key("page", "token"),
                "a token is for the listener, and there is none",
                "write listen = \"127.0.0.1:9180\", or leave token out",
            ),
            _ => {}
        }
    }
}
