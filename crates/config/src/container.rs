//! Checks containers against the host: their runtime, bundles, root directories and programs.
//!
//! Limits: the loader that a program names is checked, its shared libraries are not. What a bundle
//! requests beyond what [`sluice_host::container`] reads is checked by the runtime alone.

use std::fs;
use std::path::{Path, PathBuf};

use super::host::{Host, is_bare, not_executable, resolve_exec};
use super::problem::{At, Problem};
use sluice_api::config::{Container, Service};
use sluice_host::cgroup;
use sluice_host::container;

/// Folders of programs for root, which are often not in PATH.
const FOR_ROOT: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// Finds the OCI runtime that a service names.
///
/// # Errors
/// The problem and what to do, as one sentence.
pub fn find_runtime(runtime: &Path, host: &Host) -> Result<PathBuf, String> {
    let mut host = host.clone();
    host.beside = None;
    host.path.extend(FOR_ROOT.map(PathBuf::from));
    let install = "install crun or runc (Debian: apt-get install --no-install-recommends crun)";
    if runtime == Path::new("auto") {
        let found = ["crun", "runc"].into_iter().find_map(|name| resolve_exec(Path::new(name), &host).ok());
        return found.ok_or_else(|| format!("this host has no OCI runtime; {install}, or write runtime = \"PATH\""));
    }
    match resolve_exec(runtime, &host) {
        Err(_) if is_bare(runtime) => {
            let shown = runtime.display();
            Err(format!("there is no OCI runtime {shown} in PATH; {install}, or write its path, such as \"/usr/bin/{shown}\""))
        }
        other => other,
    }
}

/// Reports what the host lacks for the container of a service.
pub fn check(n: usize, service: &Service, container: &Container, host: &Host) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut note = |key: &'static str, text: &str| {
        let (message, help) = text.split_once("; ").unwrap_or((text, ""));
        problems.push(Problem::error(At::entry("service", n, key), message, help));
    };
    if host.uid != 0 {
        let what = format!("no permission to make the namespaces of the containers of service \"{}\"", service.name);
        note("container", &format!("{what}; run sluiced as root, or remove `container`"));
    }
    match find_runtime(&container.runtime, host) {
        Err(text) => note("container.runtime", &text),
        Ok(runtime) if !container::is_crun(&runtime) && cgroup::unified_home(&host.root).is_none() => {
            let shown = runtime.display();
            note(
                "container.runtime",
                &format!("{shown} needs a cgroup, and no hierarchy of version 2 is mounted; mount one (cgroup2), or install crun"),
            );
        }
        Ok(_) => {}
    }
    if let Some(bundle) = &container.bundle
        && let Err(text) = bundle_is_whole(&host.at(bundle))
    {
        note("container.bundle", &text);
    }
    if let Some(root) = &container.root {
        match (fs::metadata(host.at(root)), &service.exec) {
            (Err(error), _) => {
                let shown = root.display();
                let help = "a relative path counts from the folder of the configuration";
                note("container.root", &format!("cannot look into the root directory {shown}: {error}; correct the path; {help}"));
            }
            (Ok(metadata), _) if !metadata.is_dir() => {
                note(
                    "container.root",
                    &format!("{} is no folder; name the folder that is to be the container's /", root.display()),
                );
            }
            (Ok(_), Some(exec)) => {
                if let Err(text) = program(&host.at(root), exec) {
                    note("exec", &text);
                }
            }
            (Ok(_), None) => {}
        }
    }
    problems
}

/// Checks that a bundle can be read, and has a root directory and its program.
fn bundle_is_whole(bundle: &Path) -> Result<(), String> {
    let config = container::read_bundle(bundle)?;
    container::examine(&config)?;
    let root = container::root_of(&config, bundle);
    if !root.is_dir() {
        let shown = root.display();
        return Err(format!("the root directory {shown} of the bundle is no folder; unpack it there"));
    }
    match container::program_of(&config) {
        Some(exec) if exec.is_absolute() => program(&root, exec),
        _ => Ok(()),
    }
}

