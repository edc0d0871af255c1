//! Reads and writes of an open file that are in flight without a thread.
//!
//! Owns [`ReadInFlight`] and [`WriteInFlight`], with the two halves of each: [`OpenFile`] begins
//! one without waiting and without its device I/O, and ends it after the I/O, in any thread. A
//! request that cannot begin so is left to the calls that wait, [`OpenFile::read_at`] and
//! [`OpenFile::write_at`], and so is a read that arrives bad.
//!
//! Invariants:
//! - A request in flight holds what the calls that wait hold, without a thread: the file's data
//!   lock (shared), the range where there are ordered extents or it writes some, and `sharing`
//!   (shared) if it writes.
//! - A request that began is ended exactly once, or what it holds is never released.
//! - A write's buffer does not change while it is in flight, so its checksums may be computed then.
//!
//! Locks: beginning only tries the locks above, in the order of [`super::write`]. It may wait for
//! space, and with [`MayWait::Yes`] for tree blocks. Ending takes those of the ordered extents,
//! of the space and of the table of dirty inodes. Kernel counterpart: `fs/btrfs/direct-io.c`.

use crate::btree::{LiveTree, without_waiting};
use crate::data::StartedRead;
use crate::data::nocow::InPlacePart;
use crate::data::ordered_extents::{OrderedPart, RangeTicket};
use crate::data::overlap::{ChecksumBytes, checksums_of};
use crate::errors::{Error, Result};
use crate::file::in_place::IN_PLACE;
use crate::file::open_file::{OpenFile, Stamp};
use crate::file::open_inode::check_mutable;
use crate::file::ordered_write::PlacedWrite;
use crate::volume::Pieces;
use papilio_format::LogicalAddress;
use papilio_format::items::inode::{InodeItem, Timespec};
use papilio_pagecache::Invalidate;
use smallvec::SmallVec;
use std::ops::Range;

/// The most bytes of a request. A larger one gains nothing from others beside it.
pub(super) const MAX_REQUEST: usize = 4 << 20;

/// How a request begins.
#[derive(Debug)]
pub enum Begin<R> {
    /// Its pieces can be started.
    Started(R),
    /// Another request has the range locked: begin it anew when one has ended.
    Later,
    /// Only the calls that wait can carry it out.
    Wait,
}

/// Whether beginning a request may wait for tree blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MayWait {
    /// It may.
    Yes,
    /// It may not.
    No,
}

/// A read in flight.
#[derive(Debug)]
pub struct ReadInFlight {
    read: StartedRead,
    /// The number of moves of extents before it was placed.
    moves: u64,
    ticket: Option<RangeTicket>,
}

/// A write in flight.
#[derive(Debug)]
pub struct WriteInFlight {
    range: Range<u64>,
    time: Option<Timespec>,
    to: WriteTarget,
}

/// Where a write goes.
#[derive(Debug)]
enum WriteTarget {
    /// To ordered extents: new ones, or those that are there.
    Ordered {
        ticket: RangeTicket,
        parts: SmallVec<[OrderedPart; 1]>,
        new: bool,
        /// `None` until they are computed.
        checksums: Option<ChecksumBytes>,
    },
    /// In place, without checksums.
    InPlace(SmallVec<[InPlacePart; 1]>),
}

/// The work that a write leaves to a thread that may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeferredWork {
    /// Publish some of the ordered extents.
    Publish,
    /// Write back a dirty page that the range cut, then drop it from the cache.
    DropPages {
        /// First byte of the range.
        start: u64,
        /// First byte after the range.
        end: u64,
    },
}

impl OpenFile {
    /// Begins a read of `length` bytes at `offset`, and adds its pieces. With `may_wait` it waits
    /// for tree blocks that are not cached; else the answer is then [`Begin::Wait`].
    pub fn begin_read(
        &self,
        offset: u64,
        length: usize,
        may_wait: MayWait,
        pieces: &mut Pieces,
    ) -> Begin<ReadInFlight> {
        let open = &self.open;
        let Some(end) = offset.checked_add(length as u64) else { return Begin::Wait };
        if length > MAX_REQUEST || self.cached().is_some() || self.has_unwritten(offset..end) {
            return Begin::Wait;
        }
        let Some(shared) = open.data.try_read() else { return Begin::Wait };
        let ordered = Some(&open.ordered).filter(|ordered| !ordered.is_empty());
        let ticket = match ordered {
            None => None,
            Some(ordered) => match ordered.try_ticket_to_read(&self.sectors(length, offset)) {
                None => return Begin::Later,
                ticket => ticket,
            },
        };
        let reader = &self.fs.reader;
        let moves = reader.moves();
        let placed = match may_wait {
            MayWait::Yes => {
                self.with_file_data(ordered, |file| reader.place_read(file, offset, length, pieces))
            }
            MayWait::No => without_waiting(|| {
                self.with_file_data(ordered, |file| {
                    let read = reader.place_read(file, offset, length, pieces)?;
                    if let Some(read) = &read {
                        reader.load_checksums(file, read)?;
                    }
                    Ok(read)
                })
            }),
        };
        if let Ok(Some(read)) = placed {
            open.data.enter(&shared);
            return Begin::Started(ReadInFlight { read, moves, ticket });
        }
        ticket.map(|ticket| open.ordered.redeem(ticket));
        pieces.clear();
        // A call that waits meets the error, too.
        Begin::Wait
    }

