//! The cgroups that weigh NFs, made and removed by a thread of their own.
//!
//! Moving a process into a cgroup takes the kernel milliseconds (it waits until all processors have
//! passed through the scheduler), in which an NF could already handle packets. So a thread of its
//! own does this, in the order of the requests: an NF runs at once with the default weight, and
//! gets its own a little later. An NF in a [pen](sluice_host::cgroup::pen) has its cgroup from
//! that, with all its forks, and is only weighed here. Only NFs without a pen are added here.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::process::Pid;

use crate::controller::{ControllerLink, WriteShare};
use sluice_dataplane::handle::NfHandle;
use sluice_host::cgroup::{CgroupError, Group, NfGroup, Weight};

impl WriteShare for Weight {
    fn write(&mut self, share: f64) -> Result<(), String> {
        self.set(share).map(drop).map_err(|error| error.to_string())
    }
}

enum Job {
    Add(Arc<NfHandle>, String, Pid),
    /// It is in its cgroup already.
    Adopt(Arc<NfHandle>, NfGroup),
    Remove(u16),
}

/// The daemon's cgroup, and the thread that makes those of NFs in it.
#[derive(Debug)]
pub(super) struct Grouping {
    group: Arc<Group>,
    jobs: Option<Sender<Job>>,
    removed: Receiver<PathBuf>,
    thread: Option<JoinHandle<()>>,
}

impl Grouping {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system's, if it makes no thread.
    pub(super) fn start(group: Group, controller: ControllerLink) -> std::io::Result<Self> {
        let group = Arc::new(group);
        let (jobs, todo) = channel();
        let (gone, removed) = channel();
        let thread = std::thread::Builder::new().name("sluice-cgroup".into()).spawn({
            let group = group.clone();
            move || run(&group, &todo, &gone, &controller)
        })?;
        Ok(Self { group, jobs: Some(jobs), removed, thread: Some(thread) })
    }

    /// The folders that [`add`](Self::add) makes for a life of an NF, to be recorded first.
    pub(super) fn paths_of(&self, life: &str, core: usize) -> [PathBuf; 2] {
        [self.group.path_of_core(core), self.group.path_of(life, core)]
    }

    /// The daemon's cgroup, for folders in it. Dropped before [`finish`](Self::finish).
    pub(super) fn group(&self) -> Arc<Group> {
        self.group.clone()
    }

    /// Weighs an NF through the cgroup that it is in.
    pub(super) fn adopt(&self, handle: Arc<NfHandle>, nf: NfGroup) {
        self.ask(Job::Adopt(handle, nf));
    }

    /// Requests a cgroup for a life of an NF, with a unique name: no former one is in the way.
    pub(super) fn add(&self, handle: Arc<NfHandle>, life: String, pid: Pid) {
        self.ask(Job::Add(handle, life, pid));
    }

    /// Requests the removal of the cgroup of an NF whose process has ended.
    pub(super) fn remove(&self, number: u16) {
        self.ask(Job::Remove(number));
    }

    fn ask(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            // The thread ends only when `jobs` is dropped.
            let _ = jobs.send(job);
        }
    }

    /// Folders that are gone since the last call.
    pub(super) fn removed(&self) -> Vec<PathBuf> {
        self.removed.try_iter().collect()
    }

    /// Removes everything. Returns the folders that are gone.
    pub(super) fn finish(mut self) -> (Vec<PathBuf>, Result<(), CgroupError>) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            // It does not panic; if it did, dropping the group would remove what it made.
            let _ = thread.join();
        }
        let mut gone = self.removed();
        let (path, cores) = (self.group.path().to_path_buf(), self.group.cores());
        let result = Arc::into_inner(self.group).map_or(Ok(()), Group::remove);
        if result.is_ok() {
            gone.extend(cores);
            gone.push(path);
        }
        (gone, result)
    }
}

fn run(group: &Group, jobs: &Receiver<Job>, gone: &Sender<PathBuf>, controller: &ControllerLink) {
    let mut nfs: BTreeMap<u16, NfGroup> = BTreeMap::new();
    let remove = |nf: NfGroup| {
        let path = nf.path().to_path_buf();
        match nf.remove() {
            Ok(()) => drop(gone.send(path)),
            Err(error) => warn!("{error}"),
        }
    };
    for job in jobs {
        match job {
            Job::Add(handle, life, pid) => {
                // Only the latest: a former process of the NF may have left one.
                nfs.remove(&handle.number).into_iter().for_each(remove);
                // A process that has ended meanwhile has no pid.
                if !handle.alive.load(Ordering::Relaxed) {
                    continue;
                }
                match group.add_nf(&life, handle.core).and_then(|nf| nf.join(pid).map(|()| nf)) {
                    Ok(nf) => {
                        controller.give(&handle, Box::new(nf.handle()));
                        nfs.insert(handle.number, nf);
                    }
                    Err(CgroupError::NoProcess { .. }) => {}
                    Err(error) => warn!("{} gets no weight from the kernel: {error}", handle.name),
                }
            }
            Job::Adopt(handle, nf) => {
                nfs.remove(&handle.number).into_iter().for_each(remove);
                controller.give(&handle, Box::new(nf.handle()));
                nfs.insert(handle.number, nf);
            }
            Job::Remove(number) => nfs.remove(&number).into_iter().for_each(remove),
        }
    }
    nfs.into_values().for_each(remove);
}
