//! The listener of the web page: for this host alone, unless it has TLS and asks for a token.

use std::net::SocketAddr;

use super::Validation;
use crate::problem::At;

impl Validation<'_> {
    pub(super) fn page(&mut self) {
        let page = &self.config.page;
        let at = |key| At::key("page", key);
        let wants_tls = page.certificate.is_some() || page.key.is_some();
        let has_operators = !page.operators.is_empty();
        let Some(listen) = page.listen.as_deref() else {
            let keys = [
                ("certificate", page.certificate.is_some()),
                ("key", page.key.is_some()),
                ("token", page.token.is_some()),
                ("operators", has_operators),
            ];
            if let Some((key, _)) = keys.into_iter().find(|(_, is_written)| *is_written) {
                let help = format!("write listen = \"127.0.0.1:9180\", or leave {key} out");
                self.error(at(key), format!("{key} is for the listener, and there is none"), help);
            }
            return;
        };
        match (&page.certificate, &page.key) {
            (Some(_), None) => self.error(at("certificate"), "the certificate has no key", "write key = \"FILE\" beside it"),
            (None, Some(_)) => self.error(at("key"), "the key has no certificate", "write certificate = \"FILE\" beside it"),
            _ => {}
        }
        self.page_address(listen, wants_tls, has_operators || page.token.is_some());
        if has_operators && !wants_tls {
            self.error(
                at("operators"),
                "tokens of operators would be sent without TLS",
                "write certificate and key beside them, or leave operators out",
            );
        }
        for name in page.operators.keys() {
            self.word(at("operators"), "the name of an operator", name, true);
        }
    }

    fn page_address(&mut self, listen: &str, has_tls: bool, has_token: bool) {
        let at = At::key("page", "listen");
        let Ok(address) = listen.parse::<SocketAddr>() else {
            let help = "write it like \"127.0.0.1:9180\" or \"[::1]:9180\"";
            return self.error(at, format!("{listen:?} is no address with a port"), help);
        };
        let port = address.port();
        if address.ip().is_loopback() {
            return;
        }
        if !has_tls {
            self.error(
                at,
                format!("the page would be open to other hosts at {address}, and there is no TLS"),
                format!(
                    "write certificate, key and token, or listen = \"127.0.0.1:{port}\"; from elsewhere `ssh -L \
                     {port}:127.0.0.1:{port} HOST` leads there"
                ),
            );
        } else if !has_token {
            self.error(
                at,
                format!("anybody could read the page at {address}: there is no token"),
                "write token = \"FILE\"; `(umask 77; openssl rand -hex 32 > FILE)` makes one",
            );
        }
    }
}
