//! `sluice plan init`: a plan with this host as its server.

use std::fs;
use std::io::Write;
use std::path::Path;

use crate::profile::all_ways;
use anyhow::{Context, ensure};
use sluice_cache::control::CacheControl;
use sluice_cache::host::{Processor, l3_caches};
use sluice_cache::resctrl::Resctrl;
use sluice_cli::lab::plan::InitArgs;
use sluice_config::host::Host;
use sluice_host::file;
use sluice_slo::placement::ServerShape;

use super::folder::Folder;

/// Writes the files.
///
/// # Errors
/// There is a plan already, or it cannot be written.
pub fn run(folder: &Folder, args: &InitArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let path = folder.path().join("servers.toml");
    ensure!(!path.exists(), "{} is there already: change it, or name another folder (--plan)", path.display());
    let shape = shape(Path::new("/"), &args.resctrl, args.cores);
    shape.check().with_context(|| format!("this host cannot be described; write {} by hand", path.display()))?;
    let profiles = folder.path().join("profiles");
    fs::create_dir_all(&profiles).with_context(|| format!("cannot make {}", profiles.display()))?;
    file::replace(&path, text(&args.server, &shape).as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(out, "{}: server {}, cores for NFs: {}, ways: {}", path.display(), args.server, shape.cores, shape.ways())?;
    Ok(())
}

/// Resources for NFs of the host with root directory `system`.
fn shape(system: &Path, resctrl: &Path, cores: Option<u32>) -> ServerShape {
    let host = Host { root: system.into(), ..Host::here() };
    let spare = std::thread::available_parallelism().map_or(1, |n| u32::try_from(n.get()).unwrap_or(u32::MAX)).saturating_sub(1);
    let bytes = l3_caches(system).iter().map(|cache| cache.bytes).min();
    let given = Resctrl::open(resctrl, system).ok().filter(|control| control.shape().ways > 0);
    let (llc_ways, min_ways, ddio_ways, classes) = match given.as_ref().map(|control| control.shape()) {
        Some(shape) => {
            // The ways of devices are the system's; its class needs at least the minimum number of
            // ways.
            (shape.ways, shape.min_ways, shape.io_mask.count_ones().max(shape.min_ways), shape.classes + 1)
        }
        None => (all_ways(system), 1, 0, 2),
    };
    ServerShape {
        cpu: Processor::read(system).model,
        cores: cores.unwrap_or(spare).max(1),
        llc_ways,
        way_bytes: bytes.map_or(1 << 20, |bytes| bytes / u64::from(llc_ways)),
        ddio_ways,
        min_ways,
        classes,
        // Half: the rest is for the host and packet memory.
        memory_mib: host.memory().map_or(1024, |bytes| bytes >> 21),
        path_us: 0,
    }
}

fn text(name: &str, shape: &ServerShape) -> String {
    let ServerShape { cpu, cores, llc_ways, way_bytes, ddio_ways, min_ways, classes, memory_mib, path_us } = shape;
    let (name, cpu) = (toml::Value::from(name), toml::Value::from(cpu.as_str()));
    format!(
        "# This host, as `sluice plan init` found it. `sluice plan --help` says what each line means.\n\
         [[server]]\nname = {name}\ncpu = {cpu}\ncores = {cores}\nllc_ways = {llc_ways}\nway_bytes = {way_bytes}\n\
         ddio_ways = {ddio_ways}\nmin_ways = {min_ways}\nclasses = {classes}\nmemory_mib = {memory_mib}\n\
         path_us = {path_us}                             # not measured: see docs/src/guide-slos.md\n"
    )
}
