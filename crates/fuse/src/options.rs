//! The options of a mount, in the syntax of `-o`.
//!
//! Owns [`MountOptions`] and the names of all options. The names are those of the kernel's Btrfs
//! (btrfs(5)), of mounts in general (mount(8)) and of FUSE (fuse(8)). The last of several
//! conflicting options wins.
//!
//! **Invariants**
//! - An accepted option takes effect, or asks for something that no user of the mount can observe.
//!
//! Kernel counterpart: `btrfs_parse_param` (`fs/btrfs/super.c`).

use papilio::format::{TreeId, objectid};
use papilio::{CompressionChoice, OpenOptions, SubvolumeChoice};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// The kernel's default commit interval in seconds.
const COMMIT_SECONDS: u64 = 30;
/// Smallest size of the page cache in bytes.
const CACHE_MIN: u64 = 1 << 20;

/// When a read updates a file's access time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// If it is not later than the last change, or a day old.
    #[default]
    Relatime,
    /// Never.
    Noatime,
    /// Always.
    Strict,
    /// As relatime for files, never for directories.
    Nodiratime,
}

/// How the kernel delivers requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Through reads and writes of `/dev/fuse`.
    #[default]
    Classic,
    /// Over io_uring; the kernel must support it and root must have enabled it.
    Ring,
    /// Over io_uring if the kernel offers it, otherwise through `/dev/fuse`.
    Auto,
}

/// The options with which a file system is opened and mounted.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Options for opening: devices, subvolume, compression and the like.
    pub open: OpenOptions,
    /// The mount is read-only.
    pub read_only: bool,
    /// When reads update access times.
    pub noatime: Atime,
    /// Other users may use the mount.
    pub allow_other: bool,
    /// The kernel checks permissions.
    pub default_permissions: bool,
    /// The source in the table of mounts, if it is not the image's path.
    pub fsname: Option<String>,
    /// Maximum number of threads that serve requests.
    pub max_threads: Option<usize>,
    /// How the kernel delivers requests.
    pub transport: Transport,
    /// The kernel gathers writes in its cache.
    pub writeback_cache: bool,
    /// How long the kernel may cache attributes and names. Long, because only this server changes
    /// them.
    pub attr_timeout: Duration,
    /// Owners may delete their subvolumes.
    pub user_subvol_rm_allowed: bool,
    /// Device files give access to devices.
    pub dev: bool,
    /// Set-user-id and set-group-id bits take effect.
    pub suid: bool,
    /// Programs may be executed.
    pub exec: bool,
    /// All writes are synchronous.
    pub sync: bool,
    /// Changes to directories are synchronous.
    pub dirsync: bool,
    /// Id of the subvolume that the given path must lead to, if both were given.
    pub expected_subvolume: Option<TreeId>,
}

impl Default for MountOptions {
    fn default() -> Self {
        Parser::default().finish().expect("no options contradict one another")
    }
}

/// An unknown option or an invalid value; the message is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptionError {
    message: String,
    unknown: bool,
}

impl MountOptionError {
    fn new(message: String) -> Self {
        Self { message, unknown: false }
    }

    /// Returns whether the option is unknown.
    pub fn is_unknown(&self) -> bool {
        self.unknown
    }
}

impl fmt::Display for MountOptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for MountOptionError {}

impl MountOptions {
    /// Parses a list of options such as `ro,subvol=/home,compress=zstd:3`. Without `subvol` and
    /// `subvolid` the mount shows the default subvolume. A comma in a value is written `\,`.
    ///
    /// # Errors
    /// An option is unknown, lacks a value, has an invalid value, or contradicts another one.
    pub fn parse(comma_separated: &str) -> Result<Self, MountOptionError> {
        let mut parser = Parser::default();
        for option in split(comma_separated) {
            if !option.is_empty() {
                parser.take(&option)?;
            }
        }
        parser.finish()
    }

    /// Like [`MountOptions::parse`], for options that are already split. Commas in values are not
    /// escaped.
    ///
    /// # Errors
    /// As for [`MountOptions::parse`].
    pub fn parse_each<S: AsRef<str>>(options: impl IntoIterator<Item = S>) -> Result<Self, MountOptionError> {
        let mut parser = Parser::default();
        for option in options {
            parser.take(option.as_ref())?;
        }
        parser.finish()
    }
}

