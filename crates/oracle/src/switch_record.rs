//! The record of a changed kernel switch, kept in a scratch folder until the switch is restored.
//!
//! Owns the record's file. A run that is killed leaves the record behind; cleanup then restores the
//! switch. **Locks**: `flock` on the switch, exclusive and without waiting.

use rustix::fs::{FlockOperation, flock};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file in a scratch folder that holds a record: a switch's old value, followed by its path.
const RECORD: &str = "switch";

/// Records in `folder` that `switch` had the value `before`.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn write(folder: &Path, before: u8, switch: &Path) -> io::Result<()> {
    let content = [&[before][..], switch.as_os_str().as_bytes()].concat();
    std::fs::write(folder.join(RECORD), content)
}

/// Restores a switch that the killed owner of `folder` changed. Returns whether nothing is left to
/// do; a switch in use keeps its value for now.
///
/// # Errors
/// The record cannot be read, or the switch cannot be written.
pub(crate) fn restore(folder: &Path) -> io::Result<bool> {
    let record = folder.join(RECORD);
    let content = match std::fs::read(&record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        content => content?,
    };
    // Other users can create folders here, and must not decide what is written where.
    let ours = [folder, &record].into_iter().try_fold(true, |ours, path| {
        let found = std::fs::symlink_metadata(path)?;
        io::Result::Ok(
            ours && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o022 == 0,
        )
    })?;
    // A truncated record was written before anything was changed.
    let Some((&before, path)) = content.split_first().filter(|(_, path)| ours && !path.is_empty()) else {
        return Ok(true);
    };
    let switch = match File::options().read(true).write(true).open(OsStr::from_bytes(path)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
        switch => switch?,
    };
    match flock(&switch, FlockOperation::NonBlockingLockExclusive) {
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
        locked => locked?,
    }
    rustix::io::pwrite(&switch, &[before], 0)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn record_that_others_may_write_is_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let (folder, switch) = (directory.path().join("folder"), directory.path().join("pretended"));
        std::fs::write(&switch, "Y\n").unwrap();
        std::fs::create_dir(&folder).unwrap();
        write(&folder, b'N', &switch).unwrap();
        let set_mode = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(folder.join(RECORD), permissions).unwrap();
        };
        set_mode(0o666);
        assert!(restore(&folder).unwrap());
        assert_eq!(std::fs::read(&switch).unwrap()[0], b'Y');
        set_mode(0o600);
        assert!(restore(&folder).unwrap());
        assert_eq!(std::fs::read(&switch).unwrap()[0], b'N');
    }
}
