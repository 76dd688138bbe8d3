//! The web page: what it reads of the daemon, and where it is served.
//!
//! It is at the control socket, for root and the daemon's user, and at a listener if the
//! configuration names one. `sluice-page` has the page itself. The listener's address, its tokens
//! and its certificate are looked at before anything starts, and read again when their files
//! change.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use sluice_page::{FileError, FileKind, Hub, PageSource, ServedAt, Tls, Tokens};

use crate::control::server::{Limits, router};
use crate::control::{Backend, tcp};
use crate::telemetry::metrics;
use sluice_api::ApiError;
use sluice_api::config::{Config, WebPage};
use sluice_api::exposition::TextFormat;
use sluice_api::health::Health;
use sluice_api::model::{Event, Stats};
use sluice_config::Problem;
use sluice_config::problem::At;

/// The page's listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    #[error(
        "page.listen is {0:?}; write it like \"127.0.0.1:9180\": an address of other hosts needs page.certificate, page.key and \
         page.token"
    )]
    Address(String),
    #[error("cannot listen at {address} for the page: {source}; give page.listen another port, or leave it out")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error(transparent)]
    File(#[from] FileError),
}

/// A listener that is bound and not served yet, with what its clients need.
#[derive(Debug)]
pub struct PageListener {
    socket: TcpListener,
    tls: Option<Tls>,
    tokens: Tokens,
}

/// What is wrong with the files that the listener needs.
pub fn problems(config: &Config) -> Vec<Problem> {
    let page = &config.page;
    if page.listen.is_none() {
        return Vec::new();
    }
    let at = |key| At::key("page", key);
    let problem = |key, error: FileError| {
        let text = error.to_string();
        let (message, help) = text.split_once("; ").unwrap_or((&text, ""));
        Problem::error(at(key), message, help)
    };
    let (_, faults) = Tokens::read(page);
    let mut found: Vec<Problem> = faults.into_iter().map(|(key, error)| problem(key, error)).collect();
    // A build without TLS has refused the certificate already.
    let tls = if cfg!(feature = "tls") { tls_of(page) } else { Ok(None) };
    match tls {
        Ok(tls) => found.extend(tls.and_then(|tls| tls.warning()).map(|warning| {
            let (message, help) = warning.split_once("; ").unwrap_or((&warning, ""));
            Problem::warning(at("certificate"), message, help)
        })),
        Err(error) => found.push(problem(if error.kind() == FileKind::Key { "key" } else { "certificate" }, error)),
    }
    found
}

/// The TLS that a configuration asks for.
fn tls_of(page: &WebPage) -> Result<Option<Tls>, FileError> {
    let files: Option<(&PathBuf, &PathBuf)> = page.certificate.as_ref().zip(page.key.as_ref());
    files.map(|(certificate, key)| Tls::read(certificate, key)).transpose()
}

/// Binds the listener of a configuration, if it names one.
///
/// # Errors
/// See [`PageError`].
pub fn bind(config: &WebPage) -> Result<Option<PageListener>, PageError> {
    let Some(listen) = &config.listen else { return Ok(None) };
    let tls = tls_of(config)?;
    let (tokens, faults) = Tokens::read(config);
    if let Some((_, fault)) = faults.into_iter().next() {
        return Err(fault.into());
    }
    let may_be_of_others = tls.is_some() && !tokens.is_empty();
    let address = listen.parse::<SocketAddr>().ok().filter(|address| address.ip().is_loopback() || may_be_of_others);
    let address = address.ok_or_else(|| PageError::Address(listen.clone()))?;
    let socket = tcp::bind(address).map_err(|source| PageError::Listen { address, source })?;
    Ok(Some(PageListener { socket, tls, tokens }))
}

/// The page that is served; dropping it ends its streams and closes the listener.
pub struct PageServer {
    hub: Hub,
    listener: Option<tcp::TcpServer>,
    has_tls: bool,
}