    /// Ends a read whose pieces have arrived in `data`, or of which one has `failed`. Returns
    /// whether the data is valid. If not, a call that waits reads it anew, from other copies, too.
    ///
    /// # Errors
    /// `failed`, where there are no other copies.
    pub fn end_read(&self, read: ReadInFlight, data: &[u8], failed: Option<Error>) -> Result<bool> {
        let ordered = read.ticket.as_ref().map(|_| &self.open.ordered);
        let valid = failed.is_none()
            && self
                .with_file_data(ordered, |file| self.fs.reader.is_valid(file, &read.read, data))
                .unwrap_or(false)
            // Another extent may be by now where this one was.
            && self.fs.reader.moves() == read.moves;
        let moved = self.fs.reader.moves() != read.moves;
        read.ticket.map(|ticket| self.open.ordered.redeem(ticket));
        self.open.data.leave();
        match failed {
            Some(error) if !moved && self.fs.reader.has_one_copy(&read.read) => Err(error),
            _ => Ok(valid),
        }
    }

    /// Begins a write of `data` at `offset`, and adds its pieces. Without `may_wait` the answer is
    /// [`Begin::Wait`] where the inode is not cached.
    pub fn begin_write(
        &self,
        data: &[u8],
        offset: u64,
        (stamp, may_wait): (Stamp, MayWait),
        pieces: &mut Pieces,
    ) -> Begin<WriteInFlight> {
        let Some(end) = offset.checked_add(data.len() as u64) else { return Begin::Wait };
        let range = offset..end;
        if data.is_empty()
            || data.len() > MAX_REQUEST
            || self.cached().is_some()
            || self.has_unwritten(range.clone())
        {
            return Begin::Wait;
        }
        if may_wait == MayWait::No && !self.is_at_hand(&range) {
            return Begin::Wait;
        }
        let begun = self.try_begin_write(data, &range, stamp, pieces);
        // A call that waits meets an error, too.
        let begun = begun.unwrap_or(Begin::Wait);
        if !matches!(begun, Begin::Started(_)) {
            pieces.clear();
        }
        begun
    }

    /// Returns whether the inode, and for a write in place its extents, are cached.
    fn is_at_hand(&self, range: &Range<u64>) -> bool {
        let cached = || -> Result<()> {
            let (open, fs) = (&self.open, &*self.fs);
            let live = self.live()?;
            let item = open.item(live)?;
            if !fs.is_ordered(&item) && item.flags.contains(IN_PLACE) {
                let length = (range.end - range.start) as usize;
                self.with_file_data(None, |file| {
                    fs.reader.place_read(file, range.start, length, &mut Pieces::new()).map(drop)
                })?;
            }
            Ok(())
        };
        without_waiting(cached).is_ok()
    }

    fn try_begin_write(
        &self,
        data: &[u8],
        range: &Range<u64>,
        stamp: Stamp,
        pieces: &mut Pieces,
    ) -> Result<Begin<WriteInFlight>> {
        let (open, fs) = (&self.open, &*self.fs);
        let transactions = fs.transactions()?;
        let live = self.live()?;
        let (Some(epoch), Some(shared)) = (fs.sharing.try_read(), open.data.try_read()) else {
            return Ok(Begin::Wait);
        };
        let item = open.item(live)?;
        let sector = fs.sector_size();
        let aligned = range.start.is_multiple_of(sector) && range.end.is_multiple_of(sector);
        if !aligned || range.end > item.size || open.as_seen(item).size > item.size {
            return Ok(Begin::Wait);
        }
        transactions.check_running()?;
        self.check_writable()?;
        check_mutable(&fs.write_options, open.place(), &item)?;
        let to = if fs.is_ordered(&item) {
            let Some((ticket, found)) = open.ordered.try_ticket_to_write(range) else {
                return Ok(Begin::Later);
            };
            match self.place_ordered(live, &item, (range, &found, *epoch), pieces) {
                Ok(Some((parts, new))) => {
                    let before = fs.write_options.checksum.is_before_submit();
                    let checksums = before.then(|| self.checksums(data));
                    WriteTarget::Ordered { ticket, parts, new, checksums }
                }
                other => {
                    drop(open.ordered.redeem(ticket));
                    return other.map(|_| Begin::Wait);
                }
            }
        } else if item.flags.contains(IN_PLACE) {
            let parts = open.place_in_place(fs, live, range, *epoch)?;
            let placed = |part: &InPlacePart| (part.range.clone(), part.disk);
            if !self.add_write_pieces(range, parts.iter().map(placed), pieces) {
                return Ok(Begin::Wait);
            }
            WriteTarget::InPlace(parts)
        } else {
            return Ok(Begin::Wait);
        };
        open.data.enter(&shared);
        fs.sharing.enter(&epoch);
        Ok(Begin::Started(WriteInFlight { range: range.clone(), time: stamp.time(transactions), to }))
    }

