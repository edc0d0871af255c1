//! Changes a file system that may be hostile.
//!
//! Owns [`exercise_changes`]. A damaged tree may give an error at any step, even at the commit;
//! panics, hangs and unbounded memory are not acceptable, and the caller watches for them. Opening
//! also replays a log that the image has.
//!
//! Each byte of the plan is a step, so that a fuzzer can leave out steps and reorder them.

use papilio::{
    BalanceFilter, BalanceOptions, DefragmentOptions, Error, File, FileKind, FileSystem, Inode, OpenOptions,
    RenameMode, Result, XattrSet,
};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Entries of the file system that steps work on.
const ENTRIES: usize = 40;
/// Maximum number of steps.
const STEPS: usize = 24;
/// Sizes in bytes of writes: within a sector, unaligned, and above the size of inline extents.
const SIZES: [usize; 4] = [17, 3000, 9000, 70_000];
/// Offsets in bytes of writes: the start, the middle of a sector, and behind holes.
const OFFSETS: [u64; 4] = [0, 2048, 65_536, 1_000_003];

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeSummary {
    /// Whether the file system mounted for writing.
    pub mounted: bool,
    /// Steps that succeeded.
    pub done: usize,
    /// Steps that returned an error, commits included.
    pub errors: usize,
    /// Whether the result mounts.
    pub mounts_again: bool,
}

/// Opens the file system on `device` for writing, takes the steps of `plan`, commits, and opens it
/// again.
pub fn exercise_changes(device: MemoryDevice, plan: &[u8]) -> ChangeSummary {
    let mut summary = ChangeSummary::default();
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let options =
        OpenOptions::new().write(true).commit_interval(None).cache_bytes(1 << 20).node_cache_bytes(8 << 20);
    let Ok(fs) = FileSystem::from_devices(devices.clone(), &options) else { return summary };
    summary.mounted = true;
    let mut note = |result: Result<()>| match result {
        Ok(()) => summary.done += 1,
        Err(_) => summary.errors += 1,
    };
    let found: Vec<_> = match fs.walk("/") {
        Ok(walk) => walk.take(ENTRIES).flatten().map(|entry| (entry.path, entry.inode)).collect(),
        Err(error) => {
            note(Err(error));
            Vec::new()
        }
    };
    for (number, step) in plan.iter().take(STEPS).enumerate() {
        note(take_step(&fs, &found, *step, number));
    }
    note(fs.sync());
    note(fs.close());
    // A failed commit may leave a log that does not fit to the damaged trees.
    let options = OpenOptions::new().allow_older(true).node_cache_bytes(8 << 20);
    let again = FileSystem::from_devices(devices, &options);
    summary.mounts_again = again.is_ok();
    summary
}

/// Returns the next entry that `wanted` accepts, from a number on.
fn find(
    found: &[(Vec<u8>, Inode)],
    from: usize,
    wanted: impl Fn(FileKind) -> bool,
) -> Result<&(Vec<u8>, Inode)> {
    let mut turn = found.iter().cycle().skip(from).take(found.len());
    turn.find(|(_, inode)| wanted(inode.file_type()))
        .ok_or_else(|| Error::Invalid("the walk found no such entry".to_owned()))
}

fn take_step(fs: &FileSystem, found: &[(Vec<u8>, Inode)], step: u8, number: usize) -> Result<()> {
    // The entry depends on the number of the step too, so that equal steps reach several.
    let from = (usize::from(step) / 20 + 7 * number) % ENTRIES;
    let regular = || find(found, from, |kind| kind == FileKind::Regular);
    let any = || find(found, from, |_| true);
    let directory = || find(found, from, |kind| kind == FileKind::Directory);
    let new = format!("new{number}");
    match step % 20 {
        0 => write(&regular()?.1.open()?, step, number),
        1 => regular()?.1.open()?.set_len(OFFSETS[number % 4] / 2),
        2 => regular()?.1.open()?.punch_hole(OFFSETS[number % 4], 8192),
        3 => regular()?.1.open()?.allocate(OFFSETS[number % 4], 20_000, number.is_multiple_of(2)),
        4 => {
            let file = regular()?.1.open()?;
            write(&file, step, number)?;
            file.sync_all()
        }
        5 => write(&fs.create_file(new.as_bytes())?, step, number),
        6 => fs.create_dir(new.as_bytes()).map(drop),
        7 => fs.hard_link(&regular()?.0[..], new.as_bytes()),
        8 => fs.rename_with(&any()?.0[..], new.as_bytes(), RenameMode::Replace),
        9 => fs.remove_file(&find(found, from, |kind| kind != FileKind::Directory)?.0[..]),
        10 => fs.remove_dir(&directory()?.0[..]),
        11 => any()?.1.set_xattr(b"user.fuzz", &vec![step; SIZES[number % 2]], XattrSet::Any),
        12 => any()?.1.remove_xattr(b"user.colour"),
        13 => fs.set_permissions(&regular()?.0[..], 0o600 + u32::from(step % 8)),
        14 => clone_whole(&regular()?.1.open()?, &fs.create_file(new.as_bytes())?),
        15 => fs.snapshot("/", new.as_bytes(), step >= 128).map(drop),
        16 => match fs.subvolumes()?.last() {
            Some(last) => fs.delete_subvolume_by_id(last.id),
            None => Ok(()),
        },
        17 => fs.clean_subvolumes_step().map(drop),
        18 if step >= 200 => balance(fs),
        18 => {
            let file = regular()?.1.open()?;
            file.defragment(0..u64::MAX, &DefragmentOptions::default(), |_| true).map(drop)
        }
        _ => fs.sync(),
    }
}

fn write(file: &File, step: u8, number: usize) -> Result<()> {
    let bytes = vec![step; SIZES[(usize::from(step) / 64 + number) % 4]];
    file.write_all_at(&bytes, OFFSETS[number % 4])
}

fn clone_whole(source: &File, target: &File) -> Result<()> {
    target.clone_range(source, 0, source.size()?, 0)
}

fn balance(fs: &FileSystem) -> Result<()> {
    let filter = BalanceFilter { usage: Some(0..=40), ..BalanceFilter::default() };
    let options = BalanceOptions { metadata: Some(filter), ..BalanceOptions::default() };
    fs.balance(&options, |_| true).map(drop)
}
