//! Filling folios of the page cache from trees and devices.
//!
//! Owns [`OpenFile::fill`]. Where devices wait, the folios of one call are read together.
//!
//! **Invariants**
//! - A folio is finished only with data that is valid. One that could not be read is given up.
//!
//! **Locks**, in this order: the file's data lock (shared), the range of the folios where the file
//! has ordered extents, folios.
//!
//! Kernel counterpart: `btrfs_readahead` (`fs/btrfs/extent_io.c`).

use crate::data::StartedRead;
use crate::errors::Result;
use crate::file::open_file::OpenFile;
use crate::volume::Pieces;
use papilio_device::{Device, ReadRequest};
use papilio_pagecache::{FolioFill, Mapping, ReadaheadRequest};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

thread_local! {
    /// The folios that one call of [`OpenFile::fill`] fills; empty between calls.
    static FILLS: RefCell<Vec<FolioFill>> = const { RefCell::new(Vec::new()) };
}

/// A folio whose data is being read.
struct StartedFolio {
    /// Its number among the folios.
    folio: usize,
    read: StartedRead,
}

impl OpenFile {
    /// Reads those of the pages that are not in the cache.
    pub(super) fn fill(&self, mapping: &Mapping, pages: Range<u64>, order: u8) -> Result<()> {
        let mut fills = FILLS.take();
        let result = self.fill_all(mapping, pages, order, &mut fills);
        // After a failure, the folios that are left are given up.
        fills.clear();
        FILLS.set(fills);
        result
    }

    /// As [`OpenFile::fill`], for pages that no reader needs yet: a read that gets there reports
    /// the failure.
    pub(super) fn fill_ahead(&self, mapping: &Mapping, pages: Range<u64>, order: u8) {
        if let Err(error) = self.fill(mapping, pages, order) {
            tracing::debug!("readahead: {error}");
        }
    }

    /// Has another thread read pages that no reader needs yet. Returns whether it will.
    pub(super) fn ask_ahead(&self, request: &ReadaheadRequest) -> bool {
        let (file, pages, order) = (self.clone(), request.pages.clone(), request.order);
        self.fs.read_ahead.ask(move || {
            if let Some(mapping) = file.cached() {
                file.fill_ahead(mapping, pages, order);
            }
        })
    }

    fn fill_all(
        &self,
        mapping: &Mapping,
        pages: Range<u64>,
        order: u8,
        fills: &mut Vec<FolioFill>,
    ) -> Result<()> {
        let mut attempts = 0;
        loop {
            let shared = self.open.data.read();
            match mapping.insert_range(pages.clone(), order, fills) {
                // Some were inserted: the reader calls again for the rest.
                Err(_) if !fills.is_empty() => {}
                Err(error) => {
                    drop(shared);
                    self.make_cache_space(&error, attempts)?;
                    attempts += 1;
                    continue;
                }
                Ok(()) => {}
            }
            let together = self.waits() && fills.len() > 1;
            let filled = if together { self.read_together(fills)? } else { Vec::new() };
            for (number, mut fill) in fills.drain(..).enumerate() {
                if filled.get(number) != Some(&true) {
                    self.read_folio(&mut fill)?;
                }
                fill.finish();
            }
            return Ok(());
        }
    }

    /// Reads the folios that can be read in one go, with all devices at work. Returns which ones
    /// have valid data.
    fn read_together(&self, fills: &mut [FolioFill]) -> Result<Vec<bool>> {
        let reader = &self.fs.reader;
        let mut valid = vec![false; fills.len()];
        let (Some(first), Some(last)) = (fills.first(), fills.last()) else { return Ok(valid) };
        let length = (last.offset() - first.offset()) as usize + last.len();
        let ordered = Some(&self.open.ordered).filter(|ordered| !ordered.is_empty());
        let _locked = ordered.map(|ordered| ordered.lock_to_read(self.sectors(length, first.offset())));
        let moves = reader.moves();
        let mut placed = Vec::with_capacity(fills.len());
        let mut reads: Vec<(Arc<dyn Device>, usize, ReadRequest<'_>)> = Vec::with_capacity(fills.len());
        self.with_file_data(ordered, |file| {
            for (folio, fill) in fills.iter_mut().enumerate() {
                let mut pieces = Pieces::new();
                let Some(read) = reader.place_read(file, fill.offset(), fill.len(), &mut pieces)? else {
                    continue;
                };
                let mut rest: &mut [u8] = fill;
                for piece in pieces {
                    let (buffer, behind) = rest.split_at_mut(piece.range.len());
                    reads.push((piece.device, placed.len(), ReadRequest::new(piece.offset, buffer)));
                    rest = behind;
                }
                placed.push(StartedFolio { folio, read });
            }
            Ok(())
        })?;
        let mut arrived = vec![true; placed.len()];
        read_all(reads, |number| arrived[number] = false);
        self.with_file_data(ordered, |file| {
            for (StartedFolio { folio, read }, arrived) in placed.iter().zip(arrived) {
                valid[*folio] = arrived && reader.is_valid(file, read, &fills[*folio])?;
            }
            Ok(())
        })?;
        // Another extent may be by now where one of these was.
        if reader.moves() != moves {
            valid.fill(false);
        }
        Ok(valid)
    }

    /// Fills a folio from trees and device.
    pub(super) fn read_folio(&self, fill: &mut FolioFill) -> Result<()> {
        let offset = fill.offset();
        self.read_whole(fill, offset)
    }

    /// Fills a buffer from trees and device, and with zeros after the end of the file.
    pub(super) fn read_whole(&self, buffer: &mut [u8], offset: u64) -> Result<()> {
        let read = self.read_trees(buffer, offset)?;
        buffer[read..].fill(0);
        Ok(())
    }
}

/// Carries out reads, those of one device together. Passes the numbers of those that failed to
/// `failed`. The caller reads these anew, which counts the error.
fn read_all(mut reads: Vec<(Arc<dyn Device>, usize, ReadRequest<'_>)>, mut failed: impl FnMut(usize)) {
    while let Some((device, ..)) = reads.first() {
        let device = Arc::clone(device);
        let (of_device, others) = reads.into_iter().partition(|(other, ..)| Arc::ptr_eq(other, &device));
        reads = others;
        let (numbers, mut requests): (Vec<_>, Vec<_>) =
            Vec::into_iter(of_device).map(|(_, number, request)| (number, request)).unzip();
        device.read_many(&mut requests);
        let failures = numbers.iter().zip(&requests).filter(|(_, request)| request.result.is_err());
        failures.for_each(|(number, _)| failed(*number));
    }
}
