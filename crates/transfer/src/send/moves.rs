//! The changes of names that one inode needs.
//!
//! Owns the rules that lead from the parent's names to the new ones:
//!
//! - Inodes have their turns in the order of their numbers.
//! - A new inode begins under a name aside, and so does a directory that is not there yet when one
//!   of its entries is to be made.
//! - A name that another inode still has is freed first. If it is the first name of that inode in
//!   the parent, the inode is set aside; otherwise the name is removed.
//! - A name aside is renamed to the first final name. Further names are links. A directory is
//!   renamed. Names that are no longer wanted are removed last.
//! - A directory waits if a directory above its new place has a higher number and moves too. It
//!   moves when that one has moved.
//! - A directory that goes is removed once it is empty. Until then it is set aside.
//!
//! The receiver's names are known at each point, so the rules need no others to be safe: where a
//! directory would move below itself, those that are in its way are set aside.
//!
//! Kernel counterparts: `process_recorded_refs`, `wait_for_parent_move`, `apply_dir_move`
//! (`fs/btrfs/send.c`).

use super::directory_times::DirectoryTimes;
use super::id::Id;
use super::names::{DEPTH_LIMIT, Names, Place, missing};
use super::stream::StreamWriter;
use super::waiting::Move;
use papilio_engine::btree::Tree;
use papilio_engine::errors::{Error, PathError, Result};
use papilio_engine::items::inode::first_name;
use papilio_format::InodeNumber;
use papilio_format::items::inode::FileKind;
use std::collections::VecDeque;

