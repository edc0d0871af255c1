//! The tables of mounts, with Papilio's mounts as the kernel's Btrfs shows its own.
//!
//! Owns [`rewritten`]. Lines of other mounts stay as they are. proc_pid_mountinfo(5) and fstab(5)
//! describe the formats.

use crate::identity::ROOT_INODE;
use crate::own_mounts::FSTYPE;
use crate::system;
use std::ffi::{CStr, CString};
use std::os::fd::AsRawFd;

/// The top level's id (`BTRFS_FS_TREE_OBJECTID`).
const TOP_LEVEL: u64 = 5;
/// `BTRFS_IOC_INO_LOOKUP` and `BTRFS_IOC_GET_SUBVOL_INFO` (`include/uapi/linux/btrfs.h`).
const INO_LOOKUP: u32 = 0xd000_9412;
const GET_SUBVOL_INFO: u32 = 0x81f8_943c;

/// Options that only a FUSE mount has.
const OF_FUSE: &[&[u8]] = &[b"default_permissions", b"allow_other"];
const OF_FUSE_WITH_VALUE: &[&[u8]] = &[b"user_id=", b"group_id=", b"max_read=", b"blksize="];

/// Returns whether a path names a table of mounts.
pub fn is_table(path: &CStr) -> bool {
    format_of(path).is_some()
}

/// The format of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    /// `/proc/PID/mountinfo`.
    MountInfo,
    /// `/proc/PID/mounts`.
    Mounts,
}

fn format_of(path: &CStr) -> Option<Format> {
    let path = path.to_bytes();
    if matches!(path, b"/proc/mounts" | b"/etc/mtab") {
        return Some(Format::Mounts);
    }
    let (process, name) = {
        let rest = path.strip_prefix(b"/proc/")?;
        let slash = rest.iter().position(|&byte| byte == b'/')?;
        (&rest[..slash], &rest[slash + 1..])
    };
    let is_process = matches!(process, b"self" | b"thread-self")
        || !process.is_empty() && process.iter().all(u8::is_ascii_digit);
    match name {
        b"mountinfo" if is_process => Some(Format::MountInfo),
        b"mounts" if is_process => Some(Format::Mounts),
        _ => None,
    }
}

/// Returns a table with Papilio's mounts rewritten. `path` is the table's.
pub fn rewritten(path: &CStr, table: &[u8]) -> Vec<u8> {
    rewritten_with(format_of(path).unwrap_or(Format::MountInfo), table, subvolume_at)
}

/// The subvolume that a mount shows.
#[derive(Debug)]
struct Shown {
    id: u64,
    /// Its path from the top level, if it is known.
    path: Option<Vec<u8>>,
}

fn rewritten_with(format: Format, table: &[u8], subvolume_at: impl Fn(&CStr) -> Option<Shown>) -> Vec<u8> {
    let mut all = Vec::with_capacity(table.len());
    for line in table.split_inclusive(|&byte| byte == b'\n') {
        let (fields, end) = match line.strip_suffix(b"\n") {
            Some(fields) => (fields, &b"\n"[..]),
            None => (line, &b""[..]),
        };
        let mut fields: Vec<Vec<u8>> = fields.split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect();
        let changed = match format {
            Format::MountInfo => change_mount_info(&mut fields, &subvolume_at),
            Format::Mounts => change_mounts(&mut fields, &subvolume_at),
        };
        match changed {
            Some(()) => {
                all.extend(fields.join(&b' '));
                all.extend(end);
            }
            None => all.extend(line),
        }
    }
    all
}

fn change_mount_info(fields: &mut [Vec<u8>], subvolume_at: &impl Fn(&CStr) -> Option<Shown>) -> Option<()> {
    let separator = fields.iter().position(|field| field == b"-")?;
    if fields.get(separator + 1)? != FSTYPE || fields.len() < separator + 4 || separator < 6 {
        return None;
    }
    let shown = subvolume_at(&unescaped(&fields[4])?);
    let root = fields[3].clone();
    fields[separator + 1] = b"btrfs".to_vec();
    fields[separator + 3] = options(&fields[separator + 3], shown.as_ref(), &root);
    if let Some(path) = shown.as_ref().and_then(|shown| shown.path.as_ref())
        && root == b"/"
    {
        fields[3] = escaped(path);
    }
    Some(())
}

fn change_mounts(fields: &mut [Vec<u8>], subvolume_at: &impl Fn(&CStr) -> Option<Shown>) -> Option<()> {
    if fields.get(2)? != FSTYPE || fields.len() < 4 {
        return None;
    }
    let shown = subvolume_at(&unescaped(&fields[1])?);
    fields[2] = b"btrfs".to_vec();
    fields[3] = options(&fields[3], shown.as_ref(), b"/");
    Some(())
}

/// Returns the options of Btrfs in the place of those of FUSE. `root` is the directory that the
/// mount shows of its file system.
fn options(of_fuse: &[u8], shown: Option<&Shown>, root: &[u8]) -> Vec<u8> {
    let is_of_fuse = |option: &[u8]| {
        OF_FUSE.contains(&option) || OF_FUSE_WITH_VALUE.iter().any(|prefix| option.starts_with(prefix))
    };
    let mut kept: Vec<Vec<u8>> = of_fuse
        .split(|&byte| byte == b',')
        .filter(|option| !is_of_fuse(option))
        .map(<[u8]>::to_vec)
        .collect();
    if let Some(shown) = shown {
        kept.push(format!("subvolid={}", shown.id).into_bytes());
        let path = match &shown.path {
            Some(path) => Some(escaped(path)),
            None if root != b"/" => Some(root.to_vec()),
            None => None,
        };
        kept.extend(path.map(|path| [b"subvol=", &path[..]].concat()));
    }
    kept.join(&b',')
}

