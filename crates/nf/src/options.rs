//! How an NF finds its manager: two variables that the manager sets for NFs that it starts, or two arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use sluice_shm::handshake::{ENV_NF, ENV_SOCKET};
use sluice_shm::zygote::ENV_ZYGOTE;

/// How an NF finds its manager and what it does with signals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The manager's socket.
    pub socket: Option<PathBuf>,
    /// This NF's name, such as `ids.0`, or its service's, such as `ids`: then the manager picks a free instance.
    pub name: Option<String>,
    /// Whether SIGTERM and SIGINT stop the NF cleanly. Off, the process's own handlers stay.
    pub signals: bool,
    /// Whether this process is a zygote: it makes its handler, and is forked for each instance that the manager wants. The manager says
    /// so with the variable `SLUICE_ZYGOTE`.
    pub zygote: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { socket: None, name: None, signals: true, zygote: false }
    }
}

impl Options {
    /// From the variables `SLUICE_SOCKET` and `SLUICE_NF`, overridden by the arguments `--sluice-socket PATH` and
    /// `--sluice-nf NAME` (or with `=`) of this process.
    pub fn from_env() -> Self {
        let mut options = Self {
            socket: std::env::var_os(ENV_SOCKET).map(PathBuf::from),
            name: std::env::var(ENV_NF).ok(),
            zygote: std::env::var_os(ENV_ZYGOTE).is_some(),
            ..Self::default()
        };
        options.take(std::env::args_os().skip(1));
        options
    }

    /// Takes the two arguments out of `args` and returns the others, in order.
    fn take(&mut self, args: impl Iterator<Item = OsString>) -> Vec<OsString> {
        let mut others = Vec::new();
        let mut args = args;
        while let Some(arg) = args.next() {
            match split(&arg) {
                Some((Key::Socket, value)) => self.socket = value.or_else(|| args.next()).map(PathBuf::from),
                Some((Key::Nf, value)) => {
                    self.name = value.or_else(|| args.next()).map(|name| name.to_string_lossy().into_owned());
                }
                None => {
                    let end = arg == "--";
                    others.push(arg);
                    if end {
                        others.extend(args.by_ref());
                    }
                }
            }
        }
        others
    }
}

/// The name of this program, as it was called.
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().map_or_else(|| "nf".into(), |name| name.to_string_lossy().into_owned())
}

/// What an NF that reads no arguments of its own says to `--help` and `--version`, if one of them is all that it was given.
pub(crate) fn answer(program: &str, args: &[OsString]) -> Option<String> {
    let [arg] = args else { return None };
    let version = env!("CARGO_PKG_VERSION");
    match arg.to_str()? {
        "--version" => Some(format!("{program} {version}\n")),
        "--help" => {
            let service = program.strip_prefix("sluice-nf-").unwrap_or(program);
            Some(format!(
                "\
A network function (NF) of Sluice, without arguments of its own

Usage: {program} [OPTIONS]

Options:
      --sluice-socket <PATH>  The manager's socket for NFs [env: {ENV_SOCKET}]
      --sluice-nf <NAME>      Name of this NF, or of its service [env: {ENV_NF}]
      --help                  Print help
      --version               Print version

sluiced starts it where a configuration says so:
  [[service]]
  name = \"{service}\"
  exec = \"{program}\"

Where the service says attach = true, it is started by hand:
  {program} --sluice-socket /run/sluice/nf.sock --sluice-nf {service}
"
            ))
        }
        _ => None,
    }
}

enum Key {
    Socket,
    Nf,
}

fn split(arg: &OsStr) -> Option<(Key, Option<OsString>)> {
    for (name, key) in [("--sluice-socket", Key::Socket), ("--sluice-nf", Key::Nf)] {
        match arg.as_bytes().strip_prefix(name.as_bytes()) {
            Some([]) => return Some((key, None)),
            Some([b'=', value @ ..]) => return Some((key, Some(OsString::from_vec(value.to_vec())))),
            _ => {}
        }
    }
    None
}

/// The arguments of this process that are the NF's own: without the program's name and without `--sluice-socket` and `--sluice-nf`.
pub fn args() -> Vec<OsString> {
    Options::default().take(std::env::args_os().skip(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_arguments_are_taken_and_the_others_stay() {
        let mut options = Options::default();
        let args = ["--rules", "x", "--sluice-socket", "/run/s", "--sluice-nf=ids.0", "-v", "--", "--sluice-nf=no"];
        let others = options.take(args.into_iter().map(OsString::from));
        assert_eq!(others, ["--rules", "x", "-v", "--", "--sluice-nf=no"]);
        assert_eq!(options.socket, Some("/run/s".into()));
        assert_eq!(options.name.as_deref(), Some("ids.0"));
    }

    #[test]
    fn help_and_version_have_the_programs_name() {
        let answer = |args: &[&str]| answer("sluice-nf-mark", &args.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(answer(&["--version"]).unwrap(), format!("sluice-nf-mark {}\n", env!("CARGO_PKG_VERSION")));
        let help = answer(&["--help"]).unwrap();
        assert!(help.contains("Usage: sluice-nf-mark [OPTIONS]") && help.contains("name = \"mark\""), "{help}");
        for args in [&[][..], &["--help", "x"], &["-h"], &["help"]] {
            assert_eq!(answer(args), None, "{args:?}: it may be the NF's own");
        }
    }

    #[test]
    fn a_missing_value_is_none() {
        let mut options = Options::default();
        assert!(options.take([OsString::from("--sluice-nf")].into_iter()).is_empty());
        assert_eq!(options.name, None);
    }
}
