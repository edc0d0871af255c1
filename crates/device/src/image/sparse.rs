//! `SparseDevice`: a disk in units of one size, each somewhere in a file, or absent and zero.
//!
//! Owns the place of each unit, and the units that were added and are not yet in the file's tables.
//! VMDK calls a unit a grain, VHDX a block.
//!
//! **Invariants**
//! - A unit never moves once it has a place.
//! - A new unit is put at the end of the file, where everything reads as zeros.
//! - The tables in the file name a new unit only after a flush of its bytes. So a loss of power at
//!   any time leaves tables that are right, and at most a gap at the end of the file.
//! - Nothing is changed before the first write: opening for writing leaves the file as it is.
//!
//! **Locks**, in this order
//! 1. `fresh`: held while a unit is added, and for a flush.
//! 2. `places`: held for a lookup or to publish one place, never during I/O.

use crate::device::{Access, Device, check_read, check_write, read_only};
use crate::file::FileDevice;
use papilio_format::PhysicalAddress;
use papilio_locks::{Mutex, RwLock};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes of the tables of an image: in VMDK those of a disk of 4 TiB.
pub(super) const MAX_TABLES: u64 = 256 << 20;

/// A file that can grow.
pub(super) trait Growing: Device {
    /// Sets the size. New bytes read as zeros.
    fn set_size(&self, size: u64) -> io::Result<()>;
}

impl Growing for FileDevice {
    fn set_size(&self, size: u64) -> io::Result<()> {
        self.resize(size)
    }
}

/// The part of a writer that differs between formats.
pub(super) trait Tables: Send + Sync + std::fmt::Debug {
    /// Prepares the file for changes, durably. Called once, before the first.
    fn begin(&self, file: &dyn Device) -> io::Result<()>;

    /// Writes units and their places, by ascending units, into the tables.
    fn record(&self, file: &dyn Device, placed: &[(u64, u32)]) -> io::Result<()>;

    /// Marks the file as closed. Everything else is durable.
    fn end(&self, file: &dyn Device) -> io::Result<()>;
}

/// The units of a disk.
#[derive(Debug)]
pub(super) struct Units {
    /// Bytes of the disk.
    pub size: u64,
    /// Bytes of a unit, a power of two.
    pub unit: u64,
    /// Bytes by which places are counted, a power of two.
    pub granule: u64,
    /// The place of each unit in the file, in granules; 0 if it is absent.
    pub places: Vec<u32>,
}

impl Units {
    /// Checks what a writer relies on: units overlap neither each other nor `reserved` (place and
    /// length in bytes), and each begins within a file of `size` bytes. Returns the end of the last
    /// one.
    fn end(&self, reserved: &[(u64, u64)], size: u64) -> Result<u64, &'static str> {
        let places = self.places.iter().filter(|place| **place != 0);
        let units = places.map(|place| (u64::from(*place) * self.granule, self.unit));
        let mut ranges: Vec<_> = units.chain(reserved.iter().copied()).filter(|range| range.1 > 0).collect();
        ranges.sort_unstable();
        let apart =
            |pair: &[(u64, u64)]| pair[0].0.checked_add(pair[0].1).is_some_and(|end| end <= pair[1].0);
        if !ranges.windows(2).all(apart) {
            return Err("parts of it overlap in the file");
        }
        match ranges.last() {
            Some((place, _)) if *place >= size => Err("a part of it is outside of the file"),
            last => Ok(last.map_or(0, |(place, length)| place.saturating_add(*length))),
        }
    }
}

/// Calls `part(unit, skip, done, length)` for the part of the range in each unit of `size` bytes.
pub(super) fn parts(
    size: u64,
    offset: PhysicalAddress,
    length: u64,
    mut part: impl FnMut(u64, u64, u64, u64) -> io::Result<()>,
) -> io::Result<()> {
    let mut done = 0;
    while done < length {
        let at = offset.get() + done;
        let skip = at % size;
        let count = (size - skip).min(length - done);
        part(at / size, skip, done, count)?;
        done += count;
    }
    Ok(())
}

/// Units that are not in the tables of the file yet.
#[derive(Debug)]
struct Fresh {
    /// The size of the file.
    end: u64,
    placed: Vec<(u64, u32)>,
}

#[derive(Debug)]
struct Writer {
    file: Arc<dyn Growing>,
    tables: Box<dyn Tables>,
    /// Whether the file was prepared for changes. Set with `fresh` held.
    begun: AtomicBool,
    fresh: Mutex<Fresh>,
    /// The end of the last unit, which may be behind the end of the file.
    needed: u64,
}

/// The disk in a sparse image.
#[derive(Debug)]
pub(super) struct SparseDevice {
    file: Arc<dyn Device>,
    size: u64,
    unit: u64,
    granule: u64,
    places: RwLock<Vec<u32>>,
    writer: Option<Writer>,
}

impl SparseDevice {
    /// Creates the device for reading.
    pub(super) fn reader(file: Arc<dyn Device>, units: Units) -> Self {
        let Units { size, unit, granule, places } = units;
        Self { file, size, unit, granule, places: RwLock::new(places), writer: None }
    }

