//! The web page: what it reads of the daemon, and where it is served.
//!
//! It is at the control socket, for root and the daemon's user, and at a listener if the
//! configuration names one. `sluice-page` has the page itself. The listener's address and its token
//! are looked at before anything starts.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use axum::Router;
use sluice_page::{Hub, PageSource, ServedAt, Token, TokenError};

use crate::control::server::Limits;
use crate::control::{Backend, tcp};
use crate::telemetry::metrics;
use sluice_api::ApiError;
use sluice_api::config::WebPage;
use sluice_api::exposition::TextFormat;
use sluice_api::health::Health;
use sluice_api::model::{Event, Stats};

/// The page's listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error("page.listen is {0:?}; write it like \"127.0.0.1:9180\": only this host may read the page, as there is no TLS")]
    Address(String),
    #[error("cannot listen at {address} for the page: {source}; give page.listen another port, or leave it out")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    Token(#[from] TokenError),
}

/// A listener that is bound and not served yet, with the token that its clients need.
#[derive(Debug)]
pub struct PageListener {
    socket: TcpListener,
    token: Option<Token>,
}

/// Binds the listener of a configuration, if it names one.
///
/// # Errors
/// See [`PageError`].
pub fn bind(config: &WebPage) -> Result<Option<PageListener>, PageError> {
    let Some(listen) = &config.listen else { return Ok(None) };
    let address = listen.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback());
    let address = address.ok_or_else(|| PageError::Address(listen.clone()))?;
    let token = config.token.as_deref().map(Token::read).transpose()?;
    let socket = tcp::bind(address).map_err(|source| PageError::Listen { address, source })?;
    Ok(Some(PageListener { socket, token }))
}

/// The page that is served; dropping it ends its streams and closes the listener.
pub struct PageServer {
    hub: Hub,
    listener: Option<tcp::TcpServer>,
}

impl PageServer {
    /// Starts the page, and serves it at the listener, if there is one.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(backend: Arc<dyn Backend>, listener: Option<PageListener>) -> std::io::Result<Self> {
        let mut server = Self { hub: Hub::start(Arc::new(Watched(backend)))?, listener: None };
        if let Some(PageListener { socket, token }) = listener {
            let app = sluice_page::only_reads(sluice_page::router(&server.hub, ServedAt::Loopback));
            let app = match token {
                Some(token) => sluice_page::with_token(app, token),
                None => app,
            };
            server.listener = Some(tcp::serve(socket, app, Limits::default())?);
        }
        Ok(server)
    }

    /// Adds the page to the routes of the control socket, which change nothing for browsers then.
    pub fn onto(&self) -> impl FnOnce(Router) -> Router + Send + 'static + use<> {
        let page = sluice_page::router(&self.hub, ServedAt::UnixSocket);
        move |app| sluice_page::only_reads(app.merge(page))
    }

    /// The address of the listener.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(tcp::TcpServer::address)
    }

    /// Ends all streams, and closes the listener.
    pub fn stop(self) {}
}

impl Drop for PageServer {
    fn drop(&mut self) {
        self.hub.close();
    }
}

/// The daemon as the page reads it.
struct Watched(Arc<dyn Backend>);

impl PageSource for Watched {
    fn stats(&self) -> Result<Stats, ApiError> {
        self.0.stats()
    }

    fn events(&self) -> Result<Vec<Event>, ApiError> {
        self.0.events()
    }

    fn health(&self) -> Result<Health, ApiError> {
        Ok(self.0.status()?.health)
    }

    fn metrics(&self, format: TextFormat) -> Result<String, ApiError> {
        Ok(metrics::exposition(&self.0.stats()?, format))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(listen: &str) -> String {
        bind(&WebPage { listen: Some(listen.into()), token: None }).unwrap_err().to_string()
    }

    #[test]
    fn only_this_host_may_read_the_page() {
        for open in ["0.0.0.0:9180", "[::]:9180", "192.0.2.1:9180", "localhost:9180", "127.0.0.1"] {
            assert!(refusal(open).contains("there is no TLS"), "{open}");
        }
        assert!(bind(&WebPage::default()).unwrap().is_none());
        let listener = bind(&WebPage { listen: Some("127.0.0.1:0".into()), token: None }).unwrap().unwrap();
        let address = listener.socket.local_addr().unwrap();
        assert!(refusal(&address.to_string()).contains("give page.listen another port"));
    }

    #[test]
    fn a_token_that_is_none_is_refused_before_anything_listens() {
        let page = WebPage { listen: Some("127.0.0.1:0".into()), token: Some("/nonexistent/token".into()) };
        assert!(bind(&page).unwrap_err().to_string().starts_with("cannot read the token of the page from /nonexistent/token: "));
    }
}
