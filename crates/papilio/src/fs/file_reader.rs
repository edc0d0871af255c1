//! A file with a position, for `std::io`.

use crate::fs::file::File;
use std::io;

impl File {
    /// Returns a reader that starts at byte 0.
    pub fn reader(&self) -> FileReader {
        FileReader { file: self.clone(), position: 0 }
    }
}

/// A [`File`] with a position.
#[derive(Clone, Debug)]
pub struct FileReader {
    file: File,
    position: u64,
}

impl io::Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position).map_err(io::Error::other)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Seek for FileReader {
    fn seek(&mut self, target: io::SeekFrom) -> io::Result<u64> {
        let (base, offset) = match target {
            io::SeekFrom::Start(offset) => {
                self.position = offset;
                return Ok(offset);
            }
            io::SeekFrom::End(offset) => (self.file.len(), offset),
            io::SeekFrom::Current(offset) => (self.position, offset),
        };
        self.position = base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek before the start or past 2^64")
        })?;
        Ok(self.position)
    }
}
