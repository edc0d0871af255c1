//! Space that a file has before it is written.
//!
//! Owns [`is_promised`], by which a session judges "no space" on a nearly full device.

use papilio::{File, FileExtentKind, FileSystem};
use std::ops::Range;

/// Returns whether a write of `range` needs no new data space: all of it is preallocated, and the
/// file alone refers to it.
///
/// # Errors
/// A tree block or an item that cannot be read.
pub(crate) fn is_promised(fs: &FileSystem, file: &File, range: &Range<u64>) -> papilio::Result<bool> {
    let (tree, number) = (file.inode().tree(), file.inode().number());
    let mut shared = fs.shared_extents_of_last_commit();
    let mut at = range.start;
    for extent in file.extents(range.start, usize::MAX)? {
        if at >= range.end
            || extent.start.0 > at
            || extent.kind != FileExtentKind::Preallocated
            || shared.is_shared(tree, number, &extent)?
        {
            break;
        }
        at = extent.start.0 + extent.length;
    }
    Ok(at >= range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio::{MkfsOptions, OpenOptions};
    use papilio_device::{Device, MemoryDevice};
    use std::sync::Arc;

    #[test]
    fn preallocated_space_is_promised_until_it_is_written_or_shared() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        papilio::mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let fs = FileSystem::from_devices(vec![device], &OpenOptions::new().write(true)).unwrap();
        let file = fs.create_file("/file").unwrap();
        file.allocate(4096, 16384, true).unwrap();
        fs.sync().unwrap();
        let is = |range| is_promised(&fs, &file, &range).unwrap();
        assert!(is(4096..20480) && is(5000..20000));
        assert!(!is(0..8192) && !is(8192..20481));
        file.write_all_at(&[1; 4096], 8192).unwrap();
        assert!(is(4096..8192) && !is(4096..12288) && is(12288..20480));
        let copy = fs.create_file("/copy").unwrap();
        copy.clone_range(&file, 0, 0, 0).unwrap();
        fs.sync().unwrap();
        assert!(!is(12288..16384));
    }
}
