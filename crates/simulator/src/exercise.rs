//! Runs every kind of read on a file system that may be hostile.
//!
//! Owns [`exercise`] and [`exercise_reads`]. Errors are acceptable; panics, hangs and unbounded
//! memory are not, and the caller watches for them. The bounds below only keep a run short.

use papilio::{CheckOptions, FileKind, FileSystem, Inode, OpenOptions};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Maximum number of entries visited.
const ENTRIES: usize = 4_000;
/// Bytes read per position of a file: its start, its end and past its middle.
const BYTES: usize = 256 << 10;
/// Maximum number of data segments visited per file.
const STEPS: usize = 1_000;

/// The result of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Whether the file system mounted.
    pub mounted: bool,
    /// Entries visited.
    pub entries: usize,
    /// Bytes of file content read.
    pub bytes: usize,
    /// Number of errors.
    pub errors: usize,
    /// Number of findings of the check; 1 if it could not start, 0 without a check.
    pub findings: usize,
}

/// Checks the file system on `device`, opens it and reads everything.
pub fn exercise(device: MemoryDevice) -> Summary {
    let devices: Vec<Arc<dyn Device>> = vec![Arc::new(device)];
    let check = CheckOptions::new().data_csum(true);
    let checked = papilio::check_devices(devices.clone(), &options(), &check);
    let findings = checked.map_or(1, |report| report.findings.len());
    Summary { findings, ..read_all(devices) }
}

/// As [`exercise`], without the check, which takes two thirds of the time.
pub fn exercise_reads(device: MemoryDevice) -> Summary {
    read_all(vec![Arc::new(device)])
}

fn options() -> OpenOptions {
    OpenOptions::new().use_backup_root(true).degraded(true).allow_older(true).node_cache_bytes(8 << 20)
}

fn read_all(devices: Vec<Arc<dyn Device>>) -> Summary {
    let mut summary = Summary::default();
    let Ok(fs) = FileSystem::from_devices(devices, &options()) else {
        summary.errors += 1;
        return summary;
    };
    summary.mounted = true;
    for state in fs.older_states() {
        summary.errors += fs.older_files(state).len();
    }
    summary.errors += usize::from(fs.subvolumes().is_err());
    summary.errors += usize::from(fs.default_subvolume().is_err());
    let Ok(walk) = fs.walk("/") else {
        summary.errors += 1;
        return summary;
    };
    let mut buffer = vec![0; BYTES];
    for entry in walk.take(ENTRIES) {
        match entry {
            Ok(entry) => visit(&fs, &entry.path, &entry.inode, &mut buffer, &mut summary),
            Err(_) => summary.errors += 1,
        }
    }
    summary
}

fn visit(fs: &FileSystem, path: &[u8], inode: &Inode, buffer: &mut [u8], summary: &mut Summary) {
    summary.entries += 1;
    let mut note = |failed: bool| summary.errors += usize::from(failed);
    note(inode.xattrs().is_err());
    note(inode.names().is_err());
    note(inode.xattr(b"user.colour").is_err());
    note(fs.inode(path).is_err());
    match inode.file_type() {
        FileKind::Symlink => note(inode.read_link().is_err()),
        FileKind::Directory => note(inode.lookup(b"f1").is_err()),
        FileKind::Regular => read_file(inode, buffer, summary),
        _ => {}
    }
}

fn read_file(inode: &Inode, buffer: &mut [u8], summary: &mut Summary) {
    let Ok(file) = inode.open() else {
        summary.errors += 1;
        return;
    };
    for start in [0, file.len().saturating_sub(BYTES as u64), file.len() / 2 + 1] {
        match file.read_at(buffer, start) {
            Ok(read) => summary.bytes += read,
            Err(_) => summary.errors += 1,
        }
    }
    let mut offset = 0;
    for _ in 0..STEPS {
        let Ok(Some(start)) = file.seek_data(offset) else { break };
        let Ok(end) = file.seek_hole(start) else { break };
        assert!(start >= offset && end > start, "seeks must advance: {offset}, {start}, {end}");
        offset = end;
        if offset >= file.len() {
            break;
        }
    }
    summary.errors += usize::from(file.fiemap(0).is_err());
}
