//! One history, and its judges.

use crate::at::{At, Seen};
use papilio::format::{PhysicalAddress, Superblock};
use papilio::{CheckOptions, FileSystem, MkfsOptions, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Manifest, Need, Scratch, require};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// What is done, and what has to be there after the power went.
pub struct Case {
    pub name: &'static str,
    /// This is committed.
    pub before: fn(&At),
    /// The last thing that this does is an fsync.
    pub act: fn(&At),
    pub then: fn(&Seen),
    /// Whether a log says it.
    pub logged: bool,
}

/// A case that a log can say.
pub const fn logged(name: &'static str, before: fn(&At), act: fn(&At), then: fn(&Seen)) -> Case {
    Case { name, before, act, then, logged: true }
}

/// A case that only a commit says.
pub const fn committed(name: &'static str, before: fn(&At), act: fn(&At), then: fn(&Seen)) -> Case {
    Case { name, before, act, then, logged: false }
}

/// Everything, down to where extents lie, but times: two replays have two moments.
const COMPARED: CompareOptions =
    CompareOptions { mtime: false, ctime: false, atime: false, extents: true, ..CompareOptions::SAME_IMAGE };

/// Another file has the extent too: deleted files share theirs until somebody gets to clean up.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A new file system in memory that commits only when it is asked to.
pub fn new_file_system() -> (Arc<MemoryDevice>, FileSystem) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    papilio::mkfs_device(&(device.clone() as Arc<dyn Device>), &MkfsOptions::new()).unwrap();
    let fs = open(&device).unwrap();
    // Chunks are there: making one is what a log cannot say.
    fs.create_file("/room").unwrap().write_at(&[1; 100_000], 0).unwrap();
    fs.sync().unwrap();
    fs.remove_file("/room").unwrap();
    (device, fs)
}

fn open(device: &Arc<MemoryDevice>) -> papilio::Result<FileSystem> {
    let options = OpenOptions::new().write(true).commit_interval(None);
    FileSystem::from_devices(vec![Arc::clone(device) as Arc<dyn Device>], &options)
}

/// Whether a device holds a log.
pub fn has_log(device: &MemoryDevice) -> bool {
    let mut bytes = vec![0; 4096];
    device.read_at(&mut bytes, PhysicalAddress(65536)).unwrap();
    Superblock::parse(&bytes, PhysicalAddress(65536)).unwrap().log_root().is_some()
}

/// Judges all of them, and fails if any fails.
pub fn judge_all(cases: &[Case]) {
    if require(&[Need::KERNEL_MOUNT, &[Need::Command("btrfs")]].concat()).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    let mut wrong = Vec::new();
    for case in cases {
        let (device, fs) = new_file_system();
        let at = At(fs);
        (case.before)(&at);
        // Nothing is known any more of what was done.
        at.0.close().unwrap();
        let at = At(open(&device).unwrap());
        (case.act)(&at);
        let cut = device.snapshot();
        drop(at);
        if has_log(&cut) != case.logged {
            wrong.push(format!("{}: logged is {}", case.name, !case.logged));
        }
        if let Err(why) = judge(&scratch, &cut, case.then) {
            wrong.push(format!("{}: {why}", case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Both sides replay what is on the device; `then` looks at what each made of it.
pub fn judge(scratch: &Scratch, cut: &MemoryDevice, then: impl Fn(&Seen)) -> Result<(), Failure> {
    let ours = Arc::new(cut.snapshot());
    open(&ours).map_err(|error| format!("Papilio's replay: {error}"))?.close()?;
    let checked = papilio::check_devices(
        vec![ours.clone() as Arc<dyn Device>],
        &OpenOptions::new(),
        &CheckOptions::new().data_csum(true),
    )?;
    if !checked.is_clean() {
        return Err(format!("Papilio's check: {:#?}", checked.findings).into());
    }
    let by_papilio = seen_by_kernel(scratch, &ours, "Papilio's replay", &then)?;
    let by_kernel = seen_by_kernel(scratch, cut, "the kernel's replay", &then)?;
    let differences = by_kernel.diff(&by_papilio, &COMPARED);
    let shown: Vec<_> = differences.iter().take(8).map(ToString::to_string).collect();
    if shown.is_empty() { Ok(()) } else { Err(format!("kernel | Papilio: {shown:#?}").into()) }
}

/// Held by who has the kernel look: a check asks about all loop devices, and fails where one goes meanwhile.
static KERNEL: Mutex<()> = Mutex::new(());

/// What a kernel mount shows. Everything can be removed then, and nothing is wrong before or after that.
fn seen_by_kernel(
    scratch: &Scratch,
    device: &MemoryDevice,
    whose: &str,
    then: &impl Fn(&Seen),
) -> Result<Manifest, Failure> {
    let _alone = KERNEL.lock().unwrap_or_else(PoisonError::into_inner);
    let image = scratch.unique("image");
    device.write_image(&image)?;
    let images = ImageSet::open(scratch, vec![image.clone()]);
    let mounted = images.mount().map_err(|error| format!("the kernel mounts {whose}: {error}"))?;
    let root = HostTree::new(mounted.path());
    let mut manifest =
        Manifest::read(&root, ManifestOptions { extents: true, ..ManifestOptions::default() })?;
    let seen = Seen(mounted.path().to_owned());
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| then(&seen)));
    mounted.unmount()?;
    if let Err(panic) = looked {
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

/// A directory with a wrong size cannot be removed.
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
