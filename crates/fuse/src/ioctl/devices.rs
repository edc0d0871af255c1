//! Ioctls on the whole file system: label, size, trim, commits, devices and space.
//!
//! Kernel counterparts: `btrfs_ioctl_set_fslabel`, `btrfs_ioctl_resize`, `btrfs_ioctl_fitrim`,
//! `btrfs_ioctl_fs_info`, `btrfs_ioctl_dev_info`, `btrfs_ioctl_space_info` (`fs/btrfs/ioctl.c`).

use super::call::{IoctlCall, IoctlReply, Result, done, page};
use super::caller_memory::BlockedCaller;
use papilio::DeviceUsage;
use papilio::format::DeviceId;
use papilio_ioctl::Errno;
use papilio_ioctl::layout::{
    DEV_STATS_RESET, DevInfo, DevStats, FS_INFO_CSUM, FS_INFO_GENERATION, FS_INFO_METADATA_UUID,
    FeatureFlags, FsInfo, LABEL_SIZE, Page, SPACE_GLOBAL_RESERVE, SpaceArgs, SpaceInfo, TrimRange, VolArgs,
    put_name, until_nul,
};
use papilio_ioctl::record::Writer;
use zerocopy::IntoBytes;

pub(super) fn get_label(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut field = [0; LABEL_SIZE];
    if !put_name(&mut field, &call.fs.label()) {
        return Err(Errno::io(&"the label on disk is too long"));
    }
    call.reply(&field)
}

pub(super) fn set_label(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let field = call.argument::<[u8; LABEL_SIZE]>()?;
    let label = until_nul(&field).ok_or(Errno(libc::EINVAL))?;
    call.fs.set_label(label)?;
    done(Vec::new())
}

pub(super) fn trim(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let mut range = call.argument::<TrimRange>()?;
    let sector_size = u64::from(call.fs.superblock().raw.sector_size);
    if range.length < sector_size {
        return Err(Errno(libc::EINVAL));
    }
    let end = range.start.saturating_add(range.length);
    range.length = call.fs.trim(range.start..end, range.min_length)?;
    call.reply(&range)
}

pub(super) fn sync(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    commit(call)?;
    done(Vec::new())
}

/// Commits. On a read-only file system there is nothing to commit.
fn commit(call: &IoctlCall<'_>) -> Result<()> {
    match call.fs.sync() {
        Err(error) if error.kind() == papilio::ErrorKind::ReadOnly && call.fs.failure().is_none() => Ok(()),
        result => Ok(result?),
    }
}

/// Commits before it returns instead of starting a commit in the background.
pub(super) fn start_sync(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    commit(call)?;
    call.reply(&call.fs.superblock().raw.generation.0)
}

pub(super) fn wait_sync(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let generation = if call.input.is_empty() { 0 } else { call.argument::<u64>()? };
    if generation > call.fs.superblock().raw.generation.0 {
        return Err(Errno(libc::EINVAL));
    }
    done(Vec::new())
}

/// A size argument of the kernel's resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    To(u64),
    More(u64),
    Less(u64),
    Max,
    Min,
}

/// Parses `[DEVID:]SIZE`. The size is `max`, our own `min`, or bytes with an optional suffix and a
/// leading + or -.
fn parse_resize(text: &[u8]) -> Option<(DeviceId, Size)> {
    let text = std::str::from_utf8(text).ok()?;
    let (devid, size) = match text.split_once(':') {
        Some((devid, size)) => (devid.parse().ok()?, size),
        None => (1, text),
    };
    let size = match size.as_bytes() {
        b"max" => Size::Max,
        b"min" => Size::Min,
        [b'+', ..] => Size::More(parse_bytes(&size[1..])?),
        [b'-', ..] => Size::Less(parse_bytes(&size[1..])?),
        _ => Size::To(parse_bytes(size)?),
    };
    Some((DeviceId(devid), size))
}

fn parse_bytes(text: &str) -> Option<u64> {
    let shift = match text.as_bytes().last()? {
        b'k' | b'K' => 10,
        b'm' | b'M' => 20,
        b'g' | b'G' => 30,
        b't' | b'T' => 40,
        b'p' | b'P' => 50,
        b'e' | b'E' => 60,
        _ => 0,
    };
    let digits = if shift > 0 { &text[..text.len() - 1] } else { text };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

pub(super) fn resize(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    call.must_be_administrator()?;
    let arguments = call.argument::<VolArgs>()?;
    let wrong = Errno(libc::EINVAL);
    let (devid, size) = until_nul(&arguments.name).and_then(parse_resize).ok_or(wrong)?;
    let devices = call.fs.usage()?.devices;
    let device = devices.iter().find(|device| device.devid == devid).ok_or(Errno(libc::ENODEV))?;
    let held = device.size.ok_or(Errno(libc::ENODEV))?;
    let total = match size {
        Size::Max => held,
        // The end of the last chunk, as in `FileSystem::minimum_size`.
        Size::Min => call.fs.minimum_size(devid)?,
        Size::To(total) => total,
        Size::More(more) => device.total.checked_add(more).ok_or(Errno(libc::ERANGE))?,
        Size::Less(less) => device.total.checked_sub(less).filter(|total| *total > 0).ok_or(wrong)?,
    };
    if total > held {
        return Err(Errno(libc::EFBIG));
    }
    match call.fs.resize(devid, total) {
        // Data past the new end is moved first.
        Err(papilio::Error::TooSmall { .. }) => super::jobs::shrink(call, devid, total),
        result => {
            result?;
            done(Vec::new())
        }
    }
}

/// Returns the number of spaces, and if the caller has slots for them, the spaces themselves. They
/// go to the caller's memory, behind the argument.
pub(super) fn space_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut arguments = call.argument::<SpaceArgs>()?;
    let usage = call.fs.usage()?;
    let spaces = usage.spaces.iter().map(|space| SpaceInfo {
        flags: (space.kind | space.profile.flags()).bits(),
        total: space.total,
        used: space.used,
    });
    let reserve = SpaceInfo { flags: SPACE_GLOBAL_RESERVE, total: usage.global_reserve, used: 0 };
    let all: Vec<SpaceInfo> = spaces.chain([reserve]).collect();
    if arguments.slots == 0 {
        arguments.total = all.len() as u64;
        return call.reply(&arguments);
    }
    let wanted = &all[..all.len().min(usize::try_from(arguments.slots).unwrap_or(usize::MAX))];
    let target = call.address.checked_add(size_of::<SpaceArgs>() as u64).ok_or(Errno(libc::EFAULT))?;
    BlockedCaller::of(call)?.memory()?.write(target, wanted.as_bytes())?;
    arguments.total = wanted.len() as u64;
    call.reply(&arguments)
}

