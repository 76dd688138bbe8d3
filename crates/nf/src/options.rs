//! How an NF finds its manager: by two variables that the manager sets, or by two arguments.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use sluice_shm::handshake::{ENV_NF, ENV_SOCKET};
use sluice_shm::zygote::ENV_ZYGOTE;

/// How an NF finds its manager and handles signals.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The manager's socket.
    pub socket: Option<PathBuf>,
    /// The name of this NF (`ids.0`), or of its service (`ids`): the manager picks an instance.
    pub name: Option<String>,
    /// Whether SIGTERM and SIGINT stop the NF cleanly. If off, the process's own handlers stay.
    pub signals: bool,
    /// Whether this process is a zygote: it makes its handler, and is forked for each instance. The
    /// manager sets the variable `SLUICE_ZYGOTE` for it.
    pub zygote: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { socket: None, name: None, signals: true, zygote: false }
    }
}

impl Options {
    /// Options from the variables `SLUICE_SOCKET` and `SLUICE_NF`, overridden by this process's
    /// arguments `--sluice-socket PATH` and `--sluice-nf NAME` (or with `=`).
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

/// The name by which this program was called.
pub(crate) fn program() -> String {
    let path = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    path.file_name().map_or_else(|| "nf".into(), |name| name.to_string_lossy().into_owned())
}

/// The answer of an NF without own arguments to a single `--help` or `--version`.
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

/// The NF's own arguments: without the program's name, `--sluice-socket` and `--sluice-nf`.
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
