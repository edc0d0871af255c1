//! A file on the host that a command writes from its start to its end.
//!
//! Owns [`HostOutput`].
//!
//! **Invariants**
//! - A file that was there keeps its bytes until the first new byte is written. So a command that
//!   refuses its work destroys nothing.
//! - A file that the command created exists afterwards only if [`HostOutput::finish`] was called.

use anyhow::Context as _;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A file on the host that a command writes.
#[derive(Debug)]
pub struct HostOutput {
    path: PathBuf,
    file: File,
    /// Whether this command created the file.
    is_new: bool,
    /// Whether bytes were written.
    has_begun: bool,
}

impl HostOutput {
    /// Opens a file for writing, or creates it.
    ///
    /// # Errors
    /// The host's error, which names the path.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let at = || format!("{}: cannot create", path.display());
        let created = File::options().write(true).create_new(true).open(path);
        let (file, is_new) = match created {
            Ok(file) => (file, true),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                // Through a symbolic link the target may be missing.
                let options = File::options().write(true).create(true).truncate(false).open(path);
                (options.with_context(at)?, false)
            }
            Err(error) => return Err(error).with_context(at),
        };
        Ok(Self { path: path.to_owned(), file, is_new, has_begun: false })
    }

    /// Keeps the file: it is complete.
    ///
    /// # Errors
    /// A file that was there cannot be cut to nothing.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.begin().with_context(|| format!("{}: cannot write", self.path.display()))?;
        self.is_new = false;
        Ok(())
    }

    /// As [`Self::finish`], once the bytes are durable.
    ///
    /// # Errors
    /// As [`Self::finish`]; the host cannot make them durable.
    pub fn sync_and_finish(self) -> anyhow::Result<()> {
        // A pipe has nothing to make durable.
        if self.file.metadata().is_ok_and(|found| found.is_file()) {
            self.file.sync_all().with_context(|| format!("{}: cannot write", self.path.display()))?;
        }
        self.finish()
    }

    /// Cuts a file that was there to nothing, once.
    fn begin(&mut self) -> io::Result<()> {
        // Only regular files have a length to set; a pipe or a device has none.
        if !self.has_begun && !self.is_new && self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.has_begun = true;
        Ok(())
    }
}

impl Write for HostOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.begin()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for HostOutput {
    fn drop(&mut self) {
        if self.is_new {
            // The error that led here is the one to report.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_finished_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        drop(HostOutput::open(&path).unwrap());
        assert!(!path.exists());
        let mut out = HostOutput::open(&path).unwrap();
        out.write_all(b"part").unwrap();
        drop(out);
        assert!(!path.exists());
        let mut out = HostOutput::open(&path).unwrap();
        out.write_all(b"whole").unwrap();
        out.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"whole");
    }

    #[test]
    fn a_file_that_was_there_keeps_its_bytes_until_the_first_write() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, "older and longer").unwrap();
        drop(HostOutput::open(&path).unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"older and longer");
        let mut out = HostOutput::open(&path).unwrap();
        out.write_all(b"new").unwrap();
        out.finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        HostOutput::open(&path).unwrap().finish().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        HostOutput::open(Path::new("/dev/null")).unwrap().finish().unwrap();
    }
}
