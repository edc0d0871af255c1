//! The table of mounts, from `/proc/PID/mountinfo`.
//!
//! Owns [`MountEntry`] and the parser of its lines. proc_pid_mountinfo(5) describes the format.
//!
//! Kernel counterpart: `show_mountinfo` (`fs/proc_namespace.c`).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The file system type of Papilio's mounts.
pub const FSTYPE: &str = "fuse.papilio";

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Id of the mount in its mount namespace.
    pub id: u64,
    /// The device number, as `major:minor`.
    pub device: String,
    /// The directory of the file system that the mount shows.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// Options of the mount itself, separated by commas.
    pub mount_options: String,
    /// The type of file system, such as `fuse.papilio`.
    pub fstype: String,
    /// The mounted source, such as a device or an image.
    pub source: PathBuf,
    /// Options of the file system, separated by commas.
    pub options: String,
}

impl MountEntry {
    /// Returns the mounts that this process sees, oldest first. A mount that covers another one
    /// follows it. Hosts other than Linux have no mounts of Papilio, and no table to read here.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn all() -> io::Result<Vec<Self>> {
        if cfg!(target_os = "linux") { Ok(parse(&fs::read("/proc/self/mountinfo")?)) } else { Ok(Vec::new()) }
    }

    /// Returns the mount that contains `path`, which must exist.
    ///
    /// # Errors
    /// `path` cannot be looked up, or /proc cannot be read.
    pub fn of(path: &Path) -> io::Result<Option<Self>> {
        let id = mount_id(path)?;
        Ok(Self::all()?.into_iter().find(|mount| mount.id == id))
    }

    /// Returns the newest mount of Papilio on `directory`, an absolute path without symbolic links.
    ///
    /// # Errors
    /// /proc cannot be read.
    pub fn of_papilio_on(directory: &Path) -> io::Result<Option<Self>> {
        let mounts = Self::all()?;
        Ok(mounts.into_iter().rev().find(|mount| mount.is_papilio() && mount.point == directory))
    }

    /// Returns whether the mount shows other owners than the file system has.
    pub fn is_idmapped(&self) -> bool {
        self.mount_options.split(',').any(|option| option == "idmapped")
    }

    /// Returns whether the mount is one of Papilio's.
    pub fn is_papilio(&self) -> bool {
        self.fstype == FSTYPE
    }
}

/// Returns the id of the mount that contains `path`. On hosts other than Linux it means nothing.
fn mount_id(path: &Path) -> io::Result<u64> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxFlags};
        Ok(rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID)?.stx_mnt_id)
    }
    #[cfg(not(target_os = "linux"))]
    fs::metadata(path).map(|_| 0)
}

/// Parses a whole mountinfo; skips malformed lines.
pub fn parse(text: &[u8]) -> Vec<MountEntry> {
    text.split(|&byte| byte == b'\n').filter_map(parse_line).collect()
}

fn parse_line(line: &[u8]) -> Option<MountEntry> {
    let mut fields = line.split(|&byte| byte == b' ');
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let _parent = fields.next()?;
    let device = text(fields.next()?);
    let (root, point) = (unescape(fields.next()?), unescape(fields.next()?));
    let mount_options = text(fields.next()?);
    fields.find(|field| *field == b"-")?;
    let fstype = text(fields.next()?);
    let source = unescape(fields.next()?);
    let options = text(fields.next()?);
    Some(MountEntry { id, device, root, point, mount_options, fstype, source, options })
}

/// Decodes a path in mountinfo, where blanks and backslashes are `\` and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        let octal = (byte == b'\\').then(|| after.get(..3)).flatten();
        let decoded = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        bytes.push(decoded.unwrap_or(byte));
        rest = if decoded.is_some() { &after[3..] } else { after };
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mountinfo_lines_are_parsed() {
        let text = b"36 35 98:0 /root\\040a /mnt\\134\\011b rw,noatime shared:1 master:2 - ext4 /dev/x rw,errors=continue\n\
            37 35 0:41 / /m rw,nosuid,idmapped - fuse.papilio /tmp/a\\040b.img rw,user_id=0\nnonsense\n\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 2);
        assert_eq!(
            (mounts[0].id, mounts[0].device.as_str(), mounts[0].fstype.as_str()),
            (36, "98:0", "ext4")
        );
        assert_eq!((&*mounts[0].root, &*mounts[0].point), (Path::new("/root a"), Path::new("/mnt\\\tb")));
        assert_eq!(mounts[0].options, "rw,errors=continue");
        assert!(mounts[1].is_papilio() && !mounts[0].is_papilio());
        assert!(mounts[1].is_idmapped() && !mounts[0].is_idmapped());
        assert_eq!(mounts[1].source, Path::new("/tmp/a b.img"));
        assert_eq!(unescape(br"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(unescape(b"a\\9z\\"), Path::new("a\\9z\\"));
    }

    #[test]
    fn mount_of_a_path_is_found() {
        assert_eq!(MountEntry::of(Path::new("/proc/self")).unwrap().unwrap().fstype, "proc");
        assert!(MountEntry::of(Path::new("/no/such/path")).is_err());
    }
}