/// Splits options at commas that are not escaped.
fn split(options: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut characters = options.chars();
    while let Some(character) = characters.next() {
        let last = found.last_mut().expect("the list is never empty");
        match character {
            ',' => found.push(String::new()),
            '\\' => match characters.next() {
                Some(',') => last.push(','),
                Some(other) => last.extend(['\\', other]),
                None => last.push('\\'),
            },
            other => last.push(other),
        }
    }
    found
}

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
struct Parser {
    open: OpenOptions,
    read_only: bool,
    atime: Atime,
    allow_other: bool,
    fsname: Option<String>,
    max_threads: Option<usize>,
    transport: Transport,
    no_writeback_cache: bool,
    user_subvol_rm_allowed: bool,
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
    fn take(&mut self, option: &str) -> Result<(), MountOptionError> {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        if self.take_general(name, value)? || self.take_btrfs(name, value)? || is_ignored(name) {
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
            "allow_other" => self.allow_other = true,
            "default_permissions" => {}
            "fsname" => self.fsname = Some(needed(name, value)?.to_owned()),
            "writeback_cache" => self.no_writeback_cache = false,
            "nowriteback_cache" => self.no_writeback_cache = true,
            "threads" | "thread_pool" => {
                self.max_threads = Some(number(name, value, 1..=1024)? as usize);
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
        check_bare(name, value, &["fsname", "threads", "thread_pool", "transport", "user"])?;
        Ok(true)
    }

    /// Parses options of Btrfs.
    fn take_btrfs(&mut self, name: &str, value: Option<&str>) -> Result<bool, MountOptionError> {
        let open = std::mem::take(&mut self.open);
        self.open = match name {
            "degraded" => open.degraded(true),
            "commit" => {
                let seconds = match number(name, value, 0..=u64::from(u32::MAX))? {
                    0 => COMMIT_SECONDS,
                    seconds => seconds,
                };
                open.commit_interval(Some(Duration::from_secs(seconds)))
            }
            "discard" => match value {
                None | Some("sync" | "async") => open.discard(true),
                Some("no") => open.discard(false),
                Some(_) => return Err(bad_value(name, value, "sync, async or no")),
            },
            "nodiscard" => open.discard(false),
            "treelog" => open.tree_log(true),
            "notreelog" => open.tree_log(false),
            "cache" => {
                let bytes = bytes_of(name, value)?;
                if bytes > 0 && bytes < CACHE_MIN {
                    return Err(bad_value(name, value, "0 or at least 1M"));
                }
                open.cache_bytes(bytes)
            }
            "device" => {
                let path = Path::new(needed(name, value)?);
                // The server changes its working directory later.
                open.device(std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()))
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
        check_bare(name, value, &["cache", "commit", "discard", "device", "max_inline", "rescue"])?;
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
            _ => return Ok(false),
        }
        check_bare(name, value, &["subvol", "subvolid", "compress", "compress-force"])?;
        Ok(true)
    }

    fn compress(&mut self, name: &str, value: Option<&str>) -> Result<(), MountOptionError> {
        let choice = match value {
            None => "zlib",
            Some(value) => value,
        };
        let choice: CompressionChoice = choice.parse().map_err(|error: papilio::Error| {
            MountOptionError::new(format!("mount option {name}: {error}"))
        })?;
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
            // The supported part of it: bad roots and metadata with wrong checksums stay errors.
            "all" => {
                let open = open.use_backup_root(true).verify_data(false).replay_log(false);
                only_reading(open, "rescue=all")
            }
            "ignorebadroots" | "ibadroots" | "ignoremetacsums" | "imetacsums" | "ignoresuperflags"
            | "isuperflags" => {
                return Err(MountOptionError::new(format!(
                    "mount option rescue={what} is not supported: metadata is always checked"
                )));
            }
            _ => {
                return Err(bad_value(
                    "rescue",
                    Some(what),
                    "usebackuproot, nologreplay, ignoredatacsums, idatacsums or all",
                ));
            }
        })
    }

