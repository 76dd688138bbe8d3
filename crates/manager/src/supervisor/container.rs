//! NFs in containers: how one starts, which processes may attach as it, and the cleanup.
//!
//! Between start and hello, the NF's process is the runtime. From the hello on it is the process in
//! the container, and the runtime is its wrapper. Otherwise it is like any other NF.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;

use super::Supervisor;
use super::nfs::Event;
use super::notice::NoticeKind;
use crate::nf::death::Cause;
use sluice_host::attach::Peer;
use sluice_host::cgroup;
use sluice_host::container::{ContainerRun, FOLDER, Template};
use sluice_host::process::{self, Proc};
use sluice_host::record::Thing;

/// Instead of an NF's number: a process that is, or may be, in a container of an unknown NF.
const NOBODY: u16 = u16::MAX;

impl Supervisor {
    pub(super) fn launch_container(&mut self, number: u16, template: &Template) {
        let Some(name) = self.nfs.get(&number).map(|nf| nf.name.clone()) else { return };
        self.feed(number, Event::Launched);
        self.host.containers += 1;
        let dir = self.config.manager.runtime_dir.clone();
        let life = ContainerRun::new(&name, self.host.containers, &dir, cgroup::unified_home(Path::new("/")).as_deref());
        self.note(|r| r.made(Thing::Directory, &dir.join(FOLDER)));
        self.note(|r| r.made(Thing::Container, &life.folder));
        for cgroup in life.cgroups() {
            self.note(|r| r.made(Thing::Cgroup, &cgroup));
        }
        let started = match life.prepare(&name, template, self.host.sockets.main.path()) {
            Ok(spec) => self.start_process(number, &spec, Some(life)),
            Err(error) => {
                self.clear_container(life);
                Err(error.to_string())
            }
        };
        if let Err(why) = started {
            let service = self.nfs.get(&number).map_or(u16::MAX, |nf| nf.service);
            self.host.notices.print(NoticeKind::Failed(service), || why.clone());
            self.feed(number, Event::Fails(Cause::Unstarted(why)));
            self.lost(number);
        }
    }

    /// Removes what a container has left. Its processes have ended: the runtime's was collected,
    /// and it was the first of theirs.
    pub(super) fn clear_container(&mut self, life: ContainerRun) {
        let (gone, failed) = life.clear();
        for path in gone {
            self.note(|r| r.removed(&path));
        }
        // The record still has it, and undoes it at the end.
        failed.into_iter().for_each(|error| warn!("a container leaves something behind: {error}"));
    }

    /// The NF whose container a process is in: the process or an ancestor is that container's
    /// runtime. A process cannot leave: an orphan in a container gets the first process there, or
    /// the runtime, as its parent.
    pub(super) fn in_container_of(&self, peer: &Peer) -> Option<u16> {
        let runtimes = self.nfs.values().filter_map(|nf| {
            let processes = [&nf.process, &nf.held.wrapper];
            let runtime = processes.into_iter().flatten().find(|process| process.container.is_some())?;
            Some((runtime.pid.as_raw_nonzero().get(), nf.number))
        });
        let leaving = self.host.leaving.iter().filter(|p| p.container.is_some()).map(|p| (p.pid.as_raw_nonzero().get(), NOBODY));
        let runtimes: BTreeMap<i32, u16> = runtimes.chain(leaving).collect();
        if runtimes.is_empty() {
            return None;
        }
        let pid = peer.pid?;
        let Ok(ancestors) = Proc::default().ancestors(pid) else { return Some(NOBODY) };
        let number = std::iter::once(pid).chain(ancestors).find_map(|at| runtimes.get(&at.as_raw_nonzero().get()))?;
        // The process that connected still lives, so everything that was read is about it.
        let lives = process::wait_readable(peer.pidfd.as_fd(), Some(0)) == Ok(false);
        Some(if lives { *number } else { NOBODY })
    }
}
