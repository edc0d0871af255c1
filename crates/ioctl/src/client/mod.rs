//! The client's side of ioctls.
//!
//! Owns [`MountedPath`], an open file or directory in a mount. The kernel's ioctls also work on the
//! kernel's Btrfs; our own get ENOTTY there.

mod extents;
mod handles;
mod jobs;
mod kernel;
mod owners;
mod quotas;
mod streams;
mod usage;
mod verity;

pub use jobs::ScrubStart;
pub use streams::{EncodedPart, SendRequest};

use crate::host;
use crate::layout::{
    FS_INFO_METADATA_UUID, FsInfo, GetSubvolInfo, InoLookup, LABEL_SIZE, LostWrite, MountState, Page,
    ReceivedSubvol, STATE_READ_ONLY, STATE_WRITABLE, SUBVOL_RDONLY, SUBVOL_SPEC_BY_ID, ServerInfo,
    SnapshotById, TrimRange, VolArgs, VolArgsV2, put_name, until_nul,
};
use crate::number::Command;
use crate::record::Reader;
use papilio_engine::jobs::usage::Usage;
use papilio_engine::subvolume::Subvolume;
use papilio_format::{TreeId, objectid};
use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::File;
use std::io;
#[cfg(target_os = "linux")]
use std::os::fd::OwnedFd;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, IntoBytes};

/// An open file or directory in a mount.
#[derive(Debug)]
pub struct MountedPath {
    file: File,
}

/// The server of a mount.
#[derive(Debug)]
pub struct Server {
    /// The mounted source.
    pub source: PathBuf,
    /// The server's process, if it is in this process's PID namespace.
    pub pid: Option<rustix::process::Pid>,
}

/// The state of a mount: its subvolume, its owners, and whether it takes changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The file system is open for writing.
    pub writable: bool,
    /// The mount was made read-only since.
    pub read_only: bool,
    /// The subvolume whose root directory is that of the mount.
    pub root: TreeId,
    /// The default subvolume.
    pub default_subvolume: TreeId,
    /// Why the file system takes no more changes. Of one that is open for reading, why the last
    /// attempt to change that failed.
    pub failure: Option<String>,
    /// The options about owners and permissions.
    pub ownership: String,
}