    /// Creates the device for reading and writing. `reserved` are the ranges of the file that have
    /// no units, as place and length in bytes.
    ///
    /// # Errors
    /// The reason why the places are wrong.
    pub(super) fn writer(
        file: Arc<dyn Growing>,
        units: Units,
        reserved: &[(u64, u64)],
        tables: Box<dyn Tables>,
    ) -> Result<Self, &'static str> {
        let end = file.size();
        let needed = units.end(reserved, end)?;
        let mut device = Self::reader(Arc::clone(&file) as Arc<dyn Device>, units);
        let fresh = Mutex::new(Fresh { end, placed: Vec::new() });
        device.writer = Some(Writer { file, tables, begun: AtomicBool::new(false), fresh, needed });
        Ok(device)
    }

    /// Returns the offset of a unit in the file.
    fn place(&self, unit: u64) -> Option<u64> {
        let place = self.places.read()[unit as usize];
        (place != 0).then(|| u64::from(place) * self.granule)
    }

    fn changeable(&self) -> io::Result<&Writer> {
        let writer = self.writer.as_ref().ok_or_else(read_only)?;
        writer.begin()?;
        Ok(writer)
    }

    /// Writes into an absent unit, which gets a place.
    fn add(&self, writer: &Writer, unit: u64, skip: u64, bytes: &[u8]) -> io::Result<()> {
        let mut fresh = writer.fresh.lock();
        if let Some(place) = self.place(unit) {
            drop(fresh);
            return self.file.write_at(bytes, PhysicalAddress(place + skip));
        }
        let place = fresh.end.next_multiple_of(self.unit.min(1 << 20).max(self.granule));
        let number = u32::try_from(place / self.granule);
        let number =
            number.map_err(|_| io::Error::new(io::ErrorKind::FileTooLarge, "the image is too large"))?;
        writer.file.set_size(place + self.unit)?;
        if let Err(error) = self.file.write_at(bytes, PhysicalAddress(place + skip)) {
            // The next unit at this place must begin with zeros.
            writer.file.set_size(fresh.end)?;
            return Err(error);
        }
        fresh.end = place + self.unit;
        fresh.placed.push((unit, number));
        self.places.write()[unit as usize] = number;
        Ok(())
    }
}

impl Writer {
    fn begin(&self) -> io::Result<()> {
        if self.begun.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut fresh = self.fresh.lock();
        if !self.begun.load(Ordering::Relaxed) {
            self.tables.begin(&*self.file)?;
            // Other programs leave out the end of the last unit.
            if self.needed > fresh.end {
                self.file.set_size(self.needed)?;
            }
            fresh.end = self.file.size();
            self.begun.store(true, Ordering::Release);
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut fresh = self.fresh.lock();
        self.file.flush()?;
        if !fresh.placed.is_empty() {
            fresh.placed.sort_unstable();
            self.tables.record(&*self.file, &fresh.placed)?;
            self.file.flush()?;
            fresh.placed.clear();
        }
        Ok(())
    }
}

impl Device for SparseDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn access(&self) -> Access {
        if self.writer.is_some() { Access::ReadWrite } else { Access::ReadOnly }
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size, offset, buffer.len())?;
        parts(self.unit, offset, buffer.len() as u64, |unit, skip, done, length| {
            let part = &mut buffer[done as usize..][..length as usize];
            match self.place(unit) {
                Some(place) => self.file.read_at(part, PhysicalAddress(place + skip)),
                None => {
                    part.fill(0);
                    Ok(())
                }
            }
        })
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access(), self.size, offset, buffer.len() as u64)?;
        let writer = self.changeable()?;
        parts(self.unit, offset, buffer.len() as u64, |unit, skip, done, length| {
            let part = &buffer[done as usize..][..length as usize];
            match self.place(unit) {
                Some(place) => self.file.write_at(part, PhysicalAddress(place + skip)),
                None => self.add(writer, unit, skip, part),
            }
        })
    }

    /// Makes the new units durable, then the tables that name them.
    fn flush(&self) -> io::Result<()> {
        self.writer.as_ref().ok_or_else(read_only)?.flush()
    }

    /// Absent units stay so; parts of the others read as zeros, and keep their places.
    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, keep_space: bool) -> io::Result<()> {
        check_write(self.access(), self.size, offset, length)?;
        self.changeable()?;
        parts(self.unit, offset, length, |unit, skip, _, length| match self.place(unit) {
            Some(place) => self.file.write_zeroes(PhysicalAddress(place + skip), length, keep_space),
            None => Ok(()),
        })
    }

    /// Frees the space of the range in the file. The units keep their places.
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.size, offset, length)?;
        self.changeable()?;
        parts(self.unit, offset, length, |unit, skip, _, length| match self.place(unit) {
            Some(place) => self.file.discard(PhysicalAddress(place + skip), length),
            None => Ok(()),
        })
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        if offset.get() >= self.size {
            return None;
        }
        let first = offset.get() / self.unit;
        let places = self.places.read();
        let found = places[first as usize..].iter().position(|place| *place != 0)?;
        let start = (first + found as u64) * self.unit;
        Some(PhysicalAddress(start.max(offset.get())))
    }
}

impl Drop for SparseDevice {
    fn drop(&mut self) {
        let Some(writer) = &self.writer else { return };
        if writer.begun.load(Ordering::Acquire) && writer.flush().is_ok() {
            // Without the mark of the end, the next program may check the image.
            let _ = writer.tables.end(&*writer.file);
        }
    }
}

/// Bytes that say nothing about the process, for identifiers.
pub(super) fn identifier() -> [u8; 16] {
    use std::hash::{BuildHasher, RandomState};
    let half = || RandomState::new().hash_one(0).to_le_bytes();
    let (first, second) = (half(), half());
    std::array::from_fn(|index| if index < 8 { first[index] } else { second[index - 8] })
}
