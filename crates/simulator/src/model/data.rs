//! Operations on a file's bytes.

use crate::model::{Content, Model, NodeKind, Place, Refusal, Verdict};
use crate::operation::FileAt;
use papilio::PathError;

impl Model {
    /// Returns the regular file that an operation targets.
    ///
    /// # Errors
    /// As for a path; also if the target is not a regular file.
    pub fn file(&self, file: &FileAt) -> Verdict<Place> {
        let place = match file {
            FileAt::Open(slot) => self.open[slot].place,
            FileAt::Path(path) => self.resolve(path, true)?,
        };
        match self.node(place).kind {
            NodeKind::File(_) => Ok(place),
            NodeKind::Directory(_) => Err(PathError::IsADirectory.into()),
            _ => Err(PathError::NotAFile.into()),
        }
    }

    /// Returns the bytes of a file.
    ///
    /// # Panics
    /// If `place`, which comes from [`Model::file`], is not a regular file.
    pub fn content(&self, place: Place) -> &Content {
        self.node(place).content().expect("the inode is a regular file")
    }

    /// Replaces the content: used for the remains of a change that ran out of space half-way.
    pub fn set_content(&mut self, place: Place, content: Content) {
        self.node_mut(place).kind = NodeKind::File(content);
    }

    /// Changes the bytes of a file.
    ///
    /// # Errors
    /// As [`Model::file`]; also for a read-only subvolume.
    pub fn edit(&mut self, file: &FileAt, change: impl FnOnce(&mut Content)) -> Verdict {
        let place = self.file(file)?;
        self.check_changeable(place)?;
        match &mut self.node_mut(place).kind {
            NodeKind::File(content) => change(content),
            _ => unreachable!("`file` returned a regular file"),
        }
        Ok(())
    }

    /// Writes bytes of a file. A slot that was opened while its subvolume was writable may do so
    /// after it became read-only or was deleted.
    ///
    /// # Errors
    /// As [`Model::edit`].
    pub fn write(&mut self, file: &FileAt, change: impl FnOnce(&mut Content)) -> Verdict {
        let place = self.file(file)?;
        let writes = matches!(file, FileAt::Open(slot) if self.open[slot].writes);
        if !writes {
            self.check_changeable(place)?;
        }
        match &mut self.node_mut(place).kind {
            NodeKind::File(content) => change(content),
            _ => unreachable!("`file` returned a regular file"),
        }
        if let FileAt::Open(slot) = file {
            self.open.get_mut(slot).expect("the slot is open").writes = true;
        }
        Ok(())
    }

    /// Shares a range of one file with another.
    ///
    /// # Errors
    /// As [`Model::edit`]; also for ranges that cannot be shared.
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
        if !from.is_multiple_of(self.sector()) || !to.is_multiple_of(self.sector()) {
            return Err(Refusal::Invalid);
        }
        let left = size.checked_sub(from).filter(|left| *left > 0).ok_or(Refusal::Invalid)?;
        let length = if length == 0 { left } else { length };
        let inside = to + length < self.content(place).size();
        if length > left || (!length.is_multiple_of(self.sector()) && (length < left || inside)) {
            return Err(Refusal::Invalid);
        }
        let whole = length.next_multiple_of(self.sector());
        if source == place && from < to + whole && to < from + whole {
            return Err(Refusal::Invalid);
        }
        let bytes = self.content(source).bytes(from, length);
        self.edit(target, |content| content.write(to, &bytes))
    }
}
