//! A history's state on one file system, and its calls there.

use super::call::{Call, OMIT, SLOTS, Step, USERS};
use crate::script::{Answer, TICK, become_user, done, line, lstat, show, summary};
use rustix::fs::{Access, AtFlags, CWD, FileType, Gid, IFlags, Mode, Stat, Timespec, Timestamps, Uid};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The most bytes of a file that a walk reads.
const CONTENT: usize = 2 << 20;

pub struct Side {
    root: PathBuf,
    slots: [Option<OwnedFd>; SLOTS],
}

/// Times of access, modification and change.
type Times = [(i64, u64); 3];

/// An inode's number and times.
fn inode_and_times(stat: &Stat) -> (u64, Times) {
    (stat.st_ino, times(stat))
}

fn times(stat: &Stat) -> Times {
    [
        (stat.st_atime, stat.st_atime_nsec),
        (stat.st_mtime, stat.st_mtime_nsec),
        (stat.st_ctime, stat.st_ctime_nsec),
    ]
}

impl Side {
    /// Makes the directory of a history. Above it are three of its own, so that no symlink leads
    /// out of the file system.
    pub fn new(mount: &Path, name: &str) -> Self {
        let root = mount.join(name).join("x/y/z");
        std::fs::create_dir_all(&root).unwrap();
        for directory in root.ancestors().take(4) {
            let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(directory, everybody).unwrap();
        }
        Self { root, slots: Default::default() }
    }

    /// Makes a call, and returns its result as a line of text.
    pub fn run(&mut self, step: &Step) -> String {
        if !step.timed {
            return self.run_as(step);
        }
        let before = self.watched(step);
        std::thread::sleep(TICK);
        let answer = self.run_as(step);
        std::thread::sleep(TICK);
        let changed = before.iter().zip(self.watched(step)).map(|(before, after)| match (before, after) {
            (Some(before), Some(after)) if before.0 != after.0 => "another".to_owned(),
            (Some((_, before)), Some((_, after))) => {
                let letters = "amc".chars().zip(before.iter().zip(&after));
                letters.filter(|(_, (before, after))| before != after).map(|(letter, _)| letter).collect()
            }
            (None, None) => "none".to_owned(),
            (Some(_), None) => "gone".to_owned(),
            (None, Some(_)) => "new".to_owned(),
        });
        format!("{answer}; times {:?}", changed.collect::<Vec<String>>())
    }

    /// The times of what a step names, and of the directories above.
    fn watched(&self, step: &Step) -> Vec<Option<(u64, Times)>> {
        let mut watched = Vec::new();
        for path in step.call.paths() {
            let path = self.root.join(path);
            for path in [path.parent().unwrap_or(&path), &path] {
                watched.push(lstat(path).ok().as_ref().map(inode_and_times));
            }
        }
        for slot in step.call.slots() {
            let stat = self.slots[slot].as_ref().and_then(|file| rustix::fs::fstat(file).ok());
            watched.push(stat.as_ref().map(inode_and_times));
        }
        watched
    }

    fn run_as(&mut self, step: &Step) -> String {
        let (uid, gid, groups) = USERS[step.user];
        line(if uid == 0 {
            self.call(&step.call)
        } else {
            std::thread::scope(|scope| {
                let user = scope.spawn(|| {
                    become_user(uid, gid, groups);
                    self.call(&step.call)
                });
                user.join().expect("a call does not panic")
            })
        })
    }

