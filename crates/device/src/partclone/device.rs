//! `PartcloneDevice`: an image of partclone as the device that it was made of, for reading.
//!
//! **Invariant:** blocks are returned only after their checksum matched, where it can be verified
//! without reading all before it. The last verified group of blocks is kept.
//!
//! **Lock**: `group`, held for a lookup or an insertion.

use super::error::{PartcloneError, PartcloneFault};
use super::layout::{BlockChecksums, ChecksumRule, PartcloneLayout, crc};
use crate::device::{Access, Device, check_read, read_only};
use papilio_format::PhysicalAddress;
use papilio_locks::Mutex;
use std::io::{self, Read};
use std::sync::Arc;

/// The most bytes that are read to verify one block.
const MAX_GROUP: u64 = 16 << 20;
/// Groups that are kept.
const KEPT: usize = 16;

/// A group of blocks by its number.
type Group = (u64, Arc<Vec<u8>>);

/// A device in an image.
#[derive(Debug)]
pub(crate) struct PartcloneDevice {
    file: Arc<dyn Device>,
    layout: PartcloneLayout,
    group: Mutex<Vec<Group>>,
}

/// Reads a device from its start.
struct FromStart<'d> {
    device: &'d dyn Device,
    offset: u64,
}

impl Read for FromStart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.device.size().saturating_sub(self.offset);
        let length = left.min(buffer.len() as u64) as usize;
        self.device.read_at(&mut buffer[..length], PhysicalAddress(self.offset))?;
        self.offset += length as u64;
        Ok(length)
    }
}

impl PartcloneDevice {
    /// Reads header and bitmap, and checks that the image has all blocks.
    pub(crate) fn open(file: Arc<dyn Device>) -> Result<Self, PartcloneError> {
        let name = file.name().to_owned();
        let layout = PartcloneLayout::read(&mut FromStart { device: &*file, offset: 0 }, &name)?;
        let end = layout.used.checked_sub(1).map_or(Some(layout.start), |last| {
            layout.place(last).and_then(|place| place.checked_add(layout.block_size))
        });
        if end.is_none_or(|end| end > file.size()) {
            return Err(PartcloneError::new(&name, file.size(), PartcloneFault::Cut));
        }
        Ok(Self { file, layout, group: Mutex::default() })
    }

    /// Reads a part of a used block.
    fn read_block(&self, number: u64, within: u64, buffer: &mut [u8]) -> io::Result<()> {
        let sums = self.layout.checksums.filter(|sums| {
            sums.rule == ChecksumRule::Alone && sums.blocks * self.layout.block_size <= MAX_GROUP
        });
        let Some(sums) = sums else {
            let place = self.layout.place(number).unwrap_or(u64::MAX).saturating_add(within);
            return self.file.read_at(buffer, PhysicalAddress(place));
        };
        let group = self.group(number / sums.blocks, &sums)?;
        let start = (number % sums.blocks * self.layout.block_size + within) as usize;
        buffer.copy_from_slice(&group[start..start + buffer.len()]);
        Ok(())
    }

    fn group(&self, index: u64, sums: &BlockChecksums) -> io::Result<Arc<Vec<u8>>> {
        if let Some((_, bytes)) = self.group.lock().iter().find(|(known, _)| *known == index) {
            return Ok(Arc::clone(bytes));
        }
        let first = index * sums.blocks;
        let count = sums.blocks.min(self.layout.used - first);
        let place = self.layout.place(first).unwrap_or(u64::MAX);
        let mut bytes = vec![0; (count * self.layout.block_size + sums.size) as usize];
        self.file.read_at(&mut bytes, PhysicalAddress(place))?;
        let sum = bytes.split_off((count * self.layout.block_size) as usize);
        let stored = u32::from_le_bytes(std::array::from_fn(|at| sum[at]));
        let computed = crc(&bytes);
        if stored != computed {
            let fault = PartcloneFault::Checksum { part: "blocks", stored, computed };
            return Err(PartcloneError::new(self.file.name(), place, fault).into());
        }
        let bytes = Arc::new(bytes);
        let mut kept = self.group.lock();
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((index, Arc::clone(&bytes)));
        Ok(bytes)
    }
}

impl Device for PartcloneDevice {
    fn name(&self) -> &str {
        self.file.name()
    }

    fn size(&self) -> u64 {
        self.layout.device_size
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        let (mut at, mut rest) = (offset.get(), buffer);
        while !rest.is_empty() {
            let (block, within) = (at / self.layout.block_size, at % self.layout.block_size);
            let length = (self.layout.block_size - within).min(rest.len() as u64);
            let (part, after) = rest.split_at_mut(length as usize);
            match self.layout.is_used(block) {
                true => self.read_block(self.layout.rank(block), within, part)?,
                false => part.fill(0),
            }
            (at, rest) = (at + length, after);
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> io::Result<()> {
        Err(read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Err(read_only())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> io::Result<()> {
        Err(read_only())
    }
}
