//! A file with a position, for `std::io`.
//!
//! Owns [`FileCursor`].

use crate::file::File;
use std::io;

impl File {
    /// Returns a cursor at byte 0, which implements [`std::io::Read`], [`std::io::Write`] and
    /// [`std::io::Seek`].
    pub fn cursor(&self) -> FileCursor {
        FileCursor { file: self.clone(), position: 0 }
    }
}

/// A [`File`] with a position, made by [`File::cursor`].
///
/// Errors convert as [`std::io::Error`]'s `From<papilio::Error>` describes. Flushing does nothing,
/// as with [`std::fs::File`]: [`File::sync_all`] makes the data durable.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let device: std::sync::Arc<dyn papilio::device::Device> =
/// #     std::sync::Arc::new(papilio::device::MemoryDevice::new(256 << 20));
/// # papilio::mkfs_device(&device, &papilio::MkfsOptions::new())?;
/// # let options = papilio::OpenOptions::new().write(true);
/// # let fs = papilio::FileSystem::from_devices(vec![device], &options)?;
/// use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
///
/// let mut cursor = fs.create_file("/log")?.cursor();
/// writeln!(cursor, "first")?;
/// writeln!(cursor, "second")?;
/// cursor.seek(SeekFrom::Start(6))?;
/// assert_eq!(BufReader::new(cursor).lines().next().unwrap()?, "second");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct FileCursor {
    file: File,
    position: u64,
}

impl FileCursor {
    /// Returns the file.
    pub fn get_ref(&self) -> &File {
        &self.file
    }

    /// Returns the file, and drops the position.
    pub fn into_inner(self) -> File {
        self.file
    }

    /// Returns the position in bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Sets the position in bytes, which may be past the end.
    pub fn set_position(&mut self, position: u64) {
        self.position = position;
    }
}

impl io::Read for FileCursor {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl io::Write for FileCursor {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.file.write_all_at(data, self.position)?;
        self.position += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for FileCursor {
    fn seek(&mut self, target: io::SeekFrom) -> io::Result<u64> {
        let (base, offset) = match target {
            io::SeekFrom::Start(offset) => {
                self.position = offset;
                return Ok(offset);
            }
            io::SeekFrom::End(offset) => (self.file.size()?, offset),
            io::SeekFrom::Current(offset) => (self.position, offset),
        };
        self.position = base.checked_add_signed(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "seek before the start or past 2^64")
        })?;
        Ok(self.position)
    }

    fn stream_position(&mut self) -> io::Result<u64> {
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use crate::{FileSystem, MkfsOptions, OpenOptions, PathError};
    use papilio_device::{Device, MemoryDevice};
    use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
    use std::sync::Arc;

    #[test]
    fn cursor_reads_writes_and_seeks() {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        crate::mkfs_device(&device, &MkfsOptions::new()).unwrap();
        let options = OpenOptions::new().write(true).commit_interval(None);
        let fs = FileSystem::from_devices(vec![Arc::clone(&device)], &options).unwrap();
        let file = fs.create_file("/f").unwrap();
        let mut cursor = file.cursor();
        cursor.write_all(b"one two").unwrap();
        assert_eq!(cursor.seek(SeekFrom::End(-3)).unwrap(), 4);
        cursor.write_all(b"three").unwrap();
        cursor.rewind().unwrap();
        let mut text = String::new();
        cursor.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), cursor.position()), ("one three", 9));
        assert_eq!(cursor.seek(SeekFrom::Current(-10)).unwrap_err().kind(), ErrorKind::InvalidInput);

        assert_eq!(file.write_at(b"!", 9).unwrap(), 1);
        assert_eq!(file.metadata().unwrap().size(), 10);
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, 6).unwrap();
        assert_eq!(&bytes, b"ree!");
        let error = file.read_exact_at(&mut bytes, 7).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Path(PathError::UnexpectedEnd));
        assert_eq!(std::io::Error::from(error).kind(), ErrorKind::UnexpectedEof);
        drop((file, cursor));
        fs.write("/f", "replaced").unwrap();
        fs.write("/g", "new").unwrap();
        assert_eq!((fs.read("/f").unwrap(), fs.read("/g").unwrap()), (b"replaced".to_vec(), b"new".to_vec()));
        fs.close().unwrap();

        let fs = FileSystem::from_devices(vec![device], &OpenOptions::new()).unwrap();
        let refused = fs.open_file("/f").unwrap().cursor().write(b"x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
    }
}
