//! The web page in a build without the feature: there is none. A configuration that names a
//! listener is refused before ([`crate::features`]).

use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;

use crate::control::Backend;
use sluice_api::config::{Config, WebPage};
use sluice_config::Problem;

#[derive(Debug)]
pub struct PageListener;

pub fn problems(_: &Config) -> Vec<Problem> {
    Vec::new()
}

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

    pub fn url(&self) -> Option<String> {
        None
    }

    pub fn stop(self) {}
}
