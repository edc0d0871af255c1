//! The options that every command takes.

use crate::units::parse_size;
use clap::{ArgAction, Args};
use papilio::device::{ImageOptions, PartitionChoice, RemoteCache, RemoteOptions};
use papilio::{OpenOptions, TreeRootChoice};
use papilio_layers::{KeySource, LayerOptions};
use std::ffi::OsString;
use std::path::PathBuf;

/// The heading of the options that say how file systems are opened.
pub const HEADING: &str = "File system options";

/// The options that every command takes: how to open file systems, and how much to print.
#[derive(Clone, Debug, Default, Args)]
pub struct GlobalArgs {
    /// A further device of the file system; may be given more than once
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub device: Vec<PathBuf>,
    /// The partition of a disk image: its number, label or UUID
    ///
    /// IMAGE@N is the same for a number, IMAGE@+BYTES begins at an offset, and IMAGE@GROUP/VOLUME
    /// is a logical volume. Without a choice, the file system is the whole disk or the only
    /// partition with Btrfs. "none" takes the bytes of the file as they are.
    #[arg(long, value_name = "PARTITION", global = true, help_heading = HEADING)]
    pub partition: Option<PartitionChoice>,
    /// Let a disk image name files outside of its own directory, such as a backing file
    #[arg(long, global = true, help_heading = HEADING)]
    pub allow_backing: bool,
    /// A further member of an array or volume group below the file system; may be given more than
    /// once
    ///
    /// Members beside the image, and block devices of this machine, are found without it.
    // Other commands have an argument `member`, too.
    #[arg(id = "array-member", long = "member")]
    #[arg(value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub member: Vec<PathBuf>,
    /// The file with the key of encrypted volumes, all of its bytes; - is standard input
    ///
    /// PAPILIO_KEY_FILE is the same. Without a key file the terminal asks for a passphrase.
    #[arg(long, value_name = "FILE", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub key_file: Option<PathBuf>,
    /// The command that prints the key of encrypted volumes; a newline at the end does not count
    ///
    /// PAPILIO_KEY_COMMAND is the same. The shell runs it when a key is needed, or earlier if the
    /// command gives up the right to start programs.
    #[arg(long, value_name = "COMMAND", global = true, help_heading = HEADING)]
    #[arg(conflicts_with_all = ["key_file", "key_fd"], value_hint = clap::ValueHint::CommandString)]
    pub key_command: Option<OsString>,
    /// The descriptor to read the key of encrypted volumes from
    #[arg(long, value_name = "N", global = true, help_heading = HEADING, conflicts_with = "key_file")]
    pub key_fd: Option<u32>,
    /// The key slot to open; the default is any
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    pub key_slot: Option<u32>,
    /// The LUKS header of a device that has none of its own
    #[arg(long, value_name = "FILE", global = true, help_heading = HEADING)]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    pub luks_header: Option<PathBuf>,
    /// Where blocks of images at URLs are kept: a directory, or "none" for memory only
    ///
    /// The default is papilio/remote in the user's cache directory.
    #[arg(long, value_name = "DIRECTORY", global = true, help_heading = HEADING)]
    #[arg(value_parser = remote_cache)]
    pub remote_cache: Option<RemoteCache>,
    /// The most bytes of that directory, with a suffix such as M or G; the default is 1G
    #[arg(long, value_name = "SIZE", global = true, help_heading = HEADING, value_parser = parse_size)]
    pub remote_cache_size: Option<u64>,
    /// Write to a device although it has the signature of something else, such as an array's member
    #[arg(long, global = true, help_heading = HEADING)]
    pub ignore_signatures: bool,
    /// The most memory for replaying a log of fsyncs when reading, for each device; the default is
    /// 256M
    #[arg(long, value_name = "SIZE", global = true, help_heading = HEADING, value_parser = parse_size)]
    pub replay_bytes: Option<u64>,
    /// Open the file system although devices are missing, as far as each chunk's profile allows
    #[arg(long, global = true, help_heading = HEADING)]
    pub degraded: bool,
    /// Fall back to the superblock's backup roots if the current tree root cannot be read; with N,
    /// read backup root N (0 to 3)
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    #[arg(num_args = 0..=1, require_equals = true, value_parser = clap::value_parser!(u8).range(0..=3))]
    pub backup_root: Option<Option<u8>>,
    /// Read the root tree at this address or of this generation, as an earlier commit left it
    ///
    /// A number from 65536 on that is a multiple of 4096 is an address, gen:N a generation. This
    /// option and those below are for reading only; see docs/rescue.md.
    #[arg(long, value_name = "ADDRESS|GENERATION", global = true, help_heading = HEADING)]
    pub tree_root: Option<TreeRootChoice>,
    /// Read the chunk tree whose root block is at this address
    #[arg(long, value_name = "ADDRESS", global = true, help_heading = HEADING, value_parser = address)]
    pub chunk_root: Option<u64>,
    /// Show the subvolume whose root block is at this address as the top level
    #[arg(long, value_name = "ADDRESS", global = true, help_heading = HEADING, value_parser = address)]
    #[arg(visible_alias = "subvolume-root")]
    pub fs_root: Option<u64>,
    /// Scan the devices for what the superblock and its trees do not lead to
    #[arg(long, global = true, help_heading = HEADING)]
    pub scan: bool,
    /// Scan, and read leaves that are found without the blocks above them; they may be outdated
    #[arg(long, global = true, help_heading = HEADING)]
    pub orphans: bool,
    /// Ignore faults: ignorebadroots, ignoremetacsums, ignoredatacsums, ignoresuperflags,
    /// nologreplay, usebackuproot or all, separated by commas or colons; all does not include
    /// nologreplay
    #[arg(long, value_name = "WHAT", global = true, help_heading = HEADING)]
    #[arg(value_delimiter = ',', value_parser = rescue)]
    pub rescue: Vec<RescueList>,
    /// Use superblock copy N (0 at 64 KiB, 1 at 64 MiB, 2 at 256 GiB)
    #[arg(long, value_name = "N", global = true, help_heading = HEADING)]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=2))]
    pub superblock: Option<u8>,
    /// Resolve paths from this subvolume, which PATH names from the top level
    ///
    /// Without --subvol, --subvolid and --default-subvol, paths start at the top level (id 5), from
    /// which all other subvolumes can be reached.
    #[arg(long, value_name = "PATH", global = true, help_heading = HEADING)]
    #[arg(conflicts_with_all = ["subvolid", "default_subvol"])]
    pub subvol: Option<OsString>,
    /// Resolve paths from the subvolume with this id
    #[arg(long, value_name = "ID", global = true, help_heading = HEADING)]
    #[arg(conflicts_with = "default_subvol")]
    pub subvolid: Option<u64>,
    /// Resolve paths from the default subvolume, which a mount without options shows
    #[arg(long, global = true, help_heading = HEADING)]
    pub default_subvol: bool,
    /// Whether the command gives up the rights that it does not need before it reads an image: on
    /// or off
    ///
    /// PAPILIO_SANDBOX is the same. The default is on, as far as the kernel has the means; papilio
    /// doctor shows them.
    // "kill" is for tests: a missing system call ends the process.
    #[arg(long, value_name = "MODE", global = true, help_heading = HEADING)]
    pub sandbox: Option<papilio_sandbox::Mode>,
    /// Print the messages of btrfs-progs on success
    #[arg(long, global = true, hide = true)]
    pub drop_in: bool,
    /// Suppress warnings
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub quiet: u8,
    /// Print more
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,
}

