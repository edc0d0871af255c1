//! The options parsed so far.
//!
//! Owns [`Parser`], which takes one option after the other. The last of several conflicting ones
//! wins.
//!
//! Kernel counterpart: `btrfs_parse_param` (`fs/btrfs/super.c`).

use super::names::{check_value, is_ignored, unsupported};
use super::types::{Atime, MountOptionError, MountOptions, Opens, Transport};
use super::values::{bad_value, bytes_of, id, mask, needed, number, size};
use crate::ownership::Ownership;
use papilio::format::{TreeId, objectid};
use papilio::{CompressionChoice, DiscardMode, OpenOptions, SubvolumeChoice};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The kernel's default commit interval in seconds.
const COMMIT_SECONDS: u64 = 30;
/// Size of the page cache in bytes where the kernel gathers no writes for want of room. Each file
/// with dirty pages reserves metadata, so that a small file system affords few of them.
const SCARCE_CACHE: u64 = 2 << 20;
/// Smallest size of the page cache in bytes.
const CACHE_MIN: u64 = 1 << 20;

/// How data of new files is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FileData {
    #[default]
    Usual,
    NoSums,
    NoCow,
}

/// The options parsed so far.
#[derive(Debug, Default)]
pub(super) struct Parser {
    open: OpenOptions,
    /// Bytes of the server's page cache.
    cache: Option<u64>,
    devices: Vec<PathBuf>,
    read_only: bool,
    atime: Atime,
    allow_other: bool,
    allow_root: bool,
    ownership: Ownership,
    fsname: Option<String>,
    max_threads: Option<usize>,
    transport: Transport,
    opens: Option<Opens>,
    follow: Option<Duration>,
    writeback_cache: Option<bool>,
    user_subvol_rm_allowed: bool,
    skip_balance: bool,
    no_dev: bool,
    no_suid: bool,
    no_exec: bool,
    sync: bool,
    dirsync: bool,
    subvolume_path: Option<Vec<u8>>,
    subvolume_id: Option<TreeId>,
    compression: Option<(CompressionChoice, bool)>,
    file_data: FileData,
    /// An option that requires `ro`.
    needs_read_only: Option<&'static str>,
}

impl Parser {
    /// A mount without options: it gives freed space back, and direct reads of image files are
    /// direct reads of the host, too.
    pub(super) fn new() -> Self {
        let open = OpenOptions::new().discard(DiscardMode::Async).direct_queue(true);
        Self { open, ..Self::default() }
    }

