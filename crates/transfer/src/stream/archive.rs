//! Listing and reading a subvolume that lies in streams.
//!
//! Owns the methods of [`StreamChain`] for entries and the content of files.

use super::chain::StreamChain;
use super::data::DataReader;
use super::fault::{StreamError, StreamFault};
use super::node::{NodeKind, StreamContent};
use super::walk::{SentEntry, Walk};
use papilio_engine::errors::{Error, PathError};
use std::io::Write;

/// Bytes that are read at once.
const STEP: u64 = 1 << 20;

/// Returns a path as commands have it: without slashes at its ends and without `.` names.
pub fn plain_path(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
    names.collect::<Vec<_>>().join(&b'/')
}

impl StreamChain {
    /// Returns the entry at a path of a subvolume; an empty path means the root.
    ///
    /// # Errors
    /// The path names nothing; the chain lacks the subvolume's parent.
    pub fn entry(&self, part: usize, path: &[u8]) -> Result<SentEntry, StreamError> {
        let tree = self.tree(part)?;
        let number = tree.look_up(path).map_err(|fault| at_path(path, &fault))?;
        Ok(SentEntry::new(path.to_vec(), tree.node(number)))
    }

    /// Calls `each` for the entry at a path and all below it, each directory before its entries.
    ///
    /// # Errors
    /// As [`Self::entry`], and those of `each`.
    pub fn for_each_entry<E: From<StreamError>>(
        &self,
        part: usize,
        path: &[u8],
        mut each: impl FnMut(SentEntry) -> Result<(), E>,
    ) -> Result<(), E> {
        let tree = self.tree(part)?;
        let number = tree.look_up(path).map_err(|fault| at_path(path, &fault))?;
        let mut walk = Walk::new(tree, path, number);
        while let Some((path, number)) = walk.step()? {
            each(SentEntry::new(path, tree.node(number)))?;
        }
        Ok(())
    }

    /// Writes the content of a file to `out`, and returns its size in bytes.
    ///
    /// # Errors
    /// As [`Self::entry`]; it is no regular file; the chain lacks data of it.
    pub fn copy_file(&self, part: usize, path: &[u8], out: &mut dyn Write) -> Result<u64, StreamError> {
        let tree = self.tree(part)?;
        let number = tree.look_up(path).map_err(|fault| at_path(path, &fault))?;
        let content = match &tree.node(number).kind {
            NodeKind::File(content) => content,
            NodeKind::Directory { .. } => return Err(Error::path(path, PathError::IsADirectory).into()),
            _ => return Err(Error::path(path, PathError::NotAFile).into()),
        };
        let mut reader = DataReader::new(self.inputs(), &self.absent);
        copy_content(&mut reader, content, path, out)
    }
}

/// Writes the content of a file.
pub(super) fn copy_content(
    reader: &mut DataReader<'_>,
    content: &StreamContent,
    path: &[u8],
    out: &mut dyn Write,
) -> Result<u64, StreamError> {
    let (mut at, mut buffer) = (0, Vec::new());
    while at < content.size {
        buffer.resize((content.size - at).min(STEP) as usize, 0);
        reader.read(content, at, &mut buffer).map_err(|error| match error {
            StreamError::Invalid(text) => {
                StreamError::Invalid(format!("/{}: {text}", String::from_utf8_lossy(path)))
            }
            other => other,
        })?;
        out.write_all(&buffer).map_err(|source| StreamError::host("output", source))?;
        at += buffer.len() as u64;
    }
    Ok(content.size)
}

fn at_path(path: &[u8], fault: &StreamFault) -> StreamError {
    let kind = match fault {
        StreamFault::NotADirectory(_) => PathError::NotADirectory,
        StreamFault::InvalidName(_) => PathError::InvalidName,
        _ => PathError::NotFound,
    };
    Error::path(&[b"/", path].concat(), kind).into()
}