fn program(root: &Path, exec: &Path) -> Result<(), String> {
    use std::os::unix::fs::PermissionsExt;
    let (shown, within) = (exec.display(), root.display());
    let lacks = || format!("there is no program {shown} in the root directory {within}; put it there, or correct the path");
    let path = container::resolve_in(root, exec).ok_or_else(lacks)?;
    let metadata = fs::metadata(&path).map_err(|_| lacks())?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        let why = not_executable(&path, &path);
        let (_, help) = why.split_once("; ").unwrap_or((&why, ""));
        return Err(format!("{shown} in the root directory {within} is no program; {help}"));
    }
    if let Some(loader) = fs::read(&path).ok().and_then(|bytes| container::loader_of(&bytes))
        && !container::resolve_in(root, &loader).is_some_and(|path| path.is_file())
    {
        let loader = loader.display();
        return Err(format!(
            "{shown} needs {loader}, which is not in the root directory {within}; put it there with the libraries that `ldd` names, or \
             link the program statically"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Site {
        folder: tempfile::TempDir,
        host: Host,
    }

    impl Site {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let host = Host {
                root: folder.path().into(),
                allowed: BTreeSet::from([0, 1]),
                uid: 0,
                beside: None,
                path: vec!["/usr/bin".into()],
                dpdk: false,
            };
            let site = Self { folder, host };
            site.write("usr/sbin/runc", b"", 0o755);
            site.write("proc/self/cgroup", b"1:cpu:/x\n0::/a\n", 0o644);
            site.write("proc/self/mountinfo", b"41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", 0o644);
            site.write("srv/nf/bin/nf", b"#!/bin/sh\n", 0o755);
            site.write("srv/nf/etc/rules", b"", 0o644);
            site
        }

        fn write(&self, path: &str, bytes: &[u8], mode: u32) {
            let path = self.folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }

        fn said(&self, keys: &str) -> Vec<String> {
            let config = crate::load::parse(&format!("[[service]]\nname = \"s\"\n{keys}\n"), "a.toml").unwrap();
            let service = &config.services[0];
            let problems = check(0, service, service.container.as_ref().unwrap(), &self.host);
            let root = self.folder.path().display().to_string();
            problems.iter().map(|p| p.to_string().replace("\n ", "").replace(&root, "")).collect()
        }
    }

    #[test]
    fn runtimes_are_found_also_where_only_root_looks() {
        let mut site = Site::new();
        let found = |site: &Site, name: &str| find_runtime(Path::new(name), &site.host);
        assert_eq!(found(&site, "auto").unwrap(), Path::new("/usr/sbin/runc"));
        assert_eq!(found(&site, "/usr/sbin/runc").unwrap(), Path::new("/usr/sbin/runc"));
        assert!(found(&site, "crun").unwrap_err().contains("there is no OCI runtime crun in PATH; install crun"));
        assert!(found(&site, "/opt/crun").unwrap_err().contains("there is no program /opt/crun; correct the path"));
        site.write("usr/bin/crun", b"", 0o755);
        assert_eq!(found(&site, "auto").unwrap(), Path::new("/usr/bin/crun"), "crun goes first");
        fs::remove_dir_all(site.folder.path().join("usr")).unwrap();
        assert_eq!(
            site.said("exec = \"/bin/nf\"\ncontainer = { root = \"/srv/nf\" }"),
            ["service[0].container.runtime: this host has no OCI runtime = install crun or runc (Debian: apt-get install \
             --no-install-recommends crun), or write runtime = \"PATH\""]
        );
        site.host.uid = 1000;
        site.write("usr/bin/crun", b"", 0o755);
        let said = site.said("exec = \"/bin/nf\"\ncontainer = { root = \"/srv/nf\" }");
        assert!(said.len() == 1 && said[0].contains("run sluiced as root"), "{said:?}");
    }

    #[test]
    fn runc_wants_a_cgroup() {
        let site = Site::new();
        fs::remove_file(site.folder.path().join("proc/self/mountinfo")).unwrap();
        let keys = "exec = \"/bin/nf\"\ncontainer = { root = \"/srv/nf\" }";
        let said = site.said(keys);
        assert!(said.len() == 1 && said[0].contains("/usr/sbin/runc needs a cgroup"), "{said:?}");
        site.write("usr/bin/crun", b"", 0o755);
        assert_eq!(site.said(keys), Vec::<String>::new());
    }

    #[test]
    fn root_directories_have_their_program() {
        let site = Site::new();
        let root = |exec: &str, root: &str| site.said(&format!("exec = {exec:?}\ncontainer = {{ root = {root:?} }}"));
        assert_eq!(root("/bin/nf", "/srv/nf"), Vec::<String>::new());
        // Links are resolved inside the container's root.
        symlink("/bin/nf", site.folder.path().join("srv/nf/absolute")).unwrap();
        symlink("../../../bin/nf", site.folder.path().join("srv/nf/bin/up")).unwrap();
        symlink("/loop", site.folder.path().join("srv/nf/loop")).unwrap();
        assert_eq!(root("/absolute", "/srv/nf"), Vec::<String>::new());
        assert_eq!(root("/bin/up", "/srv/nf"), Vec::<String>::new());
        for (exec, folder, wanted) in [
            ("/nf", "/srv/nf", "service[0].exec: there is no program /nf in the root directory /srv/nf"),
            ("/loop", "/srv/nf", "service[0].exec: there is no program /loop"),
            ("/etc/rules", "/srv/nf", "service[0].exec: /etc/rules in the root directory /srv/nf is no program"),
            ("/bin", "/srv/nf", "service[0].exec: /bin in the root directory"),
            ("/bin/nf", "/srv/none", "service[0].container.root: cannot look into the root directory /srv/none: No such file"),
            ("/bin/nf", "/srv/nf/bin/nf", "service[0].container.root: /srv/nf/bin/nf is no folder"),
        ] {
            let said = root(exec, folder);
            assert!(said.len() == 1 && said[0].starts_with(wanted), "{exec}: {said:?}");
        }
    }

    #[test]
    fn a_program_without_its_loader_is_reported() {
        let site = Site::new();
        let own = fs::read(std::env::current_exe().unwrap()).unwrap();
        let loader = container::loader_of(&own).expect("this test is linked dynamically");
        site.write("srv/nf/bin/own", &own, 0o755);
        let keys = "exec = \"/bin/own\"\ncontainer = { root = \"/srv/nf\" }";
        let said = site.said(keys);
        assert!(said.len() == 1 && said[0].contains(&format!("/bin/own needs {}", loader.display())), "{said:?}");
        site.write(&format!("srv/nf{}", loader.display()), b"", 0o755);
        assert_eq!(site.said(keys), Vec::<String>::new());
    }

    #[test]
    fn bundles_are_read() {
        let site = Site::new();
        let bundle = |text: &str| {
            site.write("srv/b/config.json", text.as_bytes(), 0o644);
            site.said("container = { bundle = \"/srv/b\" }")
        };
        let missing = site.said("container = { bundle = \"/srv/b\" }");
        assert!(
            missing.len() == 1 && missing[0].contains("cannot read the bundle's /srv/b/config.json: No such file"),
            "{missing:?}"
        );
        let good = r#"{"process": {"args": ["/bin/nf"], "terminal": true}, "root": {"path": "../nf"}}"#;
        assert_eq!(bundle(good), Vec::<String>::new());
        for (text, wanted) in [
            ("{", "is no JSON"),
            ("{}", "names no program"),
            (r#"{"process": {"args": ["/bin/nf"]}}"#, "names no root directory"),
            (r#"{"process": {"args": ["/bin/nf"]}, "root": {"path": "gone"}}"#, "is no folder"),
            (r#"{"process": {"args": ["/bin/no"]}, "root": {"path": "../nf"}}"#, "there is no program /bin/no"),
        ] {
            let said = bundle(text);
            assert!(said.len() == 1 && said[0].contains(wanted), "{text}: {said:?}");
        }
    }
}