/// Returns the error counters of a device, and sets them to zero if the caller wants that.
pub(super) fn dev_stats(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let mut arguments = call.argument::<DevStats>()?;
    let devid = DeviceId(arguments.devid);
    let errors = call.fs.device_errors()?;
    let found = errors.iter().find(|device| device.devid == devid).ok_or(Errno(libc::ENODEV))?;
    let values = found.named().map(|(_, value)| value);
    let wanted = (arguments.items as usize).min(values.len());
    arguments.values[..wanted].copy_from_slice(&values[..wanted]);
    arguments.items = wanted as u64;
    if arguments.flags & DEV_STATS_RESET != 0 {
        call.must_be_administrator()?;
        call.fs.reset_device_errors(devid)?;
    }
    call.reply(&arguments)
}

pub(super) fn dev_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let asked = call.argument::<DevInfo>()?;
    let wanted = |device: &&DeviceUsage| {
        device.devid.0 == asked.devid && (asked.uuid == [0; 16] || &asked.uuid == device.uuid.as_bytes())
    };
    let usage = call.fs.usage()?;
    let device = usage.devices.iter().find(wanted).ok_or(Errno(libc::ENODEV))?;
    let mut info = DevInfo {
        devid: device.devid.0,
        uuid: *device.uuid.as_bytes(),
        bytes_used: device.allocated,
        total_bytes: device.total,
        fsid: *call.fs.uuid().as_bytes(),
        ..DevInfo::default()
    };
    // A path that is too long is omitted, as the kernel omits the path of a missing device.
    let path = device.path.as_deref().unwrap_or_default();
    let _ = put_name(&mut info.path, path.as_bytes());
    call.reply(&info)
}

pub(super) fn fs_info(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    // The command number says that the caller only reads, so FUSE does not pass the wanted fields.
    // Without them all fields are filled in, and the flags say so.
    let asked = call.argument::<FsInfo>().map_or(u64::MAX, |asked| asked.flags);
    let superblock = call.fs.superblock();
    let raw = &superblock.raw;
    let mut info = FsInfo {
        max_id: call.fs.usage()?.devices.iter().map(|device| device.devid.0).max().unwrap_or(0),
        devices: raw.num_devices,
        fsid: *raw.fsid.as_bytes(),
        node_size: raw.node_size,
        sector_size: raw.sector_size,
        clone_alignment: raw.sector_size,
        ..FsInfo::default()
    };
    if asked & FS_INFO_CSUM != 0 {
        info.csum_type = raw.csum_type;
        info.csum_size = superblock.checksum_type().size() as u16;
        info.flags |= FS_INFO_CSUM;
    }
    if asked & FS_INFO_GENERATION != 0 {
        info.generation = raw.generation.0;
        info.flags |= FS_INFO_GENERATION;
    }
    if asked & FS_INFO_METADATA_UUID != 0 {
        info.metadata_uuid = *superblock.metadata_uuid().as_bytes();
        info.flags |= FS_INFO_METADATA_UUID;
    }
    call.reply(&info)
}

pub(super) fn get_features(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let raw = call.fs.superblock().raw;
    call.reply(&FeatureFlags {
        compat: raw.compat_flags,
        compat_ro: raw.compat_ro_flags.bits(),
        incompat: raw.incompat_flags.bits(),
    })
}

/// Our own: returns the usage of space. The first page starts with the spaces, and devices follow.
pub(super) fn usage(call: &IoctlCall<'_>) -> Result<IoctlReply> {
    let asked = call.argument::<Page>()?;
    if asked.cursor == 0 {
        // The trees tell the use as of the last commit. Without one, space that was taken since
        // then would count as free. Data in memory has space reserved but no extents, and is left
        // alone. A mount that takes no changes has nothing to commit.
        let _ = call.fs.commit();
    }
    let usage = call.fs.usage()?;
    let mut writer = Writer::default();
    if asked.cursor == 0 {
        writer.usage(&usage);
    }
    page(call, asked, &usage.devices, Writer::device, writer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize_arguments_are_parsed() {
        let parse = |text: &str| parse_resize(text.as_bytes()).map(|(devid, size)| (devid.0, size));
        assert_eq!(parse("max"), Some((1, Size::Max)));
        assert_eq!(parse("3:min"), Some((3, Size::Min)));
        assert_eq!(parse("2:1g"), Some((2, Size::To(1 << 30))));
        assert_eq!(parse("+5M"), Some((1, Size::More(5 << 20))));
        assert_eq!(parse("1:-4096"), Some((1, Size::Less(4096))));
        for wrong in ["", "x", "1:", "cancel", "+", "-k", "99999999999999999999", "20E", "max "] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
