//! A history of changes, and the comparison of both sides' replays of its log.

use super::at::{At, Seen};
use crate::in_memory::{self, check, crashed, has_log, try_open, writable};
use papilio::FileSystem;
use papilio_device::MemoryDevice;
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Manifest, Need, Scratch, require};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// A history, and assertions on the state after the power loss.
pub struct Case {
    pub name: &'static str,
    /// Changes before a commit.
    pub before: fn(&At),
    /// Changes after the commit; the last operation is an fsync.
    pub act: fn(&At),
    /// Asserts on the state after each replay.
    pub then: fn(&Seen),
    /// Whether the fsync is a log rather than a commit.
    pub logged: bool,
}

/// A case whose last fsync is a log.
pub const fn logged(name: &'static str, before: fn(&At), act: fn(&At), then: fn(&Seen)) -> Case {
    Case { name, before, act, then, logged: true }
}

/// A case whose last fsync is a commit.
pub const fn committed(name: &'static str, before: fn(&At), act: fn(&At), then: fn(&Seen)) -> Case {
    Case { name, before, act, then, logged: false }
}

/// Everything, addresses of extents included, except times: the two replays run at different times.
const COMPARED: CompareOptions =
    CompareOptions { mtime: false, ctime: false, atime: false, extents: true, ..CompareOptions::SAME_IMAGE };

/// Flag of FIEMAP: another file shares the extent. Deleted files do until they are cleaned up.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Makes a file system in memory that commits on request only.
pub fn new_file_system() -> (Arc<MemoryDevice>, FileSystem) {
    let (device, fs) = in_memory::new_file_system(256 << 20);
    // Makes the data chunk: a log cannot hold a new one.
    fs.create_file("/filler").unwrap().write_all_at(&[1; 100_000], 0).unwrap();
    fs.sync().unwrap();
    fs.remove_file("/filler").unwrap();
    (device, fs)
}

/// Judges all cases; fails if any of them does. Without a kernel that mounts Btrfs, only Papilio
/// replays them.
pub fn judge_all(cases: &[Case]) {
    let kernel = require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat());
    let scratch = kernel.map(|_| Scratch::new(1 << 30).unwrap());
    let mut wrong = Vec::new();
    for case in cases {
        let (device, fs) = new_file_system();
        let at = At(fs);
        (case.before)(&at);
        // Opened anew, so that nothing in memory remembers these changes.
        at.0.close().unwrap();
        let at = At(in_memory::open(&device));
        (case.act)(&at);
        let cut = device.snapshot();
        drop(at);
        if has_log(&cut) != case.logged {
            let found = if case.logged { "a commit" } else { "a log" };
            wrong.push(format!("{}: the fsync is {found}", case.name));
        }
        let judged = match &scratch {
            Some(scratch) => judge(scratch, &cut, case.then),
            None => replayed(&cut).map(drop),
        };
        if let Err(why) = judged {
            wrong.push(format!("{}: {why}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Has Papilio replay the log of `cut`. Returns the device, which the check finds clean.
fn replayed(cut: &MemoryDevice) -> Result<Arc<MemoryDevice>, Failure> {
    let device = crashed(cut);
    try_open(&device, &writable()).map_err(|error| format!("Papilio's replay: {error}"))?.close()?;
    let checked = check(&device);
    match checked.is_clean() {
        true => Ok(device),
        false => Err(format!("Papilio's check: {:#?}", checked.findings).into()),
    }
}

/// Has both sides replay the log of `cut`, compares the results, and calls `then` on each.
pub fn judge(scratch: &Scratch, cut: &MemoryDevice, then: impl Fn(&Seen)) -> Result<(), Failure> {
    let ours = replayed(cut)?;
    let by_papilio = seen_by_kernel(scratch, &ours, "Papilio's replay", &then)?;
    let by_kernel = seen_by_kernel(scratch, cut, "the kernel's replay", &then)?;
    let differences = by_kernel.diff(&by_papilio, &COMPARED);
    let shown: Vec<_> = differences.iter().take(8).map(ToString::to_string).collect();
    if shown.is_empty() { Ok(()) } else { Err(format!("kernel | Papilio: {shown:#?}").into()) }
}

/// Held while the kernel uses an image: `btrfs check` looks at all loop devices, and fails if one
/// disappears meanwhile.
static KERNEL: Mutex<()> = Mutex::new(());

/// Mounts the device with the kernel, calls `then`, and returns what the mount shows. `btrfs check`
/// is clean afterwards, and again after everything is removed.
fn seen_by_kernel(
    scratch: &Scratch,
    device: &MemoryDevice,
    whose: &str,
    then: &impl Fn(&Seen),
) -> Result<Manifest, Failure> {
    let _kernel = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let image = scratch.unique("image");
    device.write_image(&image)?;
    let images = ImageSet::open(scratch, vec![image.clone()]);
    let mounted = images.mount().map_err(|error| format!("the kernel mounts {whose}: {error}"))?;
    let root = HostTree::new(mounted.path());
    let mut manifest =
        Manifest::read(&root, ManifestOptions { extents: true, ..ManifestOptions::default() })?;
    let seen = Seen(mounted.path().to_owned());
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then(&seen)));
    mounted.unmount()?;
    if let Err(panic) = judged {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        return Err(format!("{whose}: {}", text.unwrap_or_default()).into());
    }
    images.btrfs_check().map_err(|error| format!("btrfs check of {whose}: {error:#}"))?;
    let mounted = images.mount()?;
    remove_all(mounted.path()).map_err(|error| format!("{whose}: removing everything: {error}"))?;
    mounted.unmount()?;
    images.btrfs_check().map_err(|error| format!("btrfs check of {whose} when emptied: {error:#}"))?;
    std::fs::remove_file(&image)?;
    for entry in manifest.entries.values_mut() {
        for extent in entry.extents.iter_mut().flatten() {
            extent.flags &= !FIEMAP_EXTENT_SHARED;
        }
    }
    Ok(manifest)
}

/// Removes everything below `root`, which fails for a directory whose size is wrong.
fn remove_all(root: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}
