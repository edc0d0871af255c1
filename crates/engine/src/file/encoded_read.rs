//! Reading an open file as its extents lie on the device.
//!
//! Owns [`OpenFile::read_encoded_at`]. Locks: as [`super::read`].
//!
//! Kernel counterpart: `btrfs_encoded_read` (`fs/btrfs/inode.c`).

use crate::data::extent_map::{DiskExtent, ExtentKind, FileExtents};
use crate::data::{EncodedRead, FileData};
use crate::errors::{Error, Result};
use crate::file::open_file::OpenFile;
use papilio_format::FileOffset;
use papilio_format::items::file_extent::{Compression, MAX_UNCOMPRESSED};
use papilio_format::items::inode::InodeFlags;

impl OpenFile {
    /// Reads the extent at `offset` as it lies; at most `most` stored bytes. Returns `None` for a
    /// compressed extent that is larger.
    ///
    /// # Errors
    /// As [`OpenFile::read_at`].
    pub fn read_encoded_at(&self, offset: u64, most: usize) -> Result<Option<EncodedRead>> {
        // The trees then have all that was written before this call.
        self.flush()?;
        let _shared = self.open.data.read();
        let ordered = Some(&self.open.ordered).filter(|ordered| !ordered.is_empty());
        let _locked =
            ordered.map(|ordered| ordered.lock_to_read(self.sectors(MAX_UNCOMPRESSED as usize, offset)));
        self.fs
            .read_until_unmoved(|| self.with_file_data(ordered, |file| self.read_extent(file, offset, most)))
    }

    fn read_extent(&self, file: &FileData<'_>, offset: u64, most: usize) -> Result<Option<EncodedRead>> {
        if offset >= file.size {
            return Ok(Some(EncodedRead::plain(Vec::new())));
        }
        let sector = self.fs.sector_size();
        let start = offset - offset % sector;
        let window = start.saturating_add(MAX_UNCOMPRESSED).min(file.size);
        // The Merkle tree verifies the bytes of the file, not those of its extents.
        if file.flags.contains(InodeFlags::VERITY) {
            let mut data = vec![0; (window - offset).min(most as u64) as usize];
            let read = self.fs.reader.read(file, FileOffset(offset), &mut data)?;
            data.truncate(read);
            return Ok(Some(EncodedRead::plain(data)));
        }
        let (sector_size, end) = (sector as u32, FileOffset(window));
        let mut extents =
            FileExtents::whole(file.tree.get(), file.inode, sector_size, FileOffset(start), end);
        let Some(extent) = extents.next().transpose()? else {
            return Ok(Some(EncodedRead::plain(Vec::new())));
        };
        if matches!(extent.kind, ExtentKind::Hole | ExtentKind::Prealloc(_)) {
            return self.read_zeros(file, offset, most).map(Some);
        }
        let length = extent.end.0.min(file.size) - offset;
        let before = offset - extent.start.0.min(offset);
        match &extent.kind {
            ExtentKind::Inline(inline) if inline.compression != Compression::None => {
                let data = inline.data();
                Ok((data.len() <= most).then(|| EncodedRead {
                    data: data.to_vec(),
                    length: length.min(inline.ram_bytes.saturating_sub(before)),
                    uncompressed: inline.ram_bytes,
                    offset: before,
                    compression: inline.compression,
                }))
            }
            ExtentKind::Regular(disk) if disk.compression != Compression::None => {
                self.read_compressed(file, disk, [offset, before, length], most)
            }
            _ => {
                let wanted = extent.end.0.min(window) - offset;
                let mut data = vec![0; wanted.min(most as u64) as usize];
                let read = self.fs.reader.read(file, FileOffset(offset), &mut data)?;
                data.truncate(read);
                Ok(Some(EncodedRead::plain(data)))
            }
        }
    }

    /// Reads the hole or preallocated extent at `offset`, at most `most` bytes. The kernel's window
    /// bounds only extents whose bytes are read.
    fn read_zeros(&self, file: &FileData<'_>, offset: u64, most: usize) -> Result<EncodedRead> {
        let sector = self.fs.sector_size();
        let start = offset - offset % sector;
        let end = FileOffset(offset.saturating_add(most as u64).min(file.size));
        let mut extents =
            FileExtents::whole(file.tree.get(), file.inode, sector as u32, FileOffset(start), end);
        let zeros = extents.next().transpose()?.map_or(0, |extent| extent.end.0.min(end.0) - offset);
        Ok(EncodedRead::plain(vec![0; zeros as usize]))
    }

    /// Reads a whole extent. The file has `length` bytes of it at `offset`, which is `before` bytes
    /// after the start of the file's part.
    fn read_compressed(
        &self,
        file: &FileData<'_>,
        disk: &DiskExtent,
        [offset, before, length]: [u64; 3],
        most: usize,
    ) -> Result<Option<EncodedRead>> {
        if disk.disk_length > most as u64 {
            return Ok(None);
        }
        let mut data = vec![0; disk.disk_length as usize];
        if !self.fs.reader.read_stored(file.flags, disk.disk_address, &mut data)? {
            // The read of the bytes tells what is wrong.
            self.fs.reader.read(file, FileOffset(offset), &mut [0])?;
            return Err(Error::Invalid(format!(
                "inode {}: no copy of the extent at {} can be read",
                file.inode, disk.disk_address
            )));
        }
        Ok(Some(EncodedRead {
            data,
            length,
            uncompressed: disk.ram_bytes,
            offset: disk.offset + before,
            compression: disk.compression,
        }))
    }
}