impl GlobalArgs {
    /// Returns the options of opening a disk image.
    pub fn image_options(&self) -> ImageOptions {
        let partition = self.partition.clone().unwrap_or_default();
        ImageOptions { partition, allow_backing: self.allow_backing, remote: self.remote_options() }
    }

    /// Returns the options of opening layers. Their paths are absolute, as a server leaves its
    /// working directory.
    pub fn layer_options(&self) -> LayerOptions {
        let whole = |path: &PathBuf| match path.as_os_str() == "-" {
            true => path.clone(),
            false => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        };
        let environment = || {
            let file = std::env::var_os("PAPILIO_KEY_FILE").map(|file| KeySource::File(whole(&file.into())));
            file.or_else(|| std::env::var_os("PAPILIO_KEY_COMMAND").map(KeySource::Command))
        };
        let key = match (self.key_fd, &self.key_file, &self.key_command) {
            (Some(number), ..) => KeySource::File(format!("/dev/fd/{number}").into()),
            (None, Some(file), _) => KeySource::File(whole(file)),
            (None, None, Some(command)) => KeySource::Command(command.clone()),
            (None, None, None) => environment().unwrap_or_default(),
        };
        LayerOptions {
            members: self.member.iter().map(whole).collect(),
            key,
            key_slot: self.key_slot,
            header: self.luks_header.as_ref().map(whole),
            ignore_signatures: self.ignores_signatures(),
        }
    }

