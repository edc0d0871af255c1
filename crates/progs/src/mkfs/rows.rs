//! The tree blocks of a chunk, and where their bytes go on the devices.
//!
//! Owns [`ChunkContent`]. Blocks of a profile with parity are collected into whole rows, so that
//! parity matches all bytes of its row, also after a predecessor's data that was not discarded.
//!
//! **Locks**: none.
//!
//! Kernel counterpart: `btrfs_map_block` (`fs/btrfs/volumes.c`) and `fs/btrfs/raid56.c`.

use super::chunks::{Chunk, DeviceLocation};
use papilio_engine::volume;
use papilio_engine::volume::parity::Syndrome;
use papilio_format::LogicalAddress;
use papilio_format::items::chunk::{RaidProfile, STRIPE_LENGTH};
use std::collections::BTreeMap;

/// The blocks of one chunk.
pub(super) struct ChunkContent<'a> {
    chunk: &'a Chunk,
    map: volume::Chunk,
    blocks: Vec<(Vec<DeviceLocation>, Vec<u8>)>,
    /// The data columns of each row that has a block.
    rows: BTreeMap<u64, Vec<Vec<u8>>>,
}

impl<'a> ChunkContent<'a> {
    pub(super) fn new(chunk: &'a Chunk) -> Self {
        Self { chunk, map: chunk.map(), blocks: Vec::new(), rows: BTreeMap::new() }
    }

    /// Adds a block, which never crosses a stripe element.
    pub(super) fn add(&mut self, address: LogicalAddress, bytes: Vec<u8>) {
        let mut elements = self.map.elements(address, bytes.len());
        let element = elements.next().expect("a block is not empty");
        assert!(elements.next().is_none(), "a block lies within a stripe element");
        if self.map.profile().parity() == 0 {
            let places = (0..self.map.copies()).filter_map(|copy| self.map.direct(&element, copy));
            self.blocks.push((places.map(|place| self.chunk.place(place)).collect(), bytes));
            return;
        }
        let columns = self.map.data_columns();
        let row = self.rows.entry(element.row);
        let row = row.or_insert_with(|| vec![vec![0; STRIPE_LENGTH as usize]; columns]);
        let within = element.within as usize;
        row[element.column][within..within + bytes.len()].copy_from_slice(&bytes);
    }

    /// Returns all blocks, or whole rows with their parity, with the places of their copies.
    pub(super) fn finish(mut self) -> Vec<(Vec<DeviceLocation>, Vec<u8>)> {
        for (row, mut columns) in std::mem::take(&mut self.rows) {
            let with_q = self.map.profile() == RaidProfile::Raid6;
            let mut syndrome = Syndrome::new(STRIPE_LENGTH as usize, with_q);
            for column in columns.iter().rev() {
                syndrome.add_next_lower(Some(column));
            }
            let (p, q) = syndrome.into_parity();
            columns.push(p);
            if with_q {
                columns.push(q);
            }
            let start = self.chunk.start.0 + row * self.map.data_columns() as u64 * STRIPE_LENGTH;
            let mut elements = self.map.elements(LogicalAddress(start), STRIPE_LENGTH as usize);
            let first = elements.next().expect("a row is not empty");
            for (column, bytes) in columns.into_iter().enumerate() {
                let place = self.chunk.place(self.map.column_place(&first, column));
                self.blocks.push((vec![place], bytes));
            }
        }
        self.blocks
    }
}