/// Asks the mount at a path for its subvolume.
fn subvolume_at(point: &CStr) -> Option<Shown> {
    let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK;
    let directory = system::open_at(libc::AT_FDCWD, point, flags).ok()?;
    // The subvolume's id, an inode number, and the path that this asks for.
    let mut lookup = [0_u64; 512];
    lookup[1] = ROOT_INODE;
    // SAFETY: the structure of INO_LOOKUP has 4096 bytes, and so has this.
    unsafe { system::ioctl(directory.as_raw_fd(), INO_LOOKUP, &mut lookup) }.ok()?;
    let id = lookup[0];
    if id == TOP_LEVEL {
        return Some(Shown { id, path: Some(b"/".to_vec()) });
    }
    let mut info = [0_u64; 63];
    // SAFETY: the structure of GET_SUBVOL_INFO has 504 bytes, and so has this.
    let answered = unsafe { system::ioctl(directory.as_raw_fd(), GET_SUBVOL_INFO, &mut info) };
    let path = answered.ok().and_then(|_| path_of(&info));
    Some(Shown { id, path })
}

/// Returns the path of a subvolume that lies in the top level's root directory: its id, its name in
/// 256 bytes, its parent's id and the inode of its directory come first.
fn path_of(info: &[u64; 63]) -> Option<Vec<u8>> {
    let bytes: Vec<u8> = info[1..33].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let name = bytes.split(|&byte| byte == 0).next()?;
    let (parent, directory) = (info[33], info[34]);
    (parent == TOP_LEVEL && directory == ROOT_INODE && !name.is_empty()).then(|| [b"/", name].concat())
}

/// Encodes a path as tables of mounts do.
fn escaped(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => out.extend(format!("\\{byte:03o}").bytes()),
            byte => out.push(byte),
        }
    }
    out
}

/// Decodes a path of a table; `None` if it cannot be one.
fn unescaped(field: &[u8]) -> Option<CString> {
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
    CString::new(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(point: &CStr) -> Option<Shown> {
        match point.to_bytes() {
            b"/m" => Some(Shown { id: 5, path: Some(b"/".to_vec()) }),
            b"/a b" => Some(Shown { id: 256, path: None }),
            b"/s" => Some(Shown { id: 257, path: Some(b"/x y".to_vec()) }),
            _ => None,
        }
    }

    #[test]
    fn lines_of_papilio_become_those_of_btrfs() {
        let table = b"36 35 98:0 / / rw shared:1 - ext4 /dev/x rw\n\
            37 35 0:41 / /m rw,noatime shared:9 - fuse.papilio /dev/loop0 rw,user_id=0,group_id=0,default_permissions,allow_other\n\
            38 35 0:41 /sub/v /a\\040b ro - fuse.papilio /dev/loop0 rw,user_id=0,max_read=1\n\
            39 35 0:42 / /s rw - fuse.papilio /i rw,user_id=0\n\
            40 35 0:43 / /gone rw - fuse.papilio /i ro,user_id=0\n\
            41 35 0:44 / /f rw - fuse.other fuse.papilio rw,user_id=0\nshort - fuse.papilio";
        let expected = "36 35 98:0 / / rw shared:1 - ext4 /dev/x rw\n\
            37 35 0:41 / /m rw,noatime shared:9 - btrfs /dev/loop0 rw,subvolid=5,subvol=/\n\
            38 35 0:41 /sub/v /a\\040b ro - btrfs /dev/loop0 rw,subvolid=256,subvol=/sub/v\n\
            39 35 0:42 /x\\040y /s rw - btrfs /i rw,subvolid=257,subvol=/x\\040y\n\
            40 35 0:43 / /gone rw - btrfs /i ro\n\
            41 35 0:44 / /f rw - fuse.other fuse.papilio rw,user_id=0\nshort - fuse.papilio";
        let found = rewritten_with(Format::MountInfo, table, shown);
        assert_eq!(String::from_utf8(found).unwrap(), expected);
        let table = b"/dev/loop0 /m fuse.papilio rw,relatime,user_id=0,group_id=0,allow_other 0 0\nproc /proc proc rw 0 0\n";
        let expected = "/dev/loop0 /m btrfs rw,relatime,subvolid=5,subvol=/ 0 0\nproc /proc proc rw 0 0\n";
        assert_eq!(String::from_utf8(rewritten_with(Format::Mounts, table, shown)).unwrap(), expected);
    }

    #[test]
    fn tables_are_known_by_their_paths() {
        for path in [c"/proc/self/mountinfo", c"/proc/mounts", c"/etc/mtab", c"/proc/12/mounts"] {
            assert!(is_table(path), "{path:?}");
        }
        for path in
            [c"/proc/self/status", c"/proc//mounts", c"/proc/x/mounts", c"mounts", c"/proc/1/2/mounts"]
        {
            assert!(!is_table(path), "{path:?}");
        }
    }

    #[test]
    fn subvolumes_in_the_top_level_have_a_path() {
        let mut info = [0_u64; 63];
        info[1] = u64::from_ne_bytes(*b"name\0\0\0\0");
        (info[33], info[34]) = (5, 256);
        assert_eq!(path_of(&info), Some(b"/name".to_vec()));
        info[34] = 257;
        assert_eq!(path_of(&info), None);
    }

    #[test]
    fn numbers_are_those_of_the_ioctls() {
        assert_eq!(INO_LOOKUP, papilio_ioctl::number::Command::INO_LOOKUP.0);
        assert_eq!(GET_SUBVOL_INFO, papilio_ioctl::number::Command::GET_SUBVOL_INFO.0);
    }
}
