//! A sequence of system calls and their results, for comparison with the same sequence elsewhere.
//!
//! The result of a step is a line of text: `ok`, the data found, or the error. A step never fails;
//! comparing two scripts finds the differences.

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, Stat, XattrFlags, statat,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longer than a tick of the coarsest clock that a file system takes times from.
pub const TICK: Duration = Duration::from_millis(12);

/// Steps on one file system, with their results.
pub struct Script {
    root: PathBuf,
    lines: Vec<(String, String)>,
    prefix: String,
}

pub type Answer = io::Result<String>;

pub fn done<T>(result: rustix::io::Result<T>) -> Answer {
    result?;
    Ok("ok".to_owned())
}

/// Returns the text, or the error's description.
pub fn line(answer: Answer) -> String {
    match answer {
        Ok(text) => text,
        Err(error) => match error.raw_os_error() {
            Some(number) => format!("error {number} ({error})"),
            None => format!("error {error}"),
        },
    }
}

impl Script {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_path_buf(), lines: Vec::new(), prefix: String::new() }
    }

    /// Returns the path of a name on this file system.
    pub fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }

    /// Runs a step and records its result.
    pub fn step(&mut self, name: impl std::fmt::Display, run: impl FnOnce(&Path) -> Answer) {
        let answer = run(&self.root);
        self.lines.push((format!("{}{name}", self.prefix), line(answer)));
    }

    /// Runs steps as another user, in a thread with that user's permissions.
    pub fn user(&mut self, uid: u32, gid: u32, groups: &[u32], steps: impl FnOnce(&mut Self) + Send) {
        let mut inner = Self::new(&self.root);
        inner.prefix = format!("{}[{uid}:{gid}] ", self.prefix);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                become_user(uid, gid, groups);
                steps(&mut inner);
            });
        });
        self.lines.append(&mut inner.lines);
    }

    /// Adds the steps that another script took.
    pub fn append(&mut self, mut other: Self) {
        self.lines.append(&mut other.lines);
    }

    /// Returns the differences between two runs of the same steps.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        assert_eq!(self.lines.len(), other.lines.len(), "the two runs took different steps");
        let pairs = self.lines.iter().zip(&other.lines);
        pairs
            .enumerate()
            .filter(|(_, (ours, theirs))| ours != theirs)
            .map(|(number, (ours, theirs))| {
                format!("step {number}, {}: here {}, there {} {}", ours.0, ours.1, theirs.0, theirs.1)
            })
            .map(|text| text.chars().take(300).collect())
            .collect()
    }

    pub fn steps(&self) -> usize {
        self.lines.len()
    }

    pub fn mkdir(&mut self, name: &str, mode: u32) {
        self.step(format!("mkdir {name} {mode:o}"), |root| {
            done(rustix::fs::mkdir(root.join(name), Mode::from_raw_mode(mode)))
        });
    }

    pub fn rmdir(&mut self, name: &str) {
        self.step(format!("rmdir {name}"), |root| done(rustix::fs::rmdir(root.join(name))));
    }

    pub fn unlink(&mut self, name: &str) {
        self.step(format!("unlink {name}"), |root| done(rustix::fs::unlink(root.join(name))));
    }

    pub fn link(&mut self, name: &str, new: &str) {
        self.step(format!("link {name} {new}"), |root| {
            done(rustix::fs::linkat(CWD, root.join(name), CWD, root.join(new), AtFlags::empty()))
        });
    }

    pub fn symlink(&mut self, target: &str, name: &str) {
        self.step(format!("symlink {} {name}", shorten(target)), |root| {
            done(rustix::fs::symlink(target, root.join(name)))
        });
    }

    pub fn read_link(&mut self, name: &str) {
        self.step(format!("readlink {name}"), |root| {
            let target = rustix::fs::readlink(root.join(name), Vec::new())?;
            Ok(shorten(&target.to_string_lossy()))
        });
    }

    pub fn rename(&mut self, name: &str, new: &str, flags: RenameFlags) {
        self.step(format!("rename {name} {} {flags:?}", shorten(new)), |root| {
            done(rustix::fs::renameat_with(CWD, root.join(name), CWD, root.join(new), flags))
        });
    }

    pub fn mknod(&mut self, name: &str, kind: rustix::fs::FileType, mode: u32, device: u64) {
        self.step(format!("mknod {name} {kind:?} {mode:o} {device:x}"), |root| {
            done(rustix::fs::mknodat(CWD, root.join(name), kind, Mode::from_raw_mode(mode), device))
        });
    }

    /// Creates a file with this content.
    pub fn write(&mut self, name: &str, content: &[u8]) {
        self.step(format!("write {name} {} bytes", content.len()), |root| {
            std::fs::write(root.join(name), content)?;
            Ok("ok".to_owned())
        });
    }

    /// Records a file's content by length and hash.
    pub fn read(&mut self, name: &str) {
        self.step(format!("read {name}"), |root| Ok(summary(&std::fs::read(root.join(name))?)));
    }

    /// Opens a file and records the result.
    pub fn open(&mut self, name: &str, flags: OFlags, mode: u32) -> Option<OwnedFd> {
        let mut opened = None;
        self.step(format!("open {} {flags:?} {mode:o}", shorten(name)), |root| {
            opened = Some(rustix::fs::open(root.join(name), flags, Mode::from_raw_mode(mode))?);
            Ok("ok".to_owned())
        });
        opened
    }

    pub fn chmod(&mut self, name: &str, mode: u32) {
        self.step(format!("chmod {name} {mode:o}"), |root| {
            done(rustix::fs::chmod(root.join(name), Mode::from_raw_mode(mode)))
        });
    }

    pub fn chown(&mut self, name: &str, uid: Option<u32>, gid: Option<u32>) {
        self.step(format!("chown {name} {uid:?} {gid:?}"), |root| {
            let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
            done(rustix::fs::chownat(CWD, root.join(name), uid, gid, AtFlags::SYMLINK_NOFOLLOW))
        });
    }

    pub fn truncate(&mut self, name: &str, size: u64) {
        self.step(format!("truncate {name} {size}"), |root| {
            let path = std::ffi::CString::new(root.join(name).into_os_string().into_encoded_bytes())?;
            // SAFETY: the path is a C string.
            match unsafe { libc::truncate(path.as_ptr(), size as libc::off_t) } {
                0 => Ok("ok".to_owned()),
                _ => Err(io::Error::last_os_error()),
            }
        });
    }

    pub fn fallocate(&mut self, file: impl AsFd, mode: FallocateFlags, offset: u64, length: u64) {
        self.step(format!("fallocate {mode:?} {offset} {length}"), |_| {
            done(rustix::fs::fallocate(file, mode, offset, length))
        });
    }

    pub fn seek(&mut self, file: impl AsFd, offset: u64) {
        for (name, to) in [("data", SeekFrom::Data(offset)), ("hole", SeekFrom::Hole(offset))] {
            self.step(format!("seek {name} {offset}"), |_| {
                Ok(rustix::fs::seek(file.as_fd(), to)?.to_string())
            });
        }
    }

    pub fn setxattr(&mut self, name: &str, attribute: &str, value: &[u8], flags: XattrFlags) {
        let value_name = format!("{} bytes", value.len());
        self.step(format!("setxattr {name} {} {value_name} {flags:?}", shorten(attribute)), |root| {
            done(rustix::fs::lsetxattr(root.join(name), attribute, value, flags))
        });
    }

    pub fn getxattr(&mut self, name: &str, attribute: &str) {
        self.step(format!("getxattr {name} {}", shorten(attribute)), |root| {
            let mut buffer = vec![0_u8; 65_536];
            let length = rustix::fs::lgetxattr(root.join(name), attribute, &mut buffer[..])?;
            Ok(summary(&buffer[..length]))
        });
    }

    pub fn removexattr(&mut self, name: &str, attribute: &str) {
        self.step(format!("removexattr {name} {attribute}"), |root| {
            done(rustix::fs::lremovexattr(root.join(name), attribute))
        });
    }

    /// Records the names of extended attributes, sorted.
    pub fn listxattr(&mut self, name: &str) {
        self.step(format!("listxattr {name}"), |root| {
            let mut buffer = vec![0_u8; 65_536];
            let length = rustix::fs::llistxattr(root.join(name), &mut buffer[..])?;
            let mut names: Vec<_> =
                buffer[..length].split(|&byte| byte == 0).map(<[u8]>::escape_ascii).collect();
            names.sort_by_key(ToString::to_string);
            Ok(format!("{:?}", names.iter().map(ToString::to_string).collect::<Vec<_>>()))
        });
    }

    /// Records the attributes that `stat` shows, except times.
    pub fn stat(&mut self, name: &str) {
        self.step(format!("stat {name}"), |root| Ok(show(&lstat(&root.join(name))?)));
    }

    pub fn fstat(&mut self, name: &str, file: impl AsFd) {
        self.step(format!("fstat {name}"), |_| Ok(show(&rustix::fs::fstat(file)?)));
    }

    /// Like `stat`, including the number of blocks after writeback.
    pub fn blocks(&mut self, name: &str) {
        self.step(format!("blocks {name}"), |root| {
            rustix::fs::fsync(std::fs::File::open(root.join(name))?)?;
            Ok(lstat(&root.join(name))?.st_blocks.to_string())
        });
    }

    /// Records the entries of a directory with their kinds, in listing order.
    pub fn list(&mut self, name: &str) {
        self.step(format!("list {name}"), |root| {
            let mut text = String::new();
            for entry in std::fs::read_dir(root.join(name))? {
                let entry = entry?;
                text += &format!("{}:{:?} ", entry.file_name().display(), kind_of(&entry.file_type()?));
            }
            Ok(text)
        });
    }

    /// Records the times of `watched` that the steps change: `a`, `m`, `c`.
    pub fn times(&mut self, watched: &[&str], steps: impl FnOnce(&mut Self)) {
        let before: Vec<_> = watched.iter().map(|name| lstat(&self.path(name)).ok()).collect();
        std::thread::sleep(TICK);
        steps(self);
        std::thread::sleep(TICK);
        let last = self.lines.last().map(|line| line.0.clone()).unwrap_or_default();
        for (name, before) in watched.iter().zip(before) {
            self.step(format!("times of {name} after {last}"), |root| {
                let after = lstat(&root.join(name)).ok();
                let (Some(before), Some(after)) = (before, after) else { return Ok("none".to_owned()) };
                let mut text = String::new();
                for (letter, before, after) in [
                    ('a', (before.st_atime, before.st_atime_nsec), (after.st_atime, after.st_atime_nsec)),
                    ('m', (before.st_mtime, before.st_mtime_nsec), (after.st_mtime, after.st_mtime_nsec)),
                    ('c', (before.st_ctime, before.st_ctime_nsec), (after.st_ctime, after.st_ctime_nsec)),
                ] {
                    if before != after {
                        text.push(letter);
                    }
                }
                Ok(text)
            });
        }
    }

    /// Records the times themselves, after a step that sets them.
    pub fn times_are(&mut self, name: &str) {
        self.step(format!("times {name}"), |root| {
            let stat = lstat(&root.join(name))?;
            Ok(format!("{}.{} {}.{}", stat.st_atime, stat.st_atime_nsec, stat.st_mtime, stat.st_mtime_nsec))
        });
    }
}

pub fn lstat(path: &Path) -> io::Result<Stat> {
    Ok(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?)
}

pub fn show(stat: &Stat) -> String {
    format!(
        "{:o} {} {}:{} {} dev {:x} in {}",
        stat.st_mode, stat.st_nlink, stat.st_uid, stat.st_gid, stat.st_size, stat.st_rdev, stat.st_blksize
    )
}

fn kind_of(kind: &std::fs::FileType) -> char {
    match (kind.is_dir(), kind.is_file(), kind.is_symlink()) {
        (true, ..) => 'd',
        (_, true, _) => 'f',
        (.., true) => 'l',
        _ => 'o',
    }
}

/// Describes bytes by their length and hash.
pub fn summary(bytes: &[u8]) -> String {
    let sum = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    format!("{} bytes, {sum:x}", bytes.len())
}

fn shorten(text: &str) -> String {
    match text.len() {
        0..=60 => text.to_owned(),
        length => format!("{}... of {length}", &text[..20]),
    }
}

/// Gives this thread, and no other one, a user's permissions.
pub fn become_user(uid: u32, gid: u32, groups: &[u32]) {
    // SAFETY: system calls on this thread only; the C library's wrappers would change all threads.
    unsafe {
        assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
        assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
        assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
    }
}
