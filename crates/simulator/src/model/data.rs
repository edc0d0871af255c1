//! What happens to a file's bytes.

use crate::model::{Content, Model, NodeKind, Place, Refusal, Verdict};
use crate::operation::FileAt;
use papilio::PathError;

/// Bytes of a sector; clones begin and end there.
const SECTOR: u64 = 4096;

impl Model {
    /// The regular file that an operation is about.
    ///
    /// # Errors
    /// As for a path; what is no regular file.
    pub fn file(&self, file: &FileAt) -> Verdict<Place> {
        let place = match file {
            FileAt::Open(slot) => self.open[slot],
            FileAt::Path(path) => self.resolve(path, true)?,
        };
        match self.node(place).kind {
            NodeKind::File(_) => Ok(place),
            NodeKind::Directory(_) => Err(PathError::IsADirectory.into()),
            _ => Err(PathError::NotAFile.into()),
        }
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// For what is no file: [`Model::file`] gave the place.
    pub fn content(&self, place: Place) -> &Content {
        self.node(place).content().expect("a regular file")
    }

    /// Puts other bytes in their place: what is left of a change that ran out of room half-way.
    pub fn set_content(&mut self, place: Place, content: Content) {
        self.node_mut(place).kind = NodeKind::File(content);
    }

    /// Changes the bytes of a file.
    ///
    /// # Errors
    /// As [`Model::file`]; a read-only subvolume.
    pub fn edit(&mut self, file: &FileAt, change: impl FnOnce(&mut Content)) -> Verdict {
        let place = self.file(file)?;
        self.check_changeable(place)?;
        match &mut self.node_mut(place).kind {
            NodeKind::File(content) => change(content),
            _ => unreachable!("it was seen to be a file"),
        }
        Ok(())
    }

    /// Shares a range of a file with another.
    ///
    /// # Errors
    /// As [`Model::edit`]; ranges that cannot be shared.
    pub fn clone_range(
        &mut self,
        source: &FileAt,
        from: u64,
        length: u64,
        target: &FileAt,
        to: u64,
    ) -> Verdict {
        let (source, place) = (self.file(source)?, self.file(target)?);
        self.check_changeable(place)?;
        if self.node(source).nodatacow != self.node(place).nodatacow {
            return Err(Refusal::Invalid);
        }
        let size = self.content(source).size();
        if length == 0 && from == size {
            return Ok(());
        }
        if !from.is_multiple_of(SECTOR) || !to.is_multiple_of(SECTOR) {
            return Err(Refusal::Invalid);
        }
        let left = size.checked_sub(from).filter(|left| *left > 0).ok_or(Refusal::Invalid)?;
        let length = if length == 0 { left } else { length };
        let inside = to + length < self.content(place).size();
        if length > left || (!length.is_multiple_of(SECTOR) && (length < left || inside)) {
            return Err(Refusal::Invalid);
        }
        let whole = length.next_multiple_of(SECTOR);
        if source == place && from < to + whole && to < from + whole {
            return Err(Refusal::Invalid);
        }
        let bytes = self.content(source).bytes(from, length);
        self.edit(target, |content| content.write(to, &bytes))
    }
}
