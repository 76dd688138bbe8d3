//! The web page in a build without the feature: there is none. A configuration that names a
//! listener is refused before ([`crate::features`]).

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;

use crate::control::Backend;
use sluice_api::config::WebPage;

#[derive(Debug)]
pub struct PageListener;

pub fn bind(_: &WebPage) -> Result<Option<PageListener>, Infallible> {
    Ok(None)
}

pub struct PageServer;

impl PageServer {
    pub fn start(_: Arc<dyn Backend>, _: Option<PageListener>) -> std::io::Result<Self> {
        Ok(Self)
    }

    pub fn onto(&self) -> impl FnOnce(Router) -> Router + Send + 'static + use<> {
        |app| app
    }

    pub fn address(&self) -> Option<SocketAddr> {
        None
    }

    pub fn stop(self) {}
}