    fn finish(self) -> Result<MountOptions, MountOptionError> {
        if let Some(option) = self.needs_read_only
            && !self.read_only
        {
            return Err(MountOptionError::new(format!("mount option {option} requires ro")));
        }
        let mut open = self.open.write(!self.read_only);
        let mut expected_subvolume = None;
        open = open.subvolume(match (self.subvolume_path, self.subvolume_id) {
            (None, None) => SubvolumeChoice::Default,
            (None, Some(id)) => SubvolumeChoice::Id(id),
            (Some(path), id) => {
                expected_subvolume = id;
                SubvolumeChoice::Path(path)
            }
        });
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
            read_only: self.read_only,
            noatime: self.atime,
            allow_other: self.allow_other,
            default_permissions: true,
            fsname: self.fsname,
            max_threads: self.max_threads,
            transport: self.transport,
            writeback_cache: !self.no_writeback_cache,
            attr_timeout: Duration::from_secs(3600),
            user_subvol_rm_allowed: self.user_subvol_rm_allowed,
            dev: !self.no_dev,
            suid: !self.no_suid,
            exec: !self.no_exec,
            sync: self.sync,
            dirsync: self.dirsync,
            expected_subvolume,
        })
    }
}

/// Returns whether an option has no effect that can be observed here: those that mount(8) and fstab
/// interpret themselves, hints for the kernel's work, and defaults.
fn is_ignored(name: &str) -> bool {
    const BTRFS: [&str; 24] = [
        "space_cache",
        "ssd",
        "ssd_spread",
        "nossd",
        "nossd_spread",
        "autodefrag",
        "noautodefrag",
        "barrier",
        "nobarrier",
        "acl",
        "flushoncommit",
        "noflushoncommit",
        "enospc_debug",
        "noenospc_debug",
        "fatal_errors",
        "metadata_ratio",
        "skip_balance",
        "rescan_uuid_tree",
        "inode_cache",
        "noinode_cache",
        "alloc_start",
        "subvolrootid",
        "check_int",
        "check_int_data",
    ];
    const MOUNT: [&str; 28] = [
        "defaults",
        "auto",
        "noauto",
        "nouser",
        "nousers",
        "noowner",
        "nogroup",
        "nofail",
        "_netdev",
        "comment",
        "helper",
        "uhelper",
        "lazytime",
        "nolazytime",
        "diratime",
        "norelatime",
        "nostrictatime",
        "iversion",
        "noiversion",
        "mand",
        "nomand",
        "silent",
        "loud",
        "symfollow",
        "subtype",
        "nonempty",
        "blkdev",
        "big_writes",
    ];
    BTRFS.contains(&name) || MOUNT.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

/// Returns the reason why a known option is refused.
fn unsupported(name: &str) -> Option<&'static str> {
    Some(match name {
        "noacl" => "access control lists are always enforced",
        "clear_cache" | "nospace_cache" => "the free-space tree is always kept",
        "remount" => "unmount and mount again",
        "bind" | "rbind" | "move" => "only mount(8) can do that",
        "allow_root" => "use allow_other",
        "loop" | "offset" | "sizelimit" => "images are opened without a loop device",
        "nosymfollow" => "FUSE does not support it",
        _ => return None,
    })
}

fn needed<'a>(name: &str, value: Option<&'a str>) -> Result<&'a str, MountOptionError> {
    match value {
        None | Some("") => {
            Err(MountOptionError::new(format!("mount option {name} needs a value: {name}=...")))
        }
        Some(value) => Ok(value),
    }
}

fn number(
    name: &str,
    value: Option<&str>,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, MountOptionError> {
    let text = needed(name, value)?;
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ if *range.end() == u64::MAX => Err(bad_value(name, value, "a number")),
        _ => {
            let wanted = format!("a number from {} to {}", range.start(), range.end());
            Err(bad_value(name, value, &wanted))
        }
    }
}

/// Parses a size below 4 GiB, with a suffix as in the kernel's `memparse`.
fn size(name: &str, value: Option<&str>) -> Result<u32, MountOptionError> {
    u32::try_from(bytes_of(name, value)?).map_err(|_| bad_value(name, value, "a number of bytes"))
}

