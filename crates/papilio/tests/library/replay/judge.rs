//! Has Papilio and the kernel replay the log that a power loss left, and compares the results.

use super::power_cut::{PowerCut, copy};
use crate::images::{open, writable};
use papilio::{CheckOptions, OpenOptions};
use papilio_oracle::manifest::ManifestOptions;
use papilio_oracle::{CompareOptions, HostTree, ImageSet, Manifest, Scratch, Time};
use std::path::PathBuf;

/// Everything, addresses of extents included, except access times, which a replay does not set.
const COMPARED: CompareOptions = CompareOptions { atime: false, extents: true, ..CompareOptions::SAME_IMAGE };

/// Flag of FIEMAP: another file shares the extent.
const FIEMAP_EXTENT_SHARED: u32 = 0x2000;

/// Replays the log by opening the images for writing, then closes and checks them.
///
/// # Errors
/// Describes a failed replay, or the findings of the check.
fn replay_by_papilio(images: &[PathBuf]) -> Result<(), String> {
    let say = |error: papilio::Error| format!("Papilio's replay: {error}");
    let fs = open(images, &writable()).map_err(say)?;
    assert!(!fs.has_log());
    fs.close().map_err(say)?;
    let fs = open(images, &OpenOptions::new()).map_err(say)?;
    assert!(!fs.has_log());
    let report = fs.check(&CheckOptions::new().data_csum(true)).map_err(say)?;
    let shown: Vec<_> = report.findings.iter().take(12).map(ToString::to_string).collect();
    if report.is_clean() { Ok(()) } else { Err(format!("check: {shown:#?}")) }
}

/// Reads everything from a kernel mount. Replaces times after `moment`, which the replay set, by
/// one fixed time.
pub fn seen_by_kernel(
    images: &ImageSet,
    read_only: bool,
    moment: Time,
) -> Result<Manifest, Box<dyn std::error::Error + Send + Sync>> {
    let mounted = if read_only { images.mount_read_only()? } else { images.mount()? };
    let mut manifest = Manifest::read(
        &HostTree::new(mounted.path()),
        ManifestOptions { extents: true, ..ManifestOptions::default() },
    )?;
    mounted.unmount()?;
    let late = Time { seconds: i64::MAX, nanoseconds: 0 };
    for entry in manifest.entries.values_mut() {
        // Deleted files and subvolumes share extents until they are cleaned up.
        for extent in entry.extents.iter_mut().flatten() {
            extent.flags &= !FIEMAP_EXTENT_SHARED;
        }
        for time in [&mut entry.metadata.mtime, &mut entry.metadata.ctime] {
            if *time > moment {
                *time = late;
            }
        }
    }
    Ok(manifest)
}

/// Has both sides replay the log and compares everything.
///
/// # Errors
/// Describes the differences, or the side that fails.
pub fn judge(scratch: &Scratch, cut: PowerCut) -> Result<(), String> {
    let PowerCut { name, images, moment } = cut;
    let result = compare_replays(scratch, images, moment);
    result.map_err(|why| format!("{name}: {why}"))
}

fn compare_replays(scratch: &Scratch, theirs: Vec<PathBuf>, moment: Time) -> Result<(), String> {
    let ours = copy(&theirs, scratch);
    replay_by_papilio(&ours)?;
    let ours = ImageSet::open(scratch, ours);
    ours.btrfs_check().map_err(|error| format!("btrfs check: {error:#}"))?;
    let theirs = ImageSet::open(scratch, theirs);
    let theirs_seen =
        seen_by_kernel(&theirs, false, moment).map_err(|error| format!("the kernel's replay: {error:#}"))?;
    let ours_seen =
        seen_by_kernel(&ours, true, moment).map_err(|error| format!("the kernel mounts ours: {error:#}"))?;
    for path in ours.paths().iter().chain(theirs.paths()) {
        std::fs::remove_file(path).map_err(|error| error.to_string())?;
    }
    let differences = theirs_seen.diff(&ours_seen, &COMPARED);
    let shown: Vec<_> = differences.iter().take(12).map(ToString::to_string).collect();
    if differences.is_empty() { Ok(()) } else { Err(format!("kernel | Papilio: {shown:#?}")) }
}

/// Judges all power cuts; fails if any of them does.
pub fn judge_all(scratch: &Scratch, cuts: Vec<PowerCut>) {
    let wrong: Vec<_> = cuts.into_iter().filter_map(|cut| judge(scratch, cut).err()).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