    /// Places a write of checksummed data, whose range is locked. Returns its parts, and whether
    /// they are new space.
    fn place_ordered(
        &self,
        live: &LiveTree,
        item: &InodeItem,
        (range, found, epoch): (&Range<u64>, &[OrderedPart], u64),
        pieces: &mut Pieces,
    ) -> Result<Option<(SmallVec<[OrderedPart; 1]>, bool)>> {
        let placed = self.open.place_ordered_write(&self.fs, live, item, (range, found, epoch))?;
        let parts = |parts: &[OrderedPart], pieces: &mut Pieces| {
            let places = parts.iter().map(|part| (part.range.clone(), part.disk));
            self.add_write_pieces(range, places, pieces).then(|| parts.iter().cloned().collect())
        };
        Ok(match placed {
            PlacedWrite::There(there) => parts(&there, pieces).map(|parts| (parts, false)),
            PlacedWrite::New(space) => {
                let parts = parts(space.parts(), pieces);
                parts.map(|parts| {
                    space.disarm();
                    (parts, true)
                })
            }
            PlacedWrite::Impossible => None,
        })
    }

    /// Adds the pieces of a write whose parts are at `places`. Returns `false` if they do not cover
    /// it, or cannot be started.
    fn add_write_pieces(
        &self,
        range: &Range<u64>,
        places: impl Iterator<Item = (Range<u64>, LogicalAddress)>,
        pieces: &mut Pieces,
    ) -> bool {
        let mut at = range.start;
        for (part, disk) in places {
            let (length, start) = ((part.end - part.start) as usize, (part.start - range.start) as usize);
            if part.start != at || !self.fs.volume().write_pieces(disk, length, start, pieces) {
                return false;
            }
            at = part.end;
        }
        at == range.end
    }

    /// Computes the checksums of a write in flight, so that the device works meanwhile. Ending the
    /// write does it otherwise.
    pub fn compute_checksums(&self, write: &mut WriteInFlight, data: &[u8]) {
        if let WriteTarget::Ordered { checksums, .. } = &mut write.to {
            checksums.get_or_insert_with(|| self.checksums(data));
        }
    }

    fn checksums(&self, data: &[u8]) -> ChecksumBytes {
        let geometry = self.fs.volume().geometry();
        checksums_of(geometry.checksum_type, geometry.sector_size as usize, &[data])
    }

    /// Ends a write whose pieces are on the device, or of which one has `failed`. Returns what is
    /// left to do.
    ///
    /// # Errors
    /// `failed`.
    pub fn end_write(
        &self,
        write: WriteInFlight,
        data: &[u8],
        failed: Option<Error>,
    ) -> Result<Option<DeferredWork>> {
        let (open, fs) = (&self.open, &*self.fs);
        let WriteInFlight { range, time, to } = write;
        let deferred = match (to, &failed) {
            (WriteTarget::Ordered { ticket, parts, new, checksums }, None) => {
                let checksums = checksums.unwrap_or_else(|| self.checksums(data));
                let lock = open.ordered.redeem(ticket);
                if new {
                    let replaced = lock.record_new(&parts, &checksums);
                    fs.release_ordered(replaced);
                } else {
                    lock.record_overwrite(&parts, &range, &checksums);
                }
                open.ordered.is_full().then_some(DeferredWork::Publish)
            }
            (WriteTarget::Ordered { ticket, parts, new, .. }, Some(_)) => {
                let lock = open.ordered.redeem(ticket);
                if new {
                    fs.release_parts(&parts);
                }
                drop(lock);
                None
            }
            (WriteTarget::InPlace(parts), None) => {
                for part in parts.iter().filter(|part| part.preallocated) {
                    open.in_place.set_written(&part.range);
                }
                None
            }
            (WriteTarget::InPlace(_), Some(_)) => None,
        };
        let mut deferred = deferred;
        if failed.is_none() {
            fs.dirty_inodes.touch(open, time, 0);
            let Range { start, end } = range;
            if let Some(mapping) = &open.mapping
                && mapping.invalidate(start..end, Invalidate::All).kept > 0
            {
                deferred = Some(DeferredWork::DropPages { start, end });
            }
        }
        open.data.leave();
        fs.sharing.leave();
        failed.map_or(Ok(deferred), Err)
    }

    /// Does the work that a write in flight has left.
    ///
    /// # Errors
    /// An error of the device or of changing trees.
    pub fn do_deferred(&self, deferred: DeferredWork) -> Result<()> {
        match deferred {
            DeferredWork::Publish if self.open.ordered.is_full() => self.open.publish_some_ordered(&self.fs),
            DeferredWork::Publish => Ok(()),
            DeferredWork::DropPages { start, end } => {
                self.flush()?;
                if let Some(mapping) = &self.open.mapping {
                    mapping.invalidate(start..end, Invalidate::All);
                }
                Ok(())
            }
        }
    }

    fn has_unwritten(&self, range: Range<u64>) -> bool {
        self.open.mapping.as_ref().is_some_and(|mapping| mapping.has_unwritten(range))
    }
}