    fn slot(&self, slot: usize) -> io::Result<BorrowedFd<'_>> {
        let missing = || io::Error::other("the slot is empty");
        self.slots[slot].as_ref().map(AsFd::as_fd).ok_or_else(missing)
    }

    fn call(&mut self, call: &Call) -> Answer {
        let at = |path: &str| self.root.join(path);
        match call {
            Call::Mkdir(path, mode) => done(rustix::fs::mkdir(at(path), Mode::from_raw_mode(*mode))),
            Call::Rmdir(path) => done(rustix::fs::rmdir(at(path))),
            Call::Unlink(path) => done(rustix::fs::unlink(at(path))),
            Call::Mknod(path, mode) => {
                let kind = FileType::from_raw_mode(*mode);
                done(rustix::fs::mknodat(CWD, at(path), kind, Mode::from_raw_mode(*mode), 0x0105))
            }
            Call::Symlink(target, path) => done(rustix::fs::symlink(target, at(path))),
            Call::ReadLink(path) => Ok(summary(rustix::fs::readlink(at(path), Vec::new())?.as_bytes())),
            Call::Link(from, to, flags) => done(rustix::fs::linkat(CWD, at(from), CWD, at(to), *flags)),
            Call::Rename(from, to, flags) => {
                done(rustix::fs::renameat_with(CWD, at(from), CWD, at(to), *flags))
            }
            Call::Open(slot, path, flags, mode) => {
                let file = rustix::fs::open(at(path), *flags, Mode::from_raw_mode(*mode))?;
                self.slots[*slot] = Some(file);
                Ok("ok".to_owned())
            }
            Call::Close(slot) => Ok(format!("{:?}", self.slots[*slot].take().map(drop))),
            Call::Chmod(path, mode) => done(rustix::fs::chmod(at(path), Mode::from_raw_mode(*mode))),
            Call::Chown(path, uid, gid) => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                done(rustix::fs::chownat(CWD, at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW))
            }
            Call::SetTimes(path, access, modification) => self.set_times(path, *access, *modification),
            Call::Stat(path, flags) => Ok(show(&rustix::fs::statat(CWD, at(path), *flags)?)),
            Call::List(path) => list(&at(path)),
            Call::Access(path, mode) => {
                done(rustix::fs::accessat(CWD, at(path), Access::from_bits_retain(*mode), AtFlags::EACCESS))
            }
            Call::StatFs(path) => {
                let found = rustix::fs::statfs(at(path))?;
                Ok(format!("{} {}", found.f_bsize, found.f_namelen))
            }
            Call::Truncate(path, length) => {
                let path = std::ffi::CString::new(at(path).into_os_string().into_encoded_bytes())?;
                // SAFETY: the path is a C string.
                match unsafe { libc::truncate(path.as_ptr(), *length as libc::off_t) } {
                    0 => Ok("ok".to_owned()),
                    _ => Err(io::Error::last_os_error()),
                }
            }
            Call::SetXattr(path, name, length, flags) => {
                let value: Vec<u8> = (0..*length).map(|at| (at * 7) as u8).collect();
                done(rustix::fs::lsetxattr(at(path), *name, &value, *flags))
            }
            Call::GetXattr(path, name) => {
                let mut value = vec![0_u8; 65_536];
                let length = rustix::fs::lgetxattr(at(path), *name, &mut value[..])?;
                Ok(summary(&value[..length]))
            }
            Call::ListXattr(path) => xattr_names(&at(path)),
            Call::RemoveXattr(path, name) => done(rustix::fs::lremovexattr(at(path), *name)),
            on_open_file => self.call_on_open_file(on_open_file),
        }
    }

    fn call_on_open_file(&self, call: &Call) -> Answer {
        match call {
            Call::Read(slot, offset, length) => {
                let mut bytes = vec![0; *length];
                let count = rustix::io::pread(self.slot(*slot)?, &mut bytes[..], *offset)?;
                Ok(summary(&bytes[..count]))
            }
            Call::Write(slot, offset, length, byte) => {
                Ok(rustix::io::pwrite(self.slot(*slot)?, &pattern(*length, *byte), *offset)?.to_string())
            }
            Call::Append(slot, length, byte) => {
                Ok(rustix::io::write(self.slot(*slot)?, &pattern(*length, *byte))?.to_string())
            }
            Call::SetLength(slot, length) => done(rustix::fs::ftruncate(self.slot(*slot)?, *length)),
            Call::Allocate(slot, mode, offset, length) => {
                done(rustix::fs::fallocate(self.slot(*slot)?, *mode, *offset, *length))
            }
            Call::CopyRange(from, start, to, end, length) => {
                let (mut start, mut end) = (*start, *end);
                let (from, to) = (self.slot(*from)?, self.slot(*to)?);
                // A copy may end early, for example after the last whole sector, and is continued.
                let mut left = *length;
                loop {
                    match rustix::fs::copy_file_range(from, Some(&mut start), to, Some(&mut end), left) {
                        Ok(count) if count > 0 && count < left => left -= count,
                        Err(error) if left == *length => return Err(error.into()),
                        _ => return Ok("ok".to_owned()),
                    }
                }
            }
            Call::StatOpen(slot) => Ok(show(&rustix::fs::fstat(self.slot(*slot)?)?)),
            Call::Sync(slot) => done(rustix::fs::fsync(self.slot(*slot)?)),
            Call::GetFlags(slot) => Ok(format!("{:?}", rustix::fs::ioctl_getflags(self.slot(*slot)?)?)),
            Call::SetFlags(slot, flags) => {
                done(rustix::fs::ioctl_setflags(self.slot(*slot)?, IFlags::from_bits_retain(*flags)))
            }
            Call::LinkOpen(slot, path) => {
                let from = format!("/proc/self/fd/{}", self.slot(*slot)?.as_raw_fd());
                let to = self.root.join(path);
                done(rustix::fs::linkat(CWD, from, CWD, to, AtFlags::SYMLINK_FOLLOW))
            }
            Call::Flock(slot, operation) => done(rustix::fs::flock(self.slot(*slot)?, *operation)),
            Call::Lock(slot, kind, start, length) => {
                lock(self.slot(*slot)?, libc::F_SETLK, *kind, *start, *length).map(|_| "ok".to_owned())
            }
            Call::GetLock(slot, kind, start, length) => {
                let found = lock(self.slot(*slot)?, libc::F_GETLK, *kind, *start, *length)?;
                Ok(format!("{} {} {}", found.l_type, found.l_start, found.l_len))
            }
            Call::ReadMapped(slot, offset, length) => {
                mapped(self.slot(*slot)?, *offset, *length, false, |bytes| summary(bytes))
            }
            Call::WriteMapped(slot, offset, length, byte) => {
                mapped(self.slot(*slot)?, *offset, *length, true, |bytes| {
                    bytes.copy_from_slice(&pattern(bytes.len(), *byte));
                    "ok".to_owned()
                })
            }
            other => unreachable!("{other:?} is not on an open file"),
        }
    }

    fn set_times(&self, path: &str, access: Option<(i64, u32)>, change: Option<(i64, u32)>) -> Answer {
        let time = |time: Option<(i64, u32)>| match time {
            Some((tv_sec, tv_nsec)) => Timespec { tv_sec, tv_nsec: tv_nsec.into() },
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        };
        let set = Timestamps { last_access: time(access), last_modification: time(change) };
        rustix::fs::utimensat(CWD, self.root.join(path), &set, AtFlags::SYMLINK_NOFOLLOW)?;
        let stat = lstat(&self.root.join(path))?;
        let given = |time: Option<(i64, u32)>| time.is_some_and(|(_, part)| part != OMIT);
        let [access_now, change_now, _] = times(&stat);
        Ok(format!("{:?}", (given(access).then_some(access_now), given(change).then_some(change_now))))
    }
}