/// Parses a size in bytes with an optional suffix k, m or g.
fn bytes_of(name: &str, value: Option<&str>) -> Result<u64, MountOptionError> {
    let text = needed(name, value)?;
    let shift = match text.as_bytes().last() {
        Some(b'k' | b'K') => 10,
        Some(b'm' | b'M') => 20,
        Some(b'g' | b'G') => 30,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| bad_value(name, value, "a number of bytes"))
}

/// Refuses a value for an option that takes none.
fn check_bare(name: &str, value: Option<&str>, with_values: &[&str]) -> Result<(), MountOptionError> {
    match value {
        Some(value) if !with_values.contains(&name) => {
            Err(MountOptionError::new(format!("mount option {name} takes no value, but {value:?} was given")))
        }
        _ => Ok(()),
    }
}

fn bad_value(name: &str, value: Option<&str>, wanted: &str) -> MountOptionError {
    MountOptionError::new(format!("mount option {name}: {:?} is not {wanted}", value.unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(options: &str) -> MountOptions {
        MountOptions::parse(options).unwrap_or_else(|error| panic!("{options}: {error}"))
    }

    /// Returns the resulting options for opening, in `Debug` form.
    fn opens(options: &str) -> String {
        format!("{:?}", parse(options).open)
    }

    #[test]
    fn no_options_mean_defaults() {
        for none in ["", "defaults", "rw", ",,", "rw,nofail,_netdev,x-systemd.automount,X-mount.mkdir,auto"] {
            let options = parse(none);
            assert!(!options.read_only && options.writeback_cache && options.default_permissions);
            assert!(options.dev && options.suid && options.exec && !options.sync && !options.allow_other);
            let expected = OpenOptions::new().write(true).subvolume(SubvolumeChoice::Default);
            assert_eq!(format!("{:?}", options.open), format!("{expected:?}"));
        }
    }

    #[test]
    fn last_general_option_wins() {
        let options =
            parse("ro,noatime,nodev,nosuid,noexec,sync,dirsync,allow_other,fsname=disk\\,1,threads=3");
        assert!(options.read_only && options.sync && options.dirsync && options.allow_other);
        assert!(!options.dev && !options.suid && !options.exec);
        assert_eq!((options.noatime, options.max_threads), (Atime::Noatime, Some(3)));
        assert_eq!(options.fsname.as_deref(), Some("disk,1"));
        let options = parse("ro,rw,noatime,strictatime,user,exec,nowriteback_cache,thread_pool=8");
        assert!(!options.read_only && options.exec && !options.suid && !options.writeback_cache);
        assert_eq!((options.noatime, options.max_threads), (Atime::Strict, Some(8)));
        assert_eq!(options.transport, Transport::Classic);
        assert_eq!(parse("transport=ring,transport=auto").transport, Transport::Auto);
        assert_eq!(parse("transport=ring").transport, Transport::Ring);
    }

    #[test]
    fn subvolumes_are_named_by_path_or_id() {
        let chosen = |options: &str| {
            let choice = format!("{:?}", parse(options).open);
            let start = choice.find("subvolume: ").unwrap();
            choice[start + 11..].split(", node_cache").next().unwrap().to_owned()
        };
        let shown = |choice: SubvolumeChoice| format!("{choice:?}");
        assert_eq!(chosen("subvol=/a/b"), shown(SubvolumeChoice::Path(b"a/b".to_vec())));
        assert_eq!(chosen("subvol=a\\,b"), shown(SubvolumeChoice::Path(b"a,b".to_vec())));
        assert_eq!(chosen("subvolid=256"), shown(SubvolumeChoice::Id(TreeId(256))));
        assert_eq!(chosen("subvolid=0"), shown(SubvolumeChoice::Id(TreeId(5))));
        let both = parse("subvolid=257,subvol=/a");
        assert_eq!(both.expected_subvolume, Some(TreeId(257)));
    }

    #[test]
    fn data_options_follow_kernel_rules() {
        let base = || OpenOptions::new().write(true).subvolume(SubvolumeChoice::Default);
        let zstd = "zstd:5".parse().unwrap();
        let expectations = [
            ("compress=zstd:5", base().compress(zstd)),
            ("compress-force=zstd:5", base().compress_force(zstd)),
            ("compress", base().compress("zlib".parse().unwrap())),
            ("compress=zstd,compress=no", base()),
            ("nodatacow", base().no_data_cow(true)),
            ("nodatasum", base().no_data_sums(true)),
            ("nodatacow,datasum", base()),
            ("nodatacow,datacow", base().no_data_sums(true)),
            ("compress=zstd,nodatacow", base().no_data_cow(true)),
            ("nodatacow,compress=zstd:5", base().compress(zstd)),
            ("nodatacow,nodatasum", base().no_data_cow(true)),
        ];
        for (options, expected) in expectations {
            assert_eq!(opens(options), format!("{expected:?}"), "{options}");
        }
    }

    #[test]
    fn other_btrfs_options() {
        let base = || OpenOptions::new().write(true).subvolume(SubvolumeChoice::Default);
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let expectations = [
            ("degraded,device=/dev/b,device=/dev/c", base().degraded(true).device("/dev/b").device("/dev/c")),
            ("commit=5", base().commit_interval(seconds(5))),
            ("commit=0", base().commit_interval(seconds(30))),
            ("discard", base().discard(true)),
            ("discard=async", base().discard(true)),
            ("discard=sync,nodiscard", base()),
            ("max_inline=1k", base().max_inline(1024)),
            ("cache=64m", base().cache_bytes(64 << 20)),
            ("cache=0,notreelog", base().tree_log(false)),
            ("notreelog,treelog", base()),
            ("ssd,space_cache=v2,noautodefrag,acl,lazytime", base()),
            ("rescue=usebackuproot", base().use_backup_root(true)),
            ("ro,rescue=usebackuproot:idatacsums:nologreplay", {
                base().write(false).use_backup_root(true).verify_data(false).replay_log(false)
            }),
            ("ro,nologreplay", base().write(false).replay_log(false)),
            ("ro,rescue=all", {
                base().write(false).use_backup_root(true).verify_data(false).replay_log(false)
            }),
        ];
        for (options, expected) in expectations {
            assert_eq!(opens(options), format!("{expected:?}"), "{options}");
        }
        assert!(parse("user_subvol_rm_allowed").user_subvol_rm_allowed);
    }

    #[test]
    fn invalid_options_have_one_line_messages() {
        let expectations = [
            ("nonsense", "unknown mount option: nonsense"),
            ("nonsense=1", "unknown mount option: nonsense=1"),
            ("commit=soon", "mount option commit: \"soon\" is not a number from 0 to 4294967295"),
            ("commit", "mount option commit needs a value: commit=..."),
            ("subvolid=x", "mount option subvolid: \"x\" is not a number"),
            ("threads=0", "mount option threads: \"0\" is not a number from 1 to 1024"),
            ("transport=tcp", "mount option transport: \"tcp\" is not classic, ring or auto"),
            ("ro=1", "mount option ro takes no value, but \"1\" was given"),
            ("degraded=yes", "mount option degraded takes no value, but \"yes\" was given"),
            ("discard=never", "mount option discard: \"never\" is not sync, async or no"),
            ("rescue=all", "mount option rescue=all requires ro"),
            ("noacl", "mount option noacl is not supported: access control lists are always enforced"),
            ("cache=4k", "mount option cache: \"4k\" is not 0 or at least 1M"),
            ("max_inline=5x", "mount option max_inline: \"5x\" is not a number of bytes"),
            ("max_inline=5000000k", "mount option max_inline: \"5000000k\" is not a number of bytes"),
        ];
        for (options, message) in expectations {
            assert_eq!(MountOptions::parse(options).unwrap_err().to_string(), message);
        }
        for wrong in ["compress=lzma", "compress=zlib:10", "rescue=nothing", "rescue=ibadroots", "remount,ro"]
        {
            let message = MountOptions::parse(wrong).unwrap_err().to_string();
            assert!(message.starts_with("mount option ") && !message.contains('\n'), "{message}");
        }
    }
}