    pub(super) fn take(&mut self, option: &str) -> Result<(), MountOptionError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if self.take_general(name, value)?
            || self.take_ownership(name, value)?
            || self.take_btrfs(name, value)?
        {
            return check_value(name, value);
        }
        if is_ignored(name) {
            return Ok(());
        }
        Err(match unsupported(name) {
            Some(why) => MountOptionError::new(format!("mount option {name} is not supported: {why}")),
            None => {
                let message = format!("unknown mount option: {option}");
                MountOptionError { message, unknown: true }
            }
        })
    }

    /// Parses options of all mounts and of FUSE.
    fn take_general(&mut self, name: &str, value: Option<&str>) -> Result<bool, MountOptionError> {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "relatime" | "atime" => self.atime = Atime::Relatime,
            "noatime" => self.atime = Atime::Noatime,
            "strictatime" => self.atime = Atime::Strict,
            "nodiratime" => self.atime = Atime::Nodiratime,
            "dev" => self.no_dev = false,
            "nodev" => self.no_dev = true,
            "suid" => self.no_suid = false,
            "nosuid" => self.no_suid = true,
            "exec" => self.no_exec = false,
            "noexec" => self.no_exec = true,
            // mount(8) restricts mounts by users to harmless files.
            "user" | "users" => (self.no_dev, self.no_suid, self.no_exec) = (true, true, true),
            "owner" | "group" => (self.no_dev, self.no_suid) = (true, true),
            "sync" => self.sync = true,
            "async" => self.sync = false,
            "dirsync" => self.dirsync = true,
            "allow_other" => (self.allow_other, self.allow_root) = (true, false),
            "allow_root" => (self.allow_other, self.allow_root) = (false, true),
            "default_permissions" => {}
            "fsname" => self.fsname = Some(needed(name, value)?.to_owned()),
            "writeback_cache" => self.writeback_cache = Some(true),
            "nowriteback_cache" => self.writeback_cache = Some(false),
            "threads" | "thread_pool" => {
                self.max_threads = Some(number(name, value, 1..=1024)? as usize);
            }
            "device_io" => {
                let open = std::mem::take(&mut self.open);
                self.open = match needed(name, value)? {
                    "direct" => open.direct_io(true),
                    "cached" => open.direct_io(false),
                    "auto" => open.default_direct_io(),
                    _ => return Err(bad_value(name, value, "auto, direct or cached")),
                };
            }
            "device_timeout" => {
                let seconds = number(name, value, 1..=86_400)?;
                let open = std::mem::take(&mut self.open);
                self.open = open.device_timeout(Some(Duration::from_secs(seconds)));
            }
            "follow" => {
                let seconds = number(name, value.map(|value| value.trim_end_matches('s')), 1..=86_400)?;
                self.follow = Some(Duration::from_secs(seconds));
                self.needs_read_only = Some("follow");
            }
            "opens" => {
                self.opens = match needed(name, value)? {
                    "server" => Some(Opens::Server),
                    "kernel" => Some(Opens::Kernel),
                    _ => return Err(bad_value(name, value, "kernel or server")),
                };
            }
            "transport" => {
                self.transport = match needed(name, value)? {
                    "classic" => Transport::Classic,
                    "ring" => Transport::Ring,
                    "auto" => Transport::Auto,
                    _ => return Err(bad_value(name, value, "classic, ring or auto")),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses options that change the owners and permissions that the mount shows.
    fn take_ownership(&mut self, name: &str, value: Option<&str>) -> Result<bool, MountOptionError> {
        let ownership = &mut self.ownership;
        match name {
            "uid" => ownership.set_user(id(name, value)?),
            "gid" => ownership.set_group(id(name, value)?),
            "umask" => {
                let mask = mask(name, value)?;
                ownership.set_file_mask(mask);
                ownership.set_directory_mask(mask);
            }
            "fmask" => ownership.set_file_mask(mask(name, value)?),
            "dmask" => ownership.set_directory_mask(mask(name, value)?),
            "idmap" => ownership
                .add_map(needed(name, value)?)
                .map_err(|error| MountOptionError::new(format!("mount option {name}: {error}")))?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses options of Btrfs.
    fn take_btrfs(&mut self, name: &str, value: Option<&str>) -> Result<bool, MountOptionError> {
        let open = std::mem::take(&mut self.open);
        self.open = match name {
            "degraded" => open.degraded(true),
            "ignore_signatures" => open.ignore_signatures(true),
            "replay_bytes" => open.replay_bytes(bytes_of(name, value)?),
            "commit" => {
                let seconds = match number(name, value, 0..=u64::from(u32::MAX))? {
                    0 => COMMIT_SECONDS,
                    seconds => seconds,
                };
                open.commit_interval(Some(Duration::from_secs(seconds)))
            }
            "discard" => match value {
                None | Some("sync") => open.discard(DiscardMode::Sync),
                Some("async") => open.discard(DiscardMode::Async),
                Some("no") => open.discard(DiscardMode::Off),
                Some(_) => return Err(bad_value(name, value, "sync, async or no")),
            },
            "nodiscard" => open.discard(DiscardMode::Off),
            "treelog" => open.tree_log(true),
            "notreelog" => open.tree_log(false),
            "cache" => {
                let bytes = bytes_of(name, value)?;
                if bytes > 0 && bytes < CACHE_MIN {
                    return Err(bad_value(name, value, "0 or at least 1M"));
                }
                self.cache = Some(bytes);
                open
            }
            "device" => {
                let path = Path::new(needed(name, value)?);
                // The server changes its working directory later.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
                self.devices.push(path.clone());
                open.device(path)
            }
            "max_inline" => open.max_inline(size(name, value)?),
            "usebackuproot" | "recovery" => open.use_backup_root(true),
            "rescue" => {
                needed(name, value)?.split(':').try_fold(open, |open, what| self.rescue(open, what))?
            }
            "nologreplay" | "norecovery" => {
                self.needs_read_only = Some("nologreplay");
                open.replay_log(false)
            }
            _ => {
                self.open = open;
                return self.take_data(name, value);
            }
        };
        Ok(true)
    }

    /// Parses options that select the subvolume and the storage of data.
    fn take_data(&mut self, name: &str, value: Option<&str>) -> Result<bool, MountOptionError> {
        match name {
            "subvol" => {
                let path = needed(name, value)?.as_bytes();
                let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
                self.subvolume_path = Some(path[start..].to_vec());
            }
            "subvolid" => {
                self.subvolume_id = Some(match number(name, value, 0..=u64::MAX)? {
                    0 => objectid::FS_TREE,
                    id => TreeId(id),
                });
            }
            "compress" | "compress-force" => self.compress(name, value)?,
            "nodatacow" => (self.file_data, self.compression) = (FileData::NoCow, None),
            "datacow" if self.file_data == FileData::NoCow => self.file_data = FileData::NoSums,
            "nodatasum" if self.file_data == FileData::Usual => self.file_data = FileData::NoSums,
            "datasum" => self.file_data = FileData::Usual,
            "datacow" | "nodatasum" => {}
            "user_subvol_rm_allowed" => self.user_subvol_rm_allowed = true,
            "skip_balance" => self.skip_balance = true,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn compress(&mut self, name: &str, value: Option<&str>) -> Result<(), MountOptionError> {
        let choice = match value {
            None => "zlib",
            Some(value) => value,
        };
        let choice = CompressionChoice::of_mount_option(choice)
            .map_err(|error| MountOptionError::new(format!("mount option {name}: {error}")))?;
        if !choice.is_none() {
            // Data without checksums or copy-on-write cannot be compressed.
            self.file_data = FileData::Usual;
        }
        self.compression = Some((choice, name == "compress-force"));
        Ok(())
    }

    fn rescue(&mut self, open: OpenOptions, what: &str) -> Result<OpenOptions, MountOptionError> {
        let mut only_reading = |open, what| {
            self.needs_read_only = Some(what);
            open
        };
        Ok(match what {
            "usebackuproot" => open.use_backup_root(true),
            "nologreplay" => only_reading(open.replay_log(false), "rescue=nologreplay"),
            "ignoredatacsums" | "idatacsums" => {
                only_reading(open.verify_data(false), "rescue=ignoredatacsums")
            }
            "ignorebadroots" | "ibadroots" => {
                only_reading(open.ignore_bad_roots(true), "rescue=ignorebadroots")
            }
            "ignoremetacsums" | "imetacsums" => {
                only_reading(open.ignore_meta_csums(true), "rescue=ignoremetacsums")
            }
            // Reading never minds the flags of changes that were interrupted.
            "ignoresuperflags" | "isuperflags" => only_reading(open, "rescue=ignoresuperflags"),
            "all" => {
                // A log is no fault, so it is replayed in memory. The kernel leaves it out, because
                // it would have to write.
                let open = open.use_backup_root(true).verify_data(false).allow_older(true);
                only_reading(open.ignore_bad_roots(true).ignore_meta_csums(true), "rescue=all")
            }
            _ => {
                return Err(bad_value(
                    "rescue",
                    Some(what),
                    "usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, \
                     ignoresuperflags or all",
                ));
            }
        })
    }

    pub(super) fn finish(self) -> Result<MountOptions, MountOptionError> {
        if let Some(option) = self.needs_read_only
            && !self.read_only
        {
            return Err(MountOptionError::new(format!("mount option {option} requires ro")));
        }
        let mut open = self.open.write(!self.read_only).cache_bytes(self.cache.unwrap_or(0));
        open = open.immutable_at_open(true);
        if self.cache.is_none() && self.writeback_cache.is_none() {
            open = open.scarce_cache_bytes(SCARCE_CACHE);
        }
        let mut expected_subvolume = None;
        let subvolume = match (self.subvolume_path, self.subvolume_id) {
            (None, None) => SubvolumeChoice::Default,
            (None, Some(id)) => SubvolumeChoice::Id(id),
            (Some(path), id) => {
                expected_subvolume = id;
                SubvolumeChoice::Path(path)
            }
        };
        open = open.subvolume(subvolume.clone());
        open = match self.compression {
            None => open,
            Some((choice, false)) => open.compress(choice),
            Some((choice, true)) => open.compress_force(choice),
        };
        open = match self.file_data {
            FileData::Usual => open,
            FileData::NoSums => open.no_data_sums(true),
            FileData::NoCow => open.no_data_cow(true),
        };
        Ok(MountOptions {
            open,
            devices: self.devices,
            read_only: self.read_only,
            needs_read_only: self.needs_read_only,
            noatime: self.atime,
            allow_other: self.allow_other,
            allow_root: self.allow_root,
            ownership: self.ownership,
            default_permissions: true,
            fsname: self.fsname,
            max_threads: self.max_threads,
            transport: self.transport,
            opens: self.opens,
            writeback_cache: self.writeback_cache.or(self.cache.map(|_| true)),
            follow: self.follow,
            attr_timeout: self.follow.map_or(Duration::from_secs(3600), |period| period / 4),
            user_subvol_rm_allowed: self.user_subvol_rm_allowed,
            skip_balance: self.skip_balance,
            dev: !self.no_dev,
            suid: !self.no_suid,
            exec: !self.no_exec,
            sync: self.sync,
            dirsync: self.dirsync,
            subvolume,
            expected_subvolume,
        })
    }
}
