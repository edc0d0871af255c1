//! VHDX images of Hyper-V, for reading: fixed and dynamic ones.
//!
//! Owns [`VhdxDevice`], around the reader of the crate `vhdx-core`. It replays a log that was not
//! applied in memory, so that an image of a machine that crashed is readable.
//!
//! **Invariant**: an image that needs a parent is refused.
//!
//! **Locks**: `reader`, held while a range is read, since the reader has one position. So an image
//! has one request in flight.

use crate::device::{Access, Device, check_read, read_only};
use crate::error::OpenErrorKind;
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;
use vhdx::{VhdxError, VhdxReader};

/// The disk in a VHDX image.
#[derive(Debug)]
pub(super) struct VhdxDevice {
    file: Arc<dyn Device>,
    size: u64,
    reader: Mutex<VhdxReader>,
}

/// A device as a file with a position.
struct Positioned {
    file: Arc<dyn Device>,
    position: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.file.size().saturating_sub(self.position);
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.file.read_at(&mut buffer[..length], PhysicalAddress(self.position))?;
        self.position += length as u64;
        Ok(length)
    }
}

impl Seek for Positioned {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
            SeekFrom::End(offset) => self.file.size().checked_add_signed(offset),
        };
        let outside = || io::Error::new(io::ErrorKind::InvalidInput, "a position outside of the file");
        self.position = position.ok_or_else(outside)?;
        Ok(self.position)
    }
}

/// Opens an image.
pub(super) fn open(file: Arc<dyn Device>) -> Result<VhdxDevice, OpenErrorKind> {
    let positioned = Positioned { file: Arc::clone(&file), position: 0 };
    let reader = VhdxReader::open_reader(Box::new(positioned)).map_err(|error| match error {
        VhdxError::Io(error) => OpenErrorKind::Io(error),
        VhdxError::DifferencingNotSupported => OpenErrorKind::Image {
            format: "vhdx",
            reason: "it is the difference to another image, which is not supported".to_owned(),
        },
        other => OpenErrorKind::Image { format: "vhdx", reason: other.to_string() },
    })?;
    Ok(VhdxDevice { file, size: reader.virtual_disk_size(), reader: Mutex::new(reader) })
}

impl Device for VhdxDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        let mut reader = self.reader.lock();
        reader.seek(SeekFrom::Start(offset.get()))?;
        reader.read_exact(buffer)
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }
}