impl Names<'_> {
    /// Removes the names of an inode that goes. A directory that is not empty is set aside.
    pub(super) fn remove(
        &mut self,
        out: &mut StreamWriter<'_>,
        times: &mut DirectoryTimes,
        id: Id,
    ) -> Result<()> {
        let before = self.old_names_of(id)?;
        if self.kind_of(id)? == Some(FileKind::Directory) {
            if self.is_empty(id)? {
                self.remove_directory(out, id)?;
            } else if self.aside_of(id).is_none() {
                let place = self.names_of(id)?.into_iter().next().ok_or_else(|| missing(id))?;
                self.set_aside(out, id, &place)?;
            }
        } else {
            for place in self.names_of(id)? {
                self.unlink(out, id, &place)?;
            }
        }
        self.leave(out, times, before.iter().map(|place| place.0), id.number)
    }

    /// Ends the change of entries in directories: their times are noted, and those that go are
    /// removed if they are empty. Directories whose turn is still to come are left out.
    fn leave(
        &mut self,
        out: &mut StreamWriter<'_>,
        times: &mut DirectoryTimes,
        directories: impl Iterator<Item = Id>,
        turn: u64,
    ) -> Result<()> {
        for directory in directories {
            if directory.number > turn {
                continue;
            }
            if !directory.doomed {
                times.touch(directory.number);
            } else if self.is_empty(directory)? && !self.names_of(directory)?.is_empty() {
                self.remove_directory(out, directory)?;
            }
        }
        Ok(())
    }

    /// Frees a name that is about to be given to `id`.
    fn free(&mut self, out: &mut StreamWriter<'_>, id: Id, place: &Place) -> Result<()> {
        let Some(occupant) = self.occupant(place)?.filter(|occupant| *occupant != id) else { return Ok(()) };
        if self.old_names_of(occupant)?.first() == Some(place) {
            self.set_aside(out, occupant, place)
        } else {
            self.unlink(out, occupant, place)
        }
    }

    /// Brings a living inode to its final names, and creates it if need be. A directory may have to
    /// wait instead. Returns whether any name differs from the parent's.
    pub(super) fn settle(
        &mut self,
        out: &mut StreamWriter<'_>,
        times: &mut DirectoryTimes,
        number: u64,
    ) -> Result<bool> {
        let id = Id::lasting(number);
        let is_directory = self.kind_of(id)? == Some(FileKind::Directory);
        let targets = self.targets_of(id)?;
        let before = if self.is_created(id) { Vec::new() } else { self.old_names_of(id)? };
        let added: Vec<Place> = targets.iter().filter(|place| !before.contains(place)).cloned().collect();
        let gone: Vec<Place> = before.iter().filter(|place| !targets.contains(place)).cloned().collect();
        if !self.exists(id) {
            self.create(out, id)?;
        }
        for place in &added {
            if self.exists(place.0) {
                self.free(out, id, place)?;
            }
        }
        let first = self.names_of(id)?.into_iter().next();
        let mut valid = self.aside_of(id).or(first).ok_or_else(|| missing(id))?;
        for place in &added {
            if !self.exists(place.0) {
                self.create(out, place.0)?;
            }
            if is_directory {
                if let Some(blocking) = self.blocking(number, place.0.number)? {
                    let touched = added.iter().chain(&gone).map(|place| place.0).collect();
                    self.waiting.add(blocking, Move { number, touched });
                    continue;
                }
                self.leave_room(out, id, place.0)?;
            }
            if is_directory || self.aside_of(id).is_some() {
                self.rename(out, id, &valid, place.clone())?;
                valid = place.clone();
            } else {
                self.link(out, id, &valid, place.clone())?;
            }
        }
        if !is_directory {
            for place in self.names_of(id)? {
                if !targets.contains(&place) {
                    self.unlink(out, id, &place)?;
                }
            }
        }
        let directories: Vec<Id> = added.iter().chain(&gone).map(|place| place.0).collect();
        let differs = !directories.is_empty();
        self.leave(out, times, directories.into_iter(), number)?;
        Ok(differs)
    }

    /// Returns the directory that must move before `number` moves into `directory`.
    fn blocking(&self, number: u64, directory: u64) -> Result<Option<u64>> {
        let Some(old) = self.old() else { return Ok(None) };
        let mut at = directory;
        for _ in 0..DEPTH_LIMIT {
            if at == Id::ROOT.number {
                return Ok(None);
            }
            if self.waiting.contains(at) && is_above(old, number, at)? {
                return Ok(Some(at));
            }
            let after = first_name(self.new_tree(), InodeNumber(at))?;
            let after = after.ok_or_else(|| missing(Id::lasting(at)))?;
            let Some(before) = first_name(old, InodeNumber(at))? else { return Ok(None) };
            let moves = (before.parent, &before.name) != (after.parent, &after.name);
            if at > number && moves && self.fate(at).is_none() {
                return Ok(Some(at));
            }
            at = after.parent.0;
        }
        Err(missing(Id::lasting(directory)))
    }

    /// Moves the directories that waited for `number`, and those that waited for them.
    pub(super) fn move_waiting(
        &mut self,
        out: &mut StreamWriter<'_>,
        times: &mut DirectoryTimes,
        number: u64,
    ) -> Result<()> {
        let mut moves = VecDeque::from(self.waiting.take(number));
        while let Some(next) = moves.pop_front() {
            self.carry_out(out, times, &next)?;
            moves.extend(self.waiting.take(next.number));
        }
        Ok(())
    }

    /// Moves all directories that still wait.
    pub(super) fn move_rest(&mut self, out: &mut StreamWriter<'_>, times: &mut DirectoryTimes) -> Result<()> {
        while let Some(number) = self.waiting.first() {
            self.move_waiting(out, times, number)?;
        }
        Ok(())
    }

    fn carry_out(
        &mut self,
        out: &mut StreamWriter<'_>,
        times: &mut DirectoryTimes,
        waited: &Move,
    ) -> Result<()> {
        let id = Id::lasting(waited.number);
        let from = self.names_of(id)?.into_iter().next().ok_or_else(|| missing(id))?;
        let to = self.targets_of(id)?.into_iter().next().ok_or_else(|| missing(id))?;
        self.leave_room(out, id, to.0)?;
        self.free(out, id, &to)?;
        self.rename(out, id, &from, to)?;
        self.waiting.end(waited.number);
        self.settled(waited.number);
        let turn = self.turn;
        if from.0.doomed {
            self.leave(out, times, [from.0].into_iter(), turn)?;
        }
        times.touch(waited.number);
        let touched = waited.touched.iter().copied().filter(|directory| !directory.doomed);
        self.leave(out, times, touched, u64::MAX)
    }

    /// Makes sure that `directory` is not below `id`.
    fn leave_room(&mut self, out: &mut StreamWriter<'_>, id: Id, directory: Id) -> Result<()> {
        'again: loop {
            let mut chain = Vec::new();
            let mut at = directory;
            while at != Id::ROOT && at != id && chain.len() < DEPTH_LIMIT {
                let Some(place) = self.names_of(at)?.into_iter().next() else { return Ok(()) };
                chain.push((at, place.clone()));
                at = place.0;
            }
            if at != id {
                return Ok(());
            }
            for (blocking, place) in chain {
                if !self.targets_of(blocking)?.contains(&place) {
                    self.set_aside(out, blocking, &place)?;
                    continue 'again;
                }
            }
            return Err(Error::path(format!("inode {}", id.number).as_bytes(), PathError::IntoItself));
        }
    }
}

/// Whether `ancestor` is above `number` in a tree.
fn is_above(tree: &Tree, ancestor: u64, number: u64) -> Result<bool> {
    let mut at = number;
    for _ in 0..DEPTH_LIMIT {
        if at == ancestor {
            return Ok(true);
        }
        match first_name(tree, InodeNumber(at))? {
            Some(name) if at != Id::ROOT.number => at = name.parent.0,
            _ => return Ok(false),
        }
    }
    Ok(false)
}
