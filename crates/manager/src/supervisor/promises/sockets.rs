//! The sockets of SLOs whose NFs attach, and what those NFs may be.
//!
//! A placement says how many instances there are, and where. Something else starts them, and knows
//! each by its number in the placement: `SERVICE/NUMBER`, with the service as the chain names it.

use std::collections::{BTreeMap, BTreeSet};

use rustix::event::epoll;
use rustix::io::Errno;

use crate::supervisor::nfs::{Nf, State};
use crate::supervisor::sockets::{SOCKET, folders, make_folders, of_slo};
use crate::supervisor::{Supervisor, token};
use sluice_api::config::Config;
use sluice_host::attach::{self, AttachError, Listener};
use sluice_host::record::Thing;
use sluice_promises::overlay::Overlaid;

/// The SLOs of which NFs attach, by the services that were made for them.
pub(super) fn attaching(config: &Config, services: &BTreeMap<(String, String), String>) -> BTreeSet<String> {
    let attaches = |made: &String| config.services.iter().any(|service| service.name == *made && service.attach);
    services.iter().filter(|(_, made)| attaches(made)).map(|((slo, _), _)| slo.clone()).collect()
}

impl Supervisor {
    /// The SLOs in force of which NFs attach.
    pub(in crate::supervisor) fn attaching_now(&self) -> BTreeSet<String> {
        self.promises.kept.as_ref().map_or_else(BTreeSet::new, |kept| attaching(&self.config, &kept.services))
    }

    /// Checks that the SLOs of which NFs attach can have sockets.
    ///
    /// # Errors
    /// The name of one is too long for that.
    pub(super) fn can_have_sockets(&self, overlaid: &Overlaid) -> Result<(), String> {
        for slo in attaching(&overlaid.config, &overlaid.services) {
            let path = folders(&self.config.manager.runtime_dir, &slo)[1].join(SOCKET);
            if let Err(error) = attach::check_path(&path) {
                return Err(format!("the SLO {slo} has no socket: {error}, or a shorter name of the SLO"));
            }
        }
        Ok(())
    }

    /// Makes the sockets of these SLOs, besides those that are there.
    ///
    /// # Errors
    /// One could not be made, the first of such. All others are there.
    pub(super) fn open_sockets(&mut self, slos: &BTreeSet<String>) -> Result<(), String> {
        let mut all = Ok(());
        for slo in slos {
            if !self.host.sockets.of_slos.contains_key(slo) {
                all = all.and(self.open_socket(slo).map_err(|error| of_slo(slo, &error)));
            }
        }
        all
    }

    /// Makes the sockets of SLOs in force that could not be made before.
    ///
    /// # Errors
    /// As [`Self::open_sockets`].
    pub(in crate::supervisor) fn open_missing(&mut self) -> Result<(), String> {
        self.open_sockets(&self.attaching_now())
    }

    fn open_socket(&mut self, slo: &str) -> Result<(), AttachError> {
        let folders = folders(&self.config.manager.runtime_dir, slo);
        let path = folders[1].join(SOCKET);
        folders.iter().for_each(|folder| self.note(|r| r.made(Thing::Directory, folder)));
        self.note(|r| r.made(Thing::Socket, &path));
        make_folders(&folders)?;
        let listener = Listener::bind_from(&folders[0], &path, 0o666)?.sharing();
        let failed = |error: Errno| AttachError::System { path: path.clone(), source: error.into() };
        let data = epoll::EventData::new_u64(token::SLO_LISTENER);
        epoll::add(&self.host.epoll, listener.fd(), data, epoll::EventFlags::IN).map_err(failed)?;
        self.host.sockets.of_slos.insert(slo.to_string(), listener);
        Ok(())
    }

    /// Removes the sockets of all other SLOs.
    pub(super) fn close_sockets(&mut self, but: &BTreeSet<String>) {
        let closed: Vec<String> = self.host.sockets.of_slos.keys().filter(|slo| !but.contains(*slo)).cloned().collect();
        for slo in closed {
            self.host.sockets.of_slos.remove(&slo);
            let [_, own] = folders(&self.config.manager.runtime_dir, &slo);
            // What else is in there stays, and the record has it.
            if std::fs::remove_dir(&own).is_ok() {
                self.note(|r| r.removed(&own.join(SOCKET)));
                self.note(|r| r.removed(&own));
            }
        }
    }

    /// Whether a service was made for an SLO, or is being made.
    pub(in crate::supervisor) fn is_of_slo(&self, service: &str) -> bool {
        let mut started = self.promises.placing.iter().flat_map(|placing| &placing.started);
        self.is_kept(service) || started.any(|name| name == service)
    }

    /// The NFs of a service that attach and are to stay.
    fn attaching_nfs<'a>(&'a self, service: &str) -> Vec<&'a Nf> {
        let state = self.service_number(service).and_then(|number| self.services[number as usize].as_ref());
        let numbers = state.filter(|state| state.config.attach).map_or(&[][..], |state| &state.instances);
        numbers.iter().filter_map(|number| self.nfs.get(number)).filter(|nf| nf.life().stays()).collect()
    }

    /// The NF that a caller names at the socket of an SLO: the instance with a number, a free one
    /// of a service, or one by its name on this server.
    ///
    /// # Errors
    /// There is none, and what there is.
    pub(in crate::supervisor) fn named_of_slo(&self, slo: &str, name: &str) -> Result<&Nf, String> {
        let kept = self.promises.kept.iter().flat_map(|kept| &kept.services);
        let own = kept.filter(|((of, _), _)| of == slo).map(|((_, template), made)| (template.as_str(), made.as_str()));
        let all: Vec<(&str, &str, &Nf)> =
            own.flat_map(|(template, made)| self.attaching_nfs(made).into_iter().map(move |nf| (template, made, nf))).collect();
        let numbered = name.rsplit_once('/').and_then(|(template, number)| Some((template, number.parse::<u32>().ok()?)));
        let is_it = |(template, made, nf): &&(&str, &str, &Nf)| match numbered {
            Some((of, number)) => *template == of && nf.position.instance == Some(number),
            None => nf.name == *name || [*template, *made].contains(&name) && nf.is(State::Expected),
        };
        if let Some((.., nf)) = all.iter().find(is_it) {
            return Ok(nf);
        }
        let has: Vec<String> =
            all.iter().filter_map(|(template, _, nf)| Some(format!("{template}/{}", nf.position.instance?))).collect();
        Err(match has[..] {
            // The instances of the new one are not known by their numbers yet.
            _ if self.promises.placing.is_some() => {
                format!("this is the socket of the SLO {slo}, and a placement is being taken over: try again in a moment")
            }
            [] => format!("this is the socket of the SLO {slo}, which has no instances here that attach"),
            _ => format!(
                "this is the socket of the SLO {slo}, which has no free instance {name:?}; set SLUICE_NF to one of {}",
                has.join(", ")
            ),
        })
    }
}
