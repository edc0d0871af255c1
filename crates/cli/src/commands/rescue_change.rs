//! The subcommands of `papilio rescue` that change one structure of a sound file system.
//!
//! Owns their arguments, [`make`], which `papilio check --clear-space-cache` uses too, and
//! [`open`], by which commands that write open devices. Each change is planned in memory, printed,
//! and made with an undo file.

use crate::context::Context;
use crate::output::Output;
use papilio::device::{Access, Device, DeviceOptions, UndoFile};
use papilio::{FoundDevice, OpenOptions, RepairOptions, RescueChange};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most undo files of one image that get names of their own.
const MOST_UNDO_FILES: u32 = 1000;

/// A version of the free-space cache.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SpaceCache {
    /// The caches in files, one for each block group
    V1,
    /// The free-space tree
    V2,
}

impl SpaceCache {
    /// Returns the change that removes it.
    pub fn clear(self) -> RescueChange {
        match self {
            Self::V1 => RescueChange::ClearSpaceCache,
            Self::V2 => RescueChange::ClearFreeSpaceTree,
        }
    }
}

/// Remove the v1 free-space caches, or the free-space tree (v2)
///
/// The next mount for writing builds caches anew. A file system with a block-group tree needs its
/// free-space tree: that is refused.
#[derive(Debug, clap::Args)]
pub struct ClearSpaceCache {
    /// The version
    #[arg(value_name = "VERSION")]
    cache: SpaceCache,
    #[command(flatten)]
    written: Written,
}

/// Remove the UUID tree; the kernel rebuilds it at the next mount for writing
#[derive(Debug, clap::Args)]
pub struct ClearUuidTree {
    #[command(flatten)]
    written: Written,
}

/// Remove the caches of free inode numbers that kernels before 5.11 could write
#[derive(Debug, clap::Args)]
pub struct ClearInoCache {
    #[command(flatten)]
    written: Written,
}

/// Align the sizes of the devices, and set the superblock's size to their sum
#[derive(Debug, clap::Args)]
pub struct FixDeviceSize {
    #[command(flatten)]
    written: Written,
}

/// Set the checksums of data that no copy matches to those of the data
///
/// Reads and verifies all data. Damaged data counts as right afterwards, and is listed. Data of
/// which one copy is right is not touched: papilio scrub mends its other copies.
#[derive(Debug, clap::Args)]
pub struct FixDataChecksum {
    #[command(flatten)]
    written: Written,
    /// Only list the data; write nothing
    #[arg(short, long, visible_alias = "read-only")]
    readonly: bool,
    /// Ask before writing
    #[arg(short, long, conflicts_with = "readonly")]
    interactive: bool,
    /// If the copies differ, use this one, counted from 1, and write it over the others
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    mirror: Option<u32>,
}

// The image that a rescue command writes, and the undo file of its change. No doc comment: clap
// would take it for the help of the command.
#[derive(Debug, clap::Args)]
pub struct Written {
    /// The image or device, and all others of its file system
    #[arg(required = true, value_hint = clap::ValueHint::FilePath)]
    pub image: Vec<PathBuf>,
    /// The undo file to write; it must not exist [default: IMAGE.undo]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub undo: Option<PathBuf>,
}

impl Written {
    fn make(&self, context: &Context, change: RescueChange, consent: Consent) -> anyhow::Result<()> {
        make(context, &self.image, self.undo.as_deref(), change, consent)
    }
}

macro_rules! simple {
    ($($command:ident $change:expr;)*) => {
        $(impl $command {
            /// Makes the change.
            pub fn run(&self, context: &Context) -> anyhow::Result<()> {
                self.written.make(context, $change, Consent::Given)
            }
        })*
    };
}

simple! {
    ClearUuidTree RescueChange::ClearUuidTree;
    ClearInoCache RescueChange::ClearInodeCache;
    FixDeviceSize RescueChange::FixDeviceSize;
}

impl ClearSpaceCache {
    /// Makes the change.
    pub fn run(&self, context: &Context) -> anyhow::Result<()> {
        self.written.make(context, self.cache.clear(), Consent::Given)
    }
}

impl FixDataChecksum {
    /// Makes the change.
    pub fn run(&self, context: &Context) -> anyhow::Result<()> {
        let mirror = self.mirror.map(|mirror| mirror as usize - 1);
        let consent = match (self.readonly, self.interactive) {
            (true, _) => Consent::Refused,
            (false, true) => Consent::Asked,
            (false, false) => Consent::Given,
        };
        self.written.make(context, RescueChange::FixDataChecksum { mirror }, consent)
    }
}

/// Whether a planned change is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consent {
    Given,
    Asked,
    Refused,
}

/// Plans a change, prints it, and makes it.
pub fn make(
    context: &Context,
    images: &[PathBuf],
    undo: Option<&Path>,
    change: RescueChange,
    consent: Consent,
) -> anyhow::Result<()> {
    made(context, images, undo, change, consent).map(drop)
}

