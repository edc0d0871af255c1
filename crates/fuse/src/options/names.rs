//! Names of options: those that take a value, those that have no effect here, and those that are
//! refused with a reason.

use super::types::MountOptionError;

/// The options that take a value. The others refuse one.
const VALUED: [&str; 26] = [
    "cache",
    "commit",
    "compress",
    "compress-force",
    "device",
    "device_io",
    "device_timeout",
    "discard",
    "dmask",
    "fmask",
    "follow",
    "fsname",
    "gid",
    "idmap",
    "max_inline",
    "opens",
    "replay_bytes",
    "rescue",
    "subvol",
    "subvolid",
    "thread_pool",
    "threads",
    "transport",
    "uid",
    "umask",
    // mount(8) writes the name of the user who mounted.
    "user",
];

/// Refuses a value for an option that takes none.
pub(super) fn check_value(name: &str, value: Option<&str>) -> Result<(), MountOptionError> {
    match value {
        Some(value) if !VALUED.contains(&name) => {
            Err(MountOptionError::new(format!("mount option {name} takes no value, but {value:?} was given")))
        }
        _ => Ok(()),
    }
}

/// Returns whether an option has no effect that can be observed here: those that mount(8) and fstab
/// interpret themselves, hints for the kernel's work, and defaults.
pub(super) fn is_ignored(name: &str) -> bool {
    const BTRFS: [&str; 23] = [
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
pub(super) fn unsupported(name: &str) -> Option<&'static str> {
    Some(match name {
        "noacl" => "access control lists are always enforced",
        "clear_cache" | "nospace_cache" => "the free-space tree is always kept",
        "remount" => "it must come from mount(8) or papilio mount",
        "bind" | "rbind" | "move" => "only mount(8) can do that",
        "loop" | "offset" | "sizelimit" => "images are opened without a loop device",
        "nosymfollow" => "FUSE does not support it",
        _ => return None,
    })
}
