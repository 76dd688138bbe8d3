//! Checks of services whose instances run in containers.

use std::path::Component;

use super::{At, Validation};
use sluice_api::config::{Container, Service};

impl Validation<'_> {
    /// Checks that a container has one source, and that its program is named once.
    pub(super) fn container(&mut self, i: usize, service: &Service, container: &Container) {
        let at = |key| At::entry("service", i, key);
        let name = &service.name;
        if service.attach {
            self.error(
                at("container"),
                format!("service \"{name}\" attaches by itself, so no container is started for it"),
                "remove `container`, or remove attach = true",
            );
        }
        if service.zygote {
            self.error(
                at("zygote"),
                format!("instances of service \"{name}\" run in containers, and a container is not forked"),
                "remove `zygote` or `container`",
            );
        }
        if service.is_foreign() {
            self.error(
                at("container"),
                format!("service \"{name}\" is foreign, and only programs that use the library run in containers"),
                "remove `container`: a foreign program has a network namespace of its own; or let it be started by somebody else, \
                 and write pid_file",
            );
        }
        match (&container.bundle, &container.root) {
            (None, None) => self.error(
                at("container"),
                format!("the container of service \"{name}\" is made of nothing"),
                "write container = { root = \"FOLDER\" }, or { bundle = \"FOLDER\" } with a config.json in it",
            ),
            (Some(_), Some(_)) => self.error(
                at("container.root"),
                format!("the container of service \"{name}\" has a bundle and a root directory, and the bundle names its own"),
                "remove `bundle` or `root`",
            ),
            (Some(_), None) if service.exec.is_some() => self.error(
                at("exec"),
                format!("service \"{name}\" has a program, and the config.json of its bundle names one too"),
                "remove `exec`; or write container = { root = \"FOLDER\" }, which takes the root directory alone",
            ),
            (Some(_), None) => {}
            (None, Some(_)) => match &service.exec {
                None => self.error(
                    at("exec"),
                    format!("service \"{name}\" has no program"),
                    "write exec = \"/PROGRAM\", as it is called in the container",
                ),
                Some(exec) if !exec.has_root() || exec.components().any(|part| part == Component::ParentDir) => self.error(
                    at("exec"),
                    format!("{} is no path in a container", exec.display()),
                    "write where the program lies below the root directory, such as exec = \"/bin/nf\"",
                ),
                Some(_) => {}
            },
        }
        if container.runtime.as_os_str().is_empty() {
            self.error(at("container.runtime"), "runtime is no path", "write runtime = \"crun\" or \"runc\", or leave it out");
        }
    }
}

#[cfg(test)]
mod tests {

    fn said(service: &str) -> String {
        match crate::load::parse(&format!("[[service]]\nname = \"nf\"\n{service}\n"), "a.toml") {
            Ok(_) => String::new(),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn what_is_right_is_accepted() {
        for service in [
            "exec = \"/nf\"\ncontainer = { root = \"/srv/nf\" }",
            "container = { bundle = \"/srv/nf\" }\nargs = [\"x\"]\nuser = \"7\"",
            "exec = \"/bin/nf\"\n[service.container]\nroot = \"nf\"\nruntime = \"runc\"\nwritable = true",
        ] {
            assert_eq!(said(service), "", "{service}");
        }
    }

    #[test]
    fn what_is_wrong_is_reported_with_its_line() {
        for (service, line, wanted) in [
            ("container = { }", 3, "made of nothing"),
            ("exec = \"/nf\"\ncontainer = { root = \"/a\", bundle = \"/b\" }", 4, "a bundle and a root directory"),
            ("container = { bundle = \"/b\" }\nexec = \"/nf\"", 4, "the config.json of its bundle names one too"),
            ("container = { root = \"/a\" }", 2, "has no program"),
            ("container = { root = \"/a\" }\nexec = \"nf\"", 4, "nf is no path in a container"),
            ("container = { root = \"/a\" }\nexec = \"/a/../nf\"", 4, "is no path in a container"),
            ("container = { bundle = \"/b\" }\nattach = true", 3, "attaches by itself"),
            ("container = { bundle = \"/b\" }\nkind = \"foreign\"\nsetup = [\"true\"]", 3, "is foreign"),
            ("exec = \"/nf\"\ncontainer = { root = \"/a\" }\nzygote = true", 5, "a container is not forked"),
            ("container = { image = \"x\" }", 3, "`container` has no key \"image\""),
            ("container = { rot = \"x\" }", 3, "did you mean \"root\"?"),
            ("container = { root = 7 }", 3, "root takes a path (a string), not a whole number"),
            ("container = { root = \"/a\",\n writable = \"yes\" }", 4, "writable takes true or false"),
            ("container = \"/a\"", 3, "container takes a table of `bundle`, `root`, `runtime`, `writable`, not a string"),
        ] {
            let said = said(service);
            assert!(said.contains(wanted) && said.starts_with(&format!("a.toml:{line}:")), "{service}:\n{said}");
        }
    }
}