impl MountedPath {
    /// Opens a file or directory; follows symbolic links.
    ///
    /// # Errors
    /// The path cannot be opened.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        Ok(Self { file: File::from(file) })
    }

    /// Takes an open file or directory.
    pub fn from_file(file: File) -> Self {
        Self { file }
    }

    /// Returns the open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Issues an ioctl with `argument`, which also receives the reply. A positive result of one
    /// that changes devices is an error, see [`refusal`].
    pub(super) fn call<T: FromBytes + IntoBytes>(
        &self,
        command: Command,
        argument: &mut T,
    ) -> io::Result<()> {
        let changes_devices = [
            Command::ADD_DEV,
            Command::RM_DEV,
            Command::RM_DEV_V2,
            Command::DEV_REPLACE,
            Command::RESIZE,
            Command::BALANCE_V2,
        ];
        match self.result_of(command, argument)? {
            code @ 1.. if changes_devices.contains(&command) => Err(refusal(code)),
            _ => Ok(()),
        }
    }

    /// Issues an ioctl with `argument`, and returns its result, which is not negative.
    pub(super) fn result_of<T: FromBytes + IntoBytes>(
        &self,
        command: Command,
        argument: &mut T,
    ) -> io::Result<i32> {
        assert!(size_of::<T>() >= command.size(), "{command:?} has a longer argument");
        // SAFETY: the kernel and the server access at most the bytes that the command number says,
        // which the assertion above covers. Any bytes are a valid `FromBytes` type, and an
        // `IntoBytes` type has no uninitialized bytes. No command passes a pointer, except in
        // fields that are zero, or that point to bytes which outlive the call and are only read.
        unsafe { host::ioctl(self.file.as_fd(), command, argument) }
    }

    /// Returns whether this is the root directory of a subvolume.
    ///
    /// # Errors
    /// The file's attributes or the subvolume's flags cannot be read.
    pub fn is_subvolume_root(&self) -> io::Result<bool> {
        let metadata = self.file.metadata()?;
        if !metadata.is_dir() {
            return Ok(false);
        }
        match self.call(Command::SUBVOL_GETFLAGS, &mut 0u64) {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns whether this is a directory.
    ///
    /// # Errors
    /// The file's attributes cannot be read.
    pub fn is_directory(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.is_dir())
    }

    /// Returns the server of the mount.
    ///
    /// # Errors
    /// ENOTTY if Papilio does not serve it.
    pub fn server(&self) -> io::Result<Server> {
        let mut info = ServerInfo::default();
        self.call(Command::SERVER_INFO, &mut info)?;
        let length = usize::try_from(info.source_length).unwrap_or(0).min(info.source.len());
        let source = OsString::from_vec(info.source[..length].to_vec()).into();
        let known = info.pid_namespace != 0 && info.pid_namespace == host::pid_namespace();
        let pid = i32::try_from(info.pid).ok().filter(|_| known).and_then(rustix::process::Pid::from_raw);
        Ok(Server { source, pid })
    }

    /// Returns the state of the mount.
    ///
    /// # Errors
    /// ENOTTY if Papilio does not serve it.
    pub fn state(&self) -> io::Result<State> {
        let mut state = MountState::default();
        self.call(Command::MOUNT_STATE, &mut state)?;
        let text = |field: &[u8]| String::from_utf8_lossy(until_nul(field).unwrap_or_default()).into_owned();
        Ok(State {
            writable: state.flags & STATE_WRITABLE != 0,
            read_only: state.flags & STATE_READ_ONLY != 0,
            root: TreeId(state.root),
            default_subvolume: TreeId(state.default_subvolume),
            failure: Some(text(&state.failure)).filter(|cause| !cause.is_empty()),
            ownership: text(&state.ownership),
        })
    }

    /// Has the server refuse changes from now on, after it has made all earlier ones durable; or
    /// has the server allow them again. The kernel's cache must be written back before.
    ///
    /// # Errors
    /// EROFS if a failure made the file system read-only; EPERM without permission. Of one that is
    /// open for reading, the error of opening it for writing; [`State::failure`] then has the
    /// reason.
    pub fn set_read_only(&self, read_only: bool) -> io::Result<()> {
        self.call(Command::SET_READ_ONLY, &mut u64::from(read_only))?;
        match self.take_lost_writes() {
            Ok(lost) if read_only && !lost.is_empty() => Err(lost_writes(&lost)),
            _ => Ok(()),
        }
    }

    /// Returns a handle that becomes readable when the server's process ends; `None` if there is
    /// none. The server is asked again after the open, which proves that the process id was not
    /// reused.
    ///
    /// # Errors
    /// As for [`MountedPath::server`].
    #[cfg(target_os = "linux")]
    pub fn server_process(&self) -> io::Result<Option<OwnedFd>> {
        let Some(pid) = self.server()?.pid else { return Ok(None) };
        let opened = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let again = self.server()?.pid;
        Ok(opened.ok().filter(|_| again == Some(pid)))
    }

    /// Returns the file system's UUIDs and number of devices.
    ///
    /// # Errors
    /// ENOTTY if it is not a Btrfs.
    pub fn fs_info(&self) -> io::Result<FsInfo> {
        let mut info = FsInfo { flags: FS_INFO_METADATA_UUID, ..FsInfo::default() };
        self.call(Command::FS_INFO, &mut info)?;
        Ok(info)
    }

    /// Makes everything durable: writes back the kernel's cache, then commits.
    ///
    /// # Errors
    /// The writeback or the commit fails.
    pub fn sync(&self) -> io::Result<()> {
        // The system reports a failed writeback of any file once more, whether the file still
        // exists or not. The server knows better.
        let written = host::write_back(self.file.as_fd());
        self.call(Command::SYNC, &mut 0u64)?;
        match self.take_lost_writes() {
            Ok(lost) if lost.is_empty() => Ok(()),
            Ok(lost) => Err(lost_writes(&lost)),
            // The kernel's Btrfs.
            Err(_) => written,
        }
    }

    /// Returns the files that lost writes of the kernel's cache, each once: the errno, and the path
    /// from the top level, or the inode number for a caller that may not see the path.
    ///
    /// # Errors
    /// ENOTTY if the mount is not one of Papilio.
    pub fn take_lost_writes(&self) -> io::Result<Vec<(i32, OsString)>> {
        let mut found = Vec::new();
        loop {
            let mut lost = LostWrite::default();
            self.call(Command::TAKE_LOST_WRITE, &mut lost)?;
            if lost.error == 0 {
                return Ok(found);
            }
            let path = lost.path.get(..lost.path_length as usize).filter(|path| !path.is_empty());
            let name = match path {
                Some(path) => OsString::from_vec(path.to_vec()),
                None => OsString::from(format!("inode {}", lost.inode)),
            };
            found.push((lost.error as i32, name));
        }
    }

    /// Returns the label.
    ///
    /// # Errors
    /// The server's error.
    pub fn label(&self) -> io::Result<Vec<u8>> {
        let mut field = [0; LABEL_SIZE];
        self.call(Command::GET_LABEL, &mut field)?;
        Ok(until_nul(&field).unwrap_or(&field).to_vec())
    }

    /// Changes the label.
    ///
    /// # Errors
    /// ENAMETOOLONG for a label of more than 255 bytes or with a NUL; EPERM without permission.
    pub fn set_label(&self, label: &[u8]) -> io::Result<()> {
        let mut field = [0; LABEL_SIZE];
        fits(put_name(&mut field, label))?;
        self.call(Command::SET_LABEL, &mut field)
    }

    /// Discards free space; returns the number of bytes.
    ///
    /// # Errors
    /// EOPNOTSUPP if the device does not support it; EPERM without permission.
    pub fn trim(&self, start: u64, length: u64, min_length: u64) -> io::Result<u64> {
        let mut range = TrimRange { start, length, min_length };
        self.call(Command::TRIM, &mut range)?;
        Ok(range.length)
    }

    /// Changes the size of a device in the file system, with `[DEVID:]SIZE` as in btrfs(8).
    ///
    /// # Errors
    /// EFBIG beyond the end of the device, ENOSPC if there is data past the new end; EINPROGRESS
    /// while another operation runs; EPERM without permission.
    pub fn resize(&self, size: &str) -> io::Result<()> {
        cancelled(self.call(Command::RESIZE, &mut named(size.as_bytes())?))
    }

    /// Creates an empty subvolume in this directory.
    ///
    /// # Errors
    /// The errors of `mkdir`.
    pub fn create_subvolume(&self, name: &[u8]) -> io::Result<()> {
        self.call(Command::SUBVOL_CREATE, &mut named(name)?)
    }

    /// Creates a snapshot in this directory of the subvolume whose root is `source`.
    ///
    /// # Errors
    /// EXDEV if the two are in different file systems; EPERM for another user's subvolume; the
    /// errors of `mkdir`.
    pub fn create_snapshot(&self, source: &Self, name: &[u8], read_only: bool) -> io::Result<()> {
        let same = source.server().ok().zip(self.server().ok()).is_some_and(|(a, b)| a.source == b.source);
        let flags = if read_only { SUBVOL_RDONLY } else { 0 };
        if same {
            let mut arguments =
                SnapshotById { tree: source.subvolume_id()?.0, flags, ..SnapshotById::default() };
            fits(put_name(&mut arguments.name, name))?;
            return self.call(Command::SNAPSHOT_BY_ID, &mut arguments);
        }
        self.create_snapshot_by_descriptor(source, name, read_only)
    }

    /// Like [`MountedPath::create_snapshot`], but always uses the kernel's ioctl, as other programs
    /// do.
    ///
    /// # Errors
    /// As there; EOPNOTSUPP if Papilio's server may not read this process's open files.
    pub fn create_snapshot_by_descriptor(
        &self,
        source: &Self,
        name: &[u8],
        read_only: bool,
    ) -> io::Result<()> {
        let flags = if read_only { SUBVOL_RDONLY } else { 0 };
        let mut arguments = VolArgsV2 { fd: source.file.as_raw_fd().into(), flags, ..VolArgsV2::default() };
        fits(put_name(&mut arguments.name, name))?;
        self.call(Command::SNAP_CREATE_V2, &mut arguments)
    }

    /// Deletes the subvolume `name` in this directory.
    ///
    /// # Errors
    /// EPERM without permission and for the default subvolume; ENOTEMPTY if it contains subvolumes;
    /// EINVAL if it is not a subvolume.
    pub fn delete_subvolume(&self, name: &[u8]) -> io::Result<()> {
        self.call(Command::SNAP_DESTROY, &mut named(name)?)
    }

    /// Deletes a subvolume by its id.
    ///
    /// # Errors
    /// As for [`MountedPath::delete_subvolume`].
    pub fn delete_subvolume_by_id(&self, id: TreeId) -> io::Result<()> {
        let mut arguments = VolArgsV2 { flags: SUBVOL_SPEC_BY_ID, ..VolArgsV2::default() };
        arguments.name[..8].copy_from_slice(&id.0.to_ne_bytes());
        self.call(Command::SNAP_DESTROY_V2, &mut arguments)
    }

    /// Returns the id of the subvolume that contains this file.
    ///
    /// # Errors
    /// ENOTTY if it is not in a Btrfs.
    pub fn subvolume_id(&self) -> io::Result<TreeId> {
        let mut lookup = InoLookup { inode: objectid::FIRST_INODE.0, ..InoLookup::default() };
        self.call(Command::INO_LOOKUP, &mut lookup)?;
        Ok(TreeId(lookup.tree))
    }

    /// Returns the properties of the subvolume that contains this file.
    ///
    /// # Errors
    /// ENOTTY if it is not in a Btrfs.
    pub fn subvolume_info(&self) -> io::Result<GetSubvolInfo> {
        let mut info = GetSubvolInfo::default();
        self.call(Command::GET_SUBVOL_INFO, &mut info)?;
        Ok(info)
    }

    /// Returns whether the subvolume with this root is read-only.
    ///
    /// # Errors
    /// EINVAL if this is not a subvolume's root.
    pub fn is_subvolume_read_only(&self) -> io::Result<bool> {
        let mut flags = 0u64;
        self.call(Command::SUBVOL_GETFLAGS, &mut flags)?;
        Ok(flags & SUBVOL_RDONLY != 0)
    }

    /// Forgets that the subvolume with this root was received.
    ///
    /// # Errors
    /// EINVAL if this is not a subvolume's root; EROFS if it is read-only; EPERM without
    /// permission.
    pub fn forget_received(&self) -> io::Result<()> {
        self.mark_received([0; 16])
    }

    /// Notes that the subvolume with this root was received from the one with this UUID.
    ///
    /// # Errors
    /// As for [`MountedPath::forget_received`].
    pub fn mark_received(&self, uuid: [u8; 16]) -> io::Result<()> {
        self.call(Command::SET_RECEIVED_SUBVOL, &mut ReceivedSubvol { uuid, ..ReceivedSubvol::default() })
    }

    /// Returns the number of the open descriptor, for ioctls that take one.
    pub(super) fn descriptor(&self) -> i64 {
        self.file.as_raw_fd().into()
    }

    /// Makes the subvolume with this root read-only or writable.
    ///
    /// # Errors
    /// EINVAL if this is not a subvolume's root; EPERM without permission.
    pub fn set_subvolume_read_only(&self, read_only: bool) -> io::Result<()> {
        let mut flags = if read_only { SUBVOL_RDONLY } else { 0 };
        self.call(Command::SUBVOL_SETFLAGS, &mut flags)
    }

    /// Sets the subvolume that a mount without options shows.
    ///
    /// # Errors
    /// ENOENT if it does not exist; EPERM without permission.
    pub fn set_default_subvolume(&self, id: TreeId) -> io::Result<()> {
        let mut id = id.0;
        self.call(Command::DEFAULT_SUBVOL, &mut id)
    }

    /// Returns the subvolume that a mount without options shows.
    ///
    /// # Errors
    /// As [`MountedPath::subvolumes`].
    pub fn default_subvolume(&self) -> io::Result<TreeId> {
        match self.state() {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.searched_default(),
            state => Ok(state?.default_subvolume),
        }
    }

    /// Returns all subvolumes by ascending id, the top level first. Includes those being deleted.
    ///
    /// # Errors
    /// ENOTTY if it is not in a Btrfs; on the kernel's Btrfs EPERM without `CAP_SYS_ADMIN`.
    pub fn subvolumes(&self) -> io::Result<Vec<Subvolume>> {
        let mut found = Vec::new();
        let listed = self.pages(Command::SUBVOLUMES, |mut reader| {
            while !reader.is_empty() {
                found.push(reader.subvolume().ok_or_else(garbled)?);
            }
            Ok(())
        });
        match listed {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.searched_subvolumes(),
            other => other.map(|()| found),
        }
    }

    /// Returns the usage of space, of mounts of the kernel, too.
    ///
    /// # Errors
    /// On a mount of the kernel EPERM without `CAP_SYS_ADMIN`.
    pub fn usage(&self) -> io::Result<Usage> {
        let mut usage: Option<Usage> = None;
        let told = self.pages(Command::USAGE, |mut reader| {
            if usage.is_none() {
                usage = Some(reader.usage().ok_or_else(garbled)?);
            }
            let devices = &mut usage.as_mut().expect("set above").devices;
            while !reader.is_empty() {
                devices.push(reader.device().ok_or_else(garbled)?);
            }
            Ok(())
        });
        match told {
            Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => self.usage_by_kernel(),
            told => told.and_then(|()| usage.ok_or_else(garbled)),
        }
    }

    pub(super) fn pages(
        &self,
        command: Command,
        mut each: impl FnMut(Reader<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut page = Page::default();
        loop {
            let before = page.cursor;
            self.call(command, &mut page)?;
            each(Reader(page.bytes.get(..page.used as usize).ok_or_else(garbled)?))?;
            if page.more == 0 {
                return Ok(());
            }
            if page.cursor <= before {
                return Err(garbled());
            }
        }
    }

    /// Returns the device and inode number that `stat` shows.
    ///
    /// # Errors
    /// The file's attributes cannot be read.
    pub fn place(&self) -> io::Result<(u64, u64)> {
        self.file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
    }
}

impl AsFd for MountedPath {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn named(name: &[u8]) -> io::Result<VolArgs> {
    let mut arguments = VolArgs::default();
    fits(put_name(&mut arguments.name, name))?;
    Ok(arguments)
}

/// Returns the error of a sync that left data of these files out.
fn lost_writes(lost: &[(i32, OsString)]) -> io::Error {
    let (code, name) = &lost[0];
    let cause = io::Error::from_raw_os_error(*code);
    let more = match lost.len() - 1 {
        0 => String::new(),
        more => format!(" and to {more} more"),
    };
    let text = format!("data that was written to {}{more} could not be stored: {cause}", name.display());
    io::Error::new(cause.kind(), text)
}

fn fits(fits: bool) -> io::Result<()> {
    if fits { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG)) }
}