    /// Returns whether devices with signatures of something else are written. For programs that
    /// cannot pass the option on, the environment can set it.
    pub fn ignores_signatures(&self) -> bool {
        self.ignore_signatures || std::env::var_os("PAPILIO_IGNORE_SIGNATURES").is_some_and(|set| set == "1")
    }

    /// Returns whether the command gives up rights. The environment counts if the option is not
    /// given.
    ///
    /// # Errors
    /// A value in the environment that means nothing: the user wanted something by it.
    pub fn sandbox_mode(&self) -> Result<papilio_sandbox::Mode, String> {
        const VARIABLE: &str = "PAPILIO_SANDBOX";
        match (self.sandbox, std::env::var(VARIABLE)) {
            (Some(mode), _) => Ok(mode),
            (None, Ok(text)) if !text.is_empty() => {
                text.parse().map_err(|error| format!("{VARIABLE}={text}: {error}"))
            }
            (None, _) => Ok(papilio_sandbox::Mode::default()),
        }
    }

    /// Returns the options of reading images at URLs.
    pub fn remote_options(&self) -> RemoteOptions {
        let defaults = RemoteOptions::default();
        RemoteOptions {
            cache: self.remote_cache.clone().unwrap_or_default(),
            cache_bytes: self.remote_cache_size.unwrap_or(defaults.cache_bytes),
            ..defaults
        }
    }

    /// Returns whether something is read that the last commit does not lead to, or faults are
    /// ignored.
    #[cfg(target_os = "linux")]
    pub fn chooses_roots(&self) -> bool {
        self.tree_root.is_some()
            || self.chunk_root.is_some()
            || self.fs_root.is_some()
            || matches!(self.backup_root, Some(Some(_)))
            || self.scan
            || self.orphans
            || !self.rescue.is_empty()
    }
}

/// A fault to ignore, by the names of the mount option `rescue`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rescue {
    /// Roots of trees that reading can do without.
    BadRoots,
    /// Checksums of tree blocks.
    MetaCsums,
    /// Checksums of data.
    DataCsums,
    /// Flags of changes that were interrupted; reading never minds them.
    SuperFlags,
    /// The log of fsyncs.
    Log,
    /// The current root tree, if it cannot be read.
    Root,
}

impl Rescue {
    /// All faults. A log of fsyncs is none: it is replayed if it can be.
    const ALL: [Self; 5] = [Self::BadRoots, Self::MetaCsums, Self::DataCsums, Self::SuperFlags, Self::Root];

    /// Adds the option.
    pub fn apply(self, options: OpenOptions) -> OpenOptions {
        match self {
            Self::BadRoots => options.ignore_bad_roots(true),
            Self::MetaCsums => options.ignore_meta_csums(true),
            Self::DataCsums => options.verify_data(false),
            Self::SuperFlags => options,
            Self::Log => options.replay_log(false),
            Self::Root => options.use_backup_root(true),
        }
    }
}

/// Faults to ignore, of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RescueList(pub Vec<Rescue>);

/// Parses values of the mount option `rescue`, separated by colons.
fn rescue(text: &str) -> Result<RescueList, String> {
    let mut all = Vec::new();
    for name in text.split(':') {
        match name {
            "ignorebadroots" | "ibadroots" => all.push(Rescue::BadRoots),
            "ignoremetacsums" | "imetacsums" => all.push(Rescue::MetaCsums),
            "ignoredatacsums" | "idatacsums" => all.push(Rescue::DataCsums),
            "ignoresuperflags" | "isuperflags" => all.push(Rescue::SuperFlags),
            "nologreplay" => all.push(Rescue::Log),
            "usebackuproot" => all.push(Rescue::Root),
            "all" => all.extend(Rescue::ALL),
            _ => return Err("not a value of the mount option rescue".to_owned()),
        }
    }
    Ok(RescueList(all))
}

fn remote_cache(text: &str) -> Result<RemoteCache, String> {
    match text {
        "" => Err("a directory or \"none\" is needed".to_owned()),
        "none" => Ok(RemoteCache::Memory),
        _ => Ok(RemoteCache::Directory(text.into())),
    }
}

/// Parses an address in bytes, decimal or hexadecimal.
pub fn address(text: &str) -> Result<u64, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    number.map_err(|_| "not an address".to_owned())
}