impl PageServer {
    /// Starts the page, and serves it at the listener, if there is one.
    ///
    /// # Errors
    /// The system has no thread for it.
    pub fn start(backend: Arc<dyn Backend>, listener: Option<PageListener>) -> std::io::Result<Self> {
        let hub = Hub::start(Arc::new(Watched(backend.clone())))?;
        let has_tls = listener.as_ref().is_some_and(|listener| listener.tls.is_some());
        let mut server = Self { hub, listener: None, has_tls };
        if let Some(PageListener { socket, tls, tokens }) = listener {
            let at = if has_tls { ServedAt::Tls } else { ServedAt::Loopback };
            let (limits, page) = (Limits::default(), sluice_page::router(&server.hub, at));
            // The control API is for operators. Nobody without TLS is one.
            let app = match has_tls && tokens.have_operator() {
                true => sluice_page::guard(router(backend, limits), at).merge(page),
                false => page,
            };
            let (app, tokens) = (sluice_page::only_reads(app), Arc::new(tokens));
            let app = if tokens.is_empty() { app } else { sluice_page::with_tokens(app, tokens.clone()) };
            server.listener = Some(tcp::serve(socket, app, limits, tls.clone(), look_at(tls, tokens))?);
        }
        Ok(server)
    }

    /// Adds the page to the routes of the control socket, which change nothing for browsers then.
    pub fn onto(&self) -> impl FnOnce(Router) -> Router + Send + 'static + use<> {
        let page = sluice_page::router(&self.hub, ServedAt::UnixSocket);
        move |app| sluice_page::only_reads(app.merge(page))
    }

    /// Where the listener is, for a browser.
    pub fn url(&self) -> Option<String> {
        let scheme = if self.has_tls { "https" } else { "http" };
        self.listener.as_ref().map(|listener| format!("{scheme}://{}/", listener.address()))
    }

    /// Ends all streams, and closes the listener.
    pub fn stop(self) {}
}

/// Reads files of a listener again when they change. With other tokens, clients connect anew: a
/// stream of one that is no longer good would go on.
fn look_at(tls: Option<Tls>, tokens: Arc<Tokens>) -> Option<tcp::Look> {
    if tls.is_none() && tokens.is_empty() {
        return None;
    }
    Some(Box::new(move || {
        if let Some(tls) = &tls {
            tls.look();
        }
        tokens.look()
    }))
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

    fn page(listen: &str) -> WebPage {
        WebPage { listen: Some(listen.into()), ..WebPage::default() }
    }

    fn refusal(listen: &str) -> String {
        bind(&page(listen)).unwrap_err().to_string()
    }

    #[test]
    fn without_tls_only_this_host_may_read_the_page() {
        for open in ["0.0.0.0:9180", "[::]:9180", "192.0.2.1:9180", "localhost:9180", "127.0.0.1"] {
            assert!(refusal(open).contains("an address of other hosts needs page.certificate"), "{open}");
        }
        assert!(bind(&WebPage::default()).unwrap().is_none());
        let listener = bind(&page("127.0.0.1:0")).unwrap().unwrap();
        let address = listener.socket.local_addr().unwrap();
        assert!(refusal(&address.to_string()).contains("give page.listen another port"));
    }

    #[test]
    fn files_that_are_no_good_are_refused_before_anything_listens() {
        let page = WebPage {
            token: Some("/nonexistent/token".into()),
            operators: [("alice".to_string(), PathBuf::from("/nonexistent/alice"))].into(),
            certificate: Some("/nonexistent/certificate".into()),
            key: Some("/nonexistent/key".into()),
            ..page("127.0.0.1:0")
        };
        let found = problems(&Config { page: page.clone(), ..Config::default() });
        let said: Vec<String> = found.iter().map(|problem| format!("{} {}", problem.at.unwrap(), problem.message)).collect();
        let mut wanted = vec![
            "page.token cannot read a token of the page from /nonexistent/token: ",
            "page.operators cannot read a token of the page from /nonexistent/alice: ",
        ];
        if cfg!(feature = "tls") {
            wanted.push("page.certificate cannot read the certificate of the page from /nonexistent/certificate: ");
        }
        assert_eq!(said.len(), wanted.len(), "{said:?}");
        assert!(said.iter().zip(wanted).all(|(said, wanted)| said.starts_with(wanted)), "{said:?}");
        assert!(found.iter().all(|problem| problem.help.starts_with("correct the path")), "{found:?}");
        assert_eq!(problems(&Config { page: WebPage { listen: None, ..page.clone() }, ..Config::default() }), []);
        assert!(bind(&page).unwrap_err().to_string().contains("/nonexistent/"));
        let token_alone = WebPage { certificate: None, key: None, ..page };
        assert!(
            bind(&token_alone).unwrap_err().to_string().starts_with("cannot read a token of the page from /nonexistent/token: ")
        );
    }
}