pub(super) fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the server sent a malformed reply")
}

/// The kernel answers a request to cancel with the error of the work that it cancelled.
pub(super) fn cancelled(answer: io::Result<()>) -> io::Result<()> {
    match answer {
        Err(error) if error.raw_os_error() == Some(libc::ECANCELED) => Ok(()),
        answer => answer,
    }
}

/// Returns the error for a code with which the kernel refuses a change of devices (`enum
/// btrfs_err_code`, `include/uapi/linux/btrfs.h`).
fn refusal(code: i32) -> io::Error {
    io::Error::other(match code {
        1 => "profile RAID1 needs 2 devices",
        2 => "profile RAID10 needs 4 devices",
        3 => "profile RAID5 needs 2 devices",
        4 => "profile RAID6 needs 3 devices",
        5 => "the target of a replacement cannot be removed",
        6 => "no missing devices found to remove",
        7 => "it is the only device that can be written",
        8 => return io::Error::from_raw_os_error(libc::EINPROGRESS),
        9 => "profile RAID1C3 needs 3 devices",
        10 => "profile RAID1C4 needs 4 devices",
        _ => return io::Error::other(format!("the kernel answered with the code {code}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_file_systems_refuse_our_ioctls() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = MountedPath::open(folder.path()).unwrap();
        let errno = |error: io::Error| error.raw_os_error();
        assert_eq!(errno(path.server().unwrap_err()), Some(libc::ENOTTY));
        assert_eq!(errno(path.subvolumes().unwrap_err()), Some(libc::ENOTTY));
        assert_eq!(errno(path.create_subvolume(b"x").unwrap_err()), Some(libc::ENOTTY));
        assert_eq!(errno(path.create_subvolume(&[b'x'; 5000]).unwrap_err()), Some(libc::ENAMETOOLONG));
        assert_eq!(errno(MountedPath::open(Path::new("/no/such")).unwrap_err()), Some(libc::ENOENT));
    }
}
