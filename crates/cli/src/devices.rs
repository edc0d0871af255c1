//! Finds the devices of a file system that the user did not name.
//!
//! Owns [`add_missing`], which every command that opens a file system uses. Image files are found
//! only if they are named: a copy of an image beside it must never be opened in its place. Seeds
//! are never written, so a copy of one is as good: they are also found beside the image that builds
//! on them.

use anyhow::bail;
use papilio::device::{Access, Device, DeviceOptions, ImageOptions, is_url, split_partition};
use papilio::format::DeviceId;
use papilio::format::items::device::DeviceItem;
use papilio::{FoundDevice, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens a device for writing: a file, a block device, a partition or the disk in a qcow2 image.
pub fn open_for_writing(path: &Path) -> anyhow::Result<Arc<dyn Device>> {
    let options = DeviceOptions::new(Access::ReadWrite);
    Ok(options.open_target(path, &ImageOptions::default())?.into_device())
}

/// As [`open_for_writing`], for a device of a file system. It must belong to nothing else, unless
/// its signatures are ignored.
pub fn open_member(path: &Path, ignores_signatures: bool) -> anyhow::Result<Arc<dyn Device>> {
    let device = DeviceOptions::new(Access::ReadWrite).open_existing(path, &ImageOptions::default())?;
    papilio::check_signatures(&*device, ignores_signatures)?;
    Ok(device)
}

/// Returns the absolute path of a device, without symbolic links, for the server of a mount.
pub fn absolute(path: &Path) -> std::io::Result<PathBuf> {
    resolved(path, |file| file.canonicalize())
}

/// Replaces the path of the file by what `resolve` makes of it, and keeps the number of the
/// partition in `IMAGE@N`.
pub fn resolved(
    path: &Path,
    resolve: impl FnOnce(&Path) -> std::io::Result<PathBuf>,
) -> std::io::Result<PathBuf> {
    let (file, partition) = split_partition(path);
    let mut whole = resolve(file)?.into_os_string();
    if let Some(number) = partition {
        whole.push(format!("@{number}"));
    }
    Ok(whole.into())
}

/// Whether two paths name one file or partition.
pub fn is_same_file(one: &Path, other: &Path) -> bool {
    absolute(one).is_ok_and(|one| absolute(other).is_ok_and(|other| one == other))
}

/// Adds to the options the block devices that belong to the file system on `image` and are not
/// among those `given`.
pub fn add_missing(image: &Path, given: &[PathBuf], options: OpenOptions) -> OpenOptions {
    // Opening the image reports what is wrong with it.
    let Ok(Some(first)) = FoundDevice::read(image) else { return options };
    if first.devices <= 1 + given.len() as u64 {
        return options;
    }
    let found = siblings(&first, given).into_iter().filter(|device| !given.contains(&device.path));
    found.fold(options, |options, device| options.device(device.path))
}

/// Returns the other devices of a file system: first those `given`, then block devices of this
/// machine.
pub fn siblings(first: &FoundDevice, given: &[PathBuf]) -> Vec<FoundDevice> {
    let named = given.iter().filter_map(|path| FoundDevice::read(path).ok().flatten());
    let is_sibling = |device: &FoundDevice| device.fsid == first.fsid && device.devid != first.devid;
    let mut found: Vec<FoundDevice> = named.filter(is_sibling).collect();
    if (found.len() as u64) + 1 < first.devices {
        let block_devices = FoundDevice::on_this_machine().unwrap_or_default();
        for device in FoundDevice::without_twins(block_devices.into_iter().filter(is_sibling)) {
            // A given image stays, even if a loop device on it exists.
            if !found.iter().any(|known| known.devid == device.devid) {
                found.push(device);
            }
        }
    }
    if (found.len() as u64) + 1 < first.devices {
        let seeds = seeds_of(first, given).into_iter();
        found.extend(seeds.filter(|seed| seed.path != first.path));
    }
    found
}

/// Returns the devices of the seeds that a file system builds on: first those `given`, then block
/// devices of this machine, then images in the directory of `first`. Their superblocks name another
/// file system.
fn seeds_of(first: &FoundDevice, given: &[PathBuf]) -> Vec<FoundDevice> {
    let Ok(members) = first.members() else { return Vec::new() };
    let is_seed = |device: &FoundDevice| {
        device.fsid != first.fsid && members.iter().any(|item| device.is_named_by(item))
    };
    let given = given.iter().filter_map(|path| FoundDevice::read(path).ok().flatten());
    let block_devices = FoundDevice::on_this_machine().unwrap_or_default();
    let mut found = FoundDevice::without_twins(given.chain(block_devices).filter(is_seed));
    let is_missing = |found: &[FoundDevice], item: &DeviceItem| {
        item.fsid != first.fsid && !found.iter().any(|device| device.is_named_by(item))
    };
    if members.iter().any(|item| is_missing(&found, item)) {
        for device in images_beside(&first.path) {
            let named = members.iter().find(|item| device.seeding && device.is_named_by(item));
            // One that was changed since, and made a seed again, is another seed.
            if named.is_some_and(|item| item.generation == device.generation && is_missing(&found, item)) {
                found.push(device);
            }
        }
    }
    found
}

/// Returns the images in the directory of an image, by name.
fn images_beside(image: &Path) -> Vec<FoundDevice> {
    let file = split_partition(image).0;
    let is_file = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.is_file());
    if is_url(image) || !is_file(file) {
        return Vec::new();
    }
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_file(path)).collect();
    paths.sort();
    paths.iter().filter_map(|path| FoundDevice::read(path).ok().flatten()).collect()
}

/// Returns the paths of all devices of the file system on the first of `images`: those named, and
/// the block devices that are found.
pub fn with_siblings(images: &[PathBuf]) -> Vec<PathBuf> {
    let Some((image, given)) = images.split_first() else { return Vec::new() };
    let mut all = images.to_vec();
    if let Ok(Some(first)) = FoundDevice::read(image)
        && first.devices > images.len() as u64
    {
        let found = siblings(&first, given).into_iter().map(|device| device.path);
        all.extend(found.filter(|path| !images.contains(path)));
    }
    all
}

/// Returns the paths of the devices of a file system: those of `named` that are members of one, and
/// the block devices that are found. The target of a replacement that was cut short is no member.
///
/// # Errors
/// None of `named` has a file system; one cannot be read.
pub fn members<'p>(named: impl IntoIterator<Item = &'p Path>) -> anyhow::Result<Vec<PathBuf>> {
    let is_member = |path: &Path| -> anyhow::Result<bool> {
        Ok(FoundDevice::read(path)?.is_some_and(|device| device.devid != DeviceId(0)))
    };
    let (mut members, mut first) = (Vec::<PathBuf>::new(), None);
    for path in named {
        first.get_or_insert(path);
        if is_member(path)? && !members.iter().any(|known| is_same_file(known, path)) {
            members.push(path.to_path_buf());
        }
    }
    if members.is_empty() {
        bail!("{}: no Btrfs file system", first.unwrap_or(Path::new("")).display());
    }
    for path in with_siblings(&members).split_off(members.len()) {
        if is_member(&path)? && !members.iter().any(|known| is_same_file(known, &path)) {
            members.push(path);
        }
    }
    Ok(members)
}