/// Asks for a lock of this process on a range, without waiting.
fn lock(file: BorrowedFd<'_>, command: i32, kind: i16, start: i64, length: i64) -> io::Result<libc::flock> {
    // SAFETY: plain numbers, for which zeros are valid.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    (range.l_type, range.l_whence) = (kind, libc::SEEK_SET as i16);
    (range.l_start, range.l_len) = (start, length);
    // SAFETY: the range lives through the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut range) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(range),
    }
}

/// Maps a range of a file, as much of it as is inside, and uses the bytes.
fn mapped(
    file: BorrowedFd<'_>,
    offset: u64,
    length: usize,
    write: bool,
    then: impl FnOnce(&mut [u8]) -> String,
) -> Answer {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let stat = rustix::fs::fstat(file)?;
    let end = (offset + length as u64).min(stat.st_size as u64);
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || end <= offset {
        return Ok("nothing to map".to_owned());
    }
    let (page, size) = (offset / 4096 * 4096, (end - offset / 4096 * 4096) as usize);
    let access = if write { ProtFlags::READ | ProtFlags::WRITE } else { ProtFlags::READ };
    // SAFETY: a new mapping, which nothing else uses. The file keeps its size meanwhile: the
    // processes take turns.
    unsafe {
        let start = mmap(std::ptr::null_mut(), size, access, MapFlags::SHARED, file, page)?;
        let skip = (offset - page) as usize;
        let bytes = std::slice::from_raw_parts_mut(start.cast::<u8>().add(skip), size - skip);
        let answer = then(bytes);
        if write {
            msync(start, size, MsyncFlags::SYNC)?;
        }
        munmap(start, size)?;
        Ok(answer)
    }
}

fn pattern(length: usize, byte: u8) -> Vec<u8> {
    (0..length).map(|at| byte.wrapping_add((at / 13) as u8)).collect()
}

/// Returns the entries of a directory with their kinds, in the order of listing.
fn list(path: &Path) -> Answer {
    let mut text = String::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let name = entry.file_name();
        text +=
            &format!("{}:{} ", &name.to_string_lossy()[..1], kind.is_dir() as u8 + 2 * kind.is_file() as u8);
    }
    Ok(text)
}

fn xattr_names(path: &Path) -> Answer {
    let mut buffer = vec![0_u8; 65_536];
    let length = rustix::fs::llistxattr(path, &mut buffer[..])?;
    let mut names: Vec<_> = buffer[..length].split(|&byte| byte == 0).map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(summary(&names.concat()))
}

/// Returns a line for each file below `root`: attributes, content, names of extended attributes.
pub fn walk(root: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(path) = left.pop() {
        let stat = lstat(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
        let content = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path());
                let before = left.len();
                left.extend(entries);
                format!("{} entries", left.len() - before)
            }
            FileType::RegularFile => content(&path),
            FileType::Symlink => summary(std::fs::read_link(&path).unwrap().as_os_str().as_encoded_bytes()),
            _ => String::new(),
        };
        let names = xattr_names(&path).unwrap_or_else(|error| error.to_string());
        lines.push(format!("{name}: {}; {content}; {names}", show(&stat)));
    }
    lines.sort();
    lines
}

fn content(path: &Path) -> String {
    use std::io::Read;
    let mut bytes = Vec::new();
    match std::fs::File::open(path).and_then(|file| file.take(CONTENT as u64).read_to_end(&mut bytes)) {
        Ok(_) => summary(&bytes),
        Err(error) => error.to_string(),
    }
}
