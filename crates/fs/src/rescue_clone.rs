//! Cloning what can be read: the public functions of [`papilio_progs::rescue_clone`].
//!
//! Owns [`rescue_clone`] and [`RescueCloneOptions`].
//!
//! **Order**: the clone has a temporary magic until all is copied. Then it is checked, and what the
//! lost parts leave behind is mended: names without inodes, inodes without names, counts.

use crate::check::check;
use crate::file_system::FileSystem;
use papilio_device::{Access, FileDevice};
use papilio_engine::errors::{Error, Result};
use papilio_engine::jobs::signature::find_signature;
use papilio_engine::mount::open_devices;
use papilio_engine::options::OpenOptions;
use papilio_format::Uuid;
use papilio_progs::check::{CheckOptions, CheckReport};
use papilio_progs::mkfs::mkfs;
use papilio_progs::repair::{self, RepairScope};
use papilio_progs::rescue_clone::{self as cloning, CloneProgress, Cloned};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Bytes of the cache of tree blocks.
const CACHE_BYTES: usize = 256 << 20;

/// Options of a clone.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RescueCloneOptions {
    size: Option<u64>,
    force: bool,
    uuid: Option<Uuid>,
}

impl RescueCloneOptions {
    /// Returns the defaults: a new file, an eighth larger than the devices of the source.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the new file system in bytes.
    pub fn size(mut self, bytes: Option<u64>) -> Self {
        self.size = bytes;
        self
    }

    /// Overwrites an existing file, or a device that has content.
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }

    /// Sets the UUID of the new file system; without it, a random one.
    pub fn uuid(mut self, uuid: Option<Uuid>) -> Self {
        self.uuid = uuid;
        self
    }
}

/// Makes a new, clean file system at `out` with all that can be read of `source`: subvolumes and
/// snapshots with their ids, UUIDs and flags, that share data as before; inodes with their numbers,
/// times and attributes; compressed extents as they lie. Tells `events` of everything that is
/// missing. Returns the clone's report and its check.
///
/// # Errors
/// `out` exists and may not be overwritten; [`Error::NoSpace`]; failures of writing. A new file is
/// removed again.
pub fn rescue_clone(
    source: &FileSystem,
    out: impl AsRef<Path>,
    options: &RescueCloneOptions,
    events: &mut dyn FnMut(CloneProgress),
) -> Result<(Cloned, CheckReport)> {
    let out = out.as_ref();
    let is_new = prepare(out, options)?;
    let result = make(source, out, options, events);
    if result.is_err() && is_new {
        // The error that led here matters more than one of the removal.
        let _ = std::fs::remove_file(out);
    }
    result
}

/// Refuses what may not be overwritten, and empties what may. Returns whether `out` is a new file.
fn prepare(out: &Path, options: &RescueCloneOptions) -> Result<bool> {
    let host = |source| Error::Host { path: out.to_owned(), source };
    let found = match std::fs::metadata(out) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(true),
        found => found.map_err(host)?,
    };
    if found.file_type().is_block_device() {
        let device = FileDevice::open(out, Access::ReadOnly)?;
        return match find_signature(&device)? {
            Some(found) if !options.force => {
                Err(Error::Occupied { device: out.display().to_string(), found })
            }
            _ => Ok(false),
        };
    }
    if !options.force {
        let text = format!("{}: it exists; use force to overwrite it", out.display());
        return Err(Error::Invalid(text));
    }
    // The lock says whether another process has it open.
    drop(FileDevice::open(out, Access::ReadWrite)?);
    std::fs::OpenOptions::new().write(true).open(out).and_then(|file| file.set_len(0)).map_err(host)?;
    Ok(false)
}

fn make(
    source: &FileSystem,
    out: &Path,
    options: &RescueCloneOptions,
    events: &mut dyn FnMut(CloneProgress),
) -> Result<(Cloned, CheckReport)> {
    let is_block_device = std::fs::metadata(out).is_ok_and(|found| found.file_type().is_block_device());
    let mut format = cloning::options_for(&source.info).unfinished(true).force(options.force);
    if let Some(uuid) = options.uuid {
        format = format.fsid(uuid);
    }
    if options.size.is_some() || !is_block_device {
        let total = source.info.volume().superblock().raw.total_bytes;
        // Metadata may take more space than in the source, whose blocks subvolumes share.
        let size = total.saturating_add(total / 8).saturating_add(256 << 20);
        format = format.size(options.size.unwrap_or(size));
    }
    mkfs(out, &format)?;
    let open = OpenOptions::new().write(true).unfinished(true).commit_interval(None);
    let target = FileSystem::open_with(out, &open)?;
    let mut cloned = cloning::clone_into(&source.info, &target.info, events)?;
    target.finish_making()?;
    drop(target);
    let report = settle(out, &mut cloned)?;
    Ok((cloned, report))
}

/// Checks the clone, and mends what does not fit together because parts are missing.
fn settle(out: &Path, cloned: &mut Cloned) -> Result<CheckReport> {
    let open = OpenOptions::new();
    let report = check(out, &open, &CheckOptions::new())?;
    if report.is_clean() {
        return Ok(report);
    }
    let devices = open_devices(out, &open, Access::ReadWrite)?;
    // One subvolume may have lost something that another one, which shares the block, has.
    let scope = RepairScope { keeps_apart: true, ..RepairScope::default() };
    let mended = repair::mend(&devices, &open, CACHE_BYTES, &CheckOptions::new(), scope, None)?;
    devices.iter().try_for_each(|device| device.flush()).map_err(|error| {
        Error::Invalid(format!("{}: the repaired clone cannot be flushed: {error}", out.display()))
    })?;
    cloned.mended.extend(mended.changes);
    Ok(mended.after)
}
