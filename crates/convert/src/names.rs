//! The names of inodes, by inode, for a window of inode numbers.
//!
//! Owns [`Names`]. Sources have no way from an inode to its names, and Btrfs wants them beside the
//! inode. A window holds the names of as many inodes as its memory allows; the directories are read
//! once for each window, and one window is enough for about six million names.
//!
//! **Invariant:** every entry of every directory whose inode lies in the window is in it once.

use crate::error::Result;
use crate::source::Source;
use papilio_format::items::inode::FileKind;
use std::ops::Range;

/// The index of a directory's first entry, as the kernel counts.
pub(crate) const FIRST_INDEX: u64 = 2;

/// One name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Record {
    inode: u64,
    directory: u64,
    /// The entry's number in its directory, from 0.
    number: u32,
    /// The place of the name in the bytes of all names.
    start: u32,
    length: u8,
    kind: Option<FileKind>,
}

/// One name of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeName<'a> {
    pub(crate) directory: u64,
    /// The index in the directory.
    pub(crate) index: u64,
    pub(crate) name: &'a [u8],
    /// The kind of file, if the entry says it.
    pub(crate) kind: Option<FileKind>,
}

/// The names of the inodes in a window.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) window: Range<u64>,
    records: Vec<Record>,
    bytes: Vec<u8>,
}

impl Names {
    /// Reads the names of inodes from `first` on, as many as `limit` bytes can hold.
    ///
    /// # Errors
    /// A directory that is damaged; the device's errors.
    pub(crate) fn read<S: Source>(fs: &S, first: u64, limit: usize) -> Result<Self> {
        let mut names = Self { window: first..u64::MAX, records: Vec::new(), bytes: Vec::new() };
        fs.for_each_inode(1, &mut |inode| {
            let facts = fs.facts(&inode);
            if facts.kind == FileKind::Directory && !fs.is_nameless(facts.number) {
                names.add_directory(fs, &inode, facts.number, limit)?;
            }
            Ok(true)
        })?;
        names.records.sort_unstable();
        Ok(names)
    }

    /// Whether the names of all inodes are here.
    pub(crate) fn is_whole(&self) -> bool {
        self.window == (1..u64::MAX)
    }

    fn add_directory<S: Source>(
        &mut self,
        fs: &S,
        inode: &S::Inode,
        directory: u64,
        limit: usize,
    ) -> Result<()> {
        let mut number = 0u32;
        fs.for_each_entry(inode, &mut |entry| {
            let own = number;
            number = number.checked_add(1).ok_or_else(|| {
                let shown = fs.shown(directory);
                fs.profile().unsupported(format!("directory {shown} has more entries than can be kept"))
            })?;
            if !self.window.contains(&entry.inode) {
                return Ok(());
            }
            self.records.push(Record {
                inode: entry.inode,
                directory,
                number: own,
                start: self.bytes.len() as u32,
                length: entry.name.len() as u8,
                kind: entry.kind,
            });
            self.bytes.extend_from_slice(entry.name);
            if self.records.len() * size_of::<Record>() + self.bytes.len() > limit {
                self.shrink();
            }
            Ok(())
        })?;
        Ok(())
    }

    /// Halves the window, and drops the names of inodes behind it.
    fn shrink(&mut self) {
        self.records.sort_unstable();
        let middle = self.records[self.records.len() / 2].inode;
        // All names of one inode stay together, however many it has.
        let end = match self.records[0].inode < middle {
            true => middle,
            false => match self.records.iter().find(|record| record.inode > middle) {
                Some(record) => record.inode,
                None => return,
            },
        };
        self.window.end = end;
        self.records.retain(|record| record.inode < end);
        let mut kept = Vec::new();
        for record in &mut self.records {
            let start = record.start as usize;
            record.start = kept.len() as u32;
            kept.extend_from_slice(&self.bytes[start..start + usize::from(record.length)]);
        }
        self.bytes = kept;
    }

    /// Returns the names of an inode in the window, by directory and index.
    pub(crate) fn of(&self, inode: u64) -> impl ExactSizeIterator<Item = InodeName<'_>> {
        let from = self.records.partition_point(|record| record.inode < inode);
        let to = self.records.partition_point(|record| record.inode <= inode);
        self.records[from..to].iter().map(|record| {
            let start = record.start as usize;
            InodeName {
                directory: record.directory,
                index: FIRST_INDEX + u64::from(record.number),
                name: &self.bytes[start..start + usize::from(record.length)],
                kind: record.kind,
            }
        })
    }

    /// Returns the first inode that has a name in a range of numbers.
    pub(crate) fn first_in(&self, inodes: Range<u64>) -> Option<u64> {
        let at = self.records.partition_point(|record| record.inode < inodes.start);
        self.records.get(at).map(|record| record.inode).filter(|inode| *inode < inodes.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(count: u32) -> Names {
        let mut names = Names { window: 1..u64::MAX, records: Vec::new(), bytes: Vec::new() };
        for number in 0..count {
            let name = format!("name {number}");
            names.records.push(Record {
                inode: u64::from(12 + number / 2),
                directory: 2,
                number,
                start: names.bytes.len() as u32,
                length: name.len() as u8,
                kind: None,
            });
            names.bytes.extend(name.as_bytes());
        }
        names
    }

    #[test]
    fn a_smaller_window_keeps_all_names_of_its_inodes() {
        let mut names = filled(1000);
        names.shrink();
        assert!(names.window.end < 12 + 500 && !names.is_whole());
        for inode in names.window.clone().take(1000).skip_while(|inode| *inode < 12) {
            let found: Vec<_> = names.of(inode).collect();
            assert_eq!(found.len(), 2, "inode {inode}");
            let number = (inode - 12) * 2;
            assert_eq!(found[1].name, format!("name {}", number + 1).as_bytes());
            assert_eq!(found[1].index, number + 3);
        }
        assert_eq!(names.of(names.window.end).len(), 0);
        assert_eq!(names.first_in(1..13), Some(12));
        assert_eq!(names.first_in(names.window.end..u64::MAX), None);
    }

    #[test]
    fn an_inode_with_all_names_stays() {
        let mut names = filled(2);
        names.shrink();
        assert_eq!(names.of(12).len(), 2);
    }
}
