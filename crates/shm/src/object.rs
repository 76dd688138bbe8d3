//! Where the shared object of an NF's program lies, by which it can be a part of a group.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// The argument of a group's program before each part, `NAME=PROGRAM`.
pub const PART: &str = "--part";

/// Variable with the number of the descriptor by which a group finds its first part's object; those
/// of the others follow. It may not be able to reach their folders.
pub const ENV_OBJECTS: &str = "SLUICE_OBJECTS";

/// Name of the program that runs groups.
pub const GROUP: &str = "sluice-nf-group";

/// The name of a program's shared object: `libsluice_nf_nat.so` for `sluice-nf-nat`.
pub fn name_of(program: &Path) -> OsString {
    let stem = program.file_name().unwrap_or(OsStr::new("nf"));
    let plain = stem.as_bytes().iter().map(|byte| if *byte == b'-' { b'_' } else { *byte });
    OsString::from_vec(b"lib".iter().copied().chain(plain).chain(b".so".iter().copied()).collect())
}

/// The shared object of a program: in the program's folder, or in `../lib/sluice` from there. A
/// program without a folder is looked for in `folders`, in order.
pub fn find(program: &Path, folders: &[PathBuf], exists: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let own = program.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_path_buf);
    let folders = own.as_ref().map_or(folders, std::slice::from_ref);
    let name = name_of(program);
    folders.iter().flat_map(|folder| [folder.join(&name), folder.join("../lib/sluice").join(&name)]).find(|path| exists(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_lies_beside_its_program_or_among_the_libraries() {
        let find = |program: &str, there: &str| {
            find(Path::new(program), &["/opt/bin".into(), "/usr/bin".into()], |path| path == Path::new(there))
        };
        assert_eq!(name_of(Path::new("/opt/my-nf")), "libmy_nf.so");
        for there in ["/usr/bin/libmy_nf.so", "/usr/bin/../lib/sluice/libmy_nf.so"] {
            assert_eq!(find("my-nf", there).as_deref(), Some(Path::new(there)));
            assert_eq!(find("/usr/bin/my-nf", there).as_deref(), Some(Path::new(there)));
            assert_eq!(find("/opt/bin/my-nf", there), None, "another folder's is another program's");
        }
    }
}