/// As [`make`], and returns what is lost, or would be.
pub fn made(
    context: &Context,
    images: &[PathBuf],
    undo: Option<&Path>,
    change: RescueChange,
    consent: Consent,
) -> anyhow::Result<Vec<String>> {
    let images = &crate::devices::with_siblings(images)[..];
    let image = &images[0];
    let devices = open(context, images)?;
    let options: OpenOptions = context.options_for(image);
    let plan = papilio::plan_repair_with(&devices, &options, &RepairOptions::new().only(change))?;
    let mut output = Output::new()?;
    plan.changes.iter().try_for_each(|change| output.text(format_args!("will {change}\n")))?;
    plan.losses.iter().try_for_each(|loss| output.text(format_args!("lost: {loss}\n")))?;
    let refuse = |reason: &String| context.error(format_args!("{}: cannot {reason}", image.display()));
    plan.refused.iter().for_each(refuse);
    if plan.changes.is_empty() {
        output.text(format_args!("nothing to do\n"))?;
        output.finish()?;
        return Ok(plan.losses);
    }
    output.finish()?;
    if !plan.better {
        anyhow::bail!("{}: the result would have new faults: nothing was written", image.display());
    }
    match consent {
        Consent::Refused => return Ok(plan.losses),
        Consent::Asked if !confirmed("Write?", false)? => {
            anyhow::bail!("{}: nothing was written", image.display());
        }
        _ => {}
    }
    let undo = undo.map_or_else(|| undo_of(context, image), Path::to_path_buf);
    let made = papilio::repair(&devices, &options, &plan, &undo)?;
    context.changed_devices.note(images);
    let mut output = Output::new()?;
    let (count, undo) = (made.changes.len(), undo.display());
    output.text(format_args!("{count} changes made; {undo} takes them back\n"))?;
    output.finish()?;
    Ok(made.losses)
}

/// Asks on the terminal. An empty line is the answer `default`, the end of the input a no, and so
/// is every answer other than y or yes.
pub fn confirmed(question: &str, default: bool) -> anyhow::Result<bool> {
    eprint!("{question} [{}] ", if default { "Y/n" } else { "y/N" });
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(match answer.trim() {
        "" => default && !answer.is_empty(),
        answer => matches!(answer, "y" | "Y" | "yes"),
    })
}

/// Returns the default undo file of an image. That of a device goes to the working directory: a
/// file in `/dev` would be gone after the next start.
///
/// Scripts for `btrfs` know of no undo files and change an image several times. Under that name,
/// the undo file of a change that was completed stays, and the next one has a number.
pub fn undo_of(context: &Context, image: &Path) -> PathBuf {
    let is_device = std::fs::metadata(image).is_ok_and(|found| found.file_type().is_block_device());
    let base = image.file_name().filter(|_| is_device).unwrap_or(image.as_os_str());
    let named = |suffix: String| {
        let mut name = base.to_owned();
        name.push(suffix);
        PathBuf::from(name)
    };
    let first = named(".undo".to_owned());
    if !context.arguments().drop_in {
        return first;
    }
    let all =
        std::iter::once(first.clone()).chain((2..=MOST_UNDO_FILES).map(|at| named(format!(".undo.{at}"))));
    for undo in all {
        match UndoFile::open(&undo) {
            Ok(file) if file.complete => {}
            // It is free; or it is that of an interrupted change, which the caller reports.
            _ => return undo,
        }
    }
    first
}

/// As [`open`], also while the kernel has the devices mounted. The caller warns of that.
pub fn open_forced(context: &Context, images: &[PathBuf]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let open = |path: &PathBuf| -> anyhow::Result<Arc<dyn Device>> {
        if crate::holder::kernel_mount_of(path).is_none() {
            return crate::devices::open_member(path, context.arguments().ignores_signatures());
        }
        let device = DeviceOptions::new(Access::ReadWrite).shared(true).open(path)?;
        papilio::check_signatures(&device, context.arguments().ignores_signatures())?;
        Ok(Arc::new(device))
    };
    images.iter().map(open).collect()
}

/// Whether a device is that of a seed of the file system on the first of `images`: it is never
/// written.
fn is_seed_of(path: &Path, images: &[PathBuf]) -> bool {
    let read = |path: &Path| FoundDevice::read(path).ok().flatten();
    let Some(found) = read(path).filter(|found| found.seeding) else { return false };
    read(&images[0]).is_some_and(|first| first.fsid != found.fsid)
}

/// Opens all devices of a file system for writing, those of its seeds for reading.
pub fn open(context: &Context, images: &[PathBuf]) -> anyhow::Result<Vec<Arc<dyn Device>>> {
    let open = |path: &PathBuf| -> anyhow::Result<Arc<dyn Device>> {
        if is_seed_of(path, images) {
            return Ok(Arc::new(DeviceOptions::new(Access::ReadOnly).lock(false).open(path)?));
        }
        if let Some(mount) = crate::holder::kernel_mount_of(path) {
            anyhow::bail!("{}: the kernel has mounted it on {}", path.display(), mount.point.display());
        }
        crate::devices::open_member(path, context.arguments().ignores_signatures())
    };
    images.iter().map(open).collect()
}
