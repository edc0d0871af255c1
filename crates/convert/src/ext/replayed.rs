//! A device that shows a file system as the replay of its journal would leave it.
//!
//! Owns [`ReplayedDevice`], for reading only, and [`Replay`], the map from blocks of the file
//! system to their newest copies in the journal.

use papilio_device::{Access, Device, check_read};
use papilio_format::PhysicalAddress;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// The first bytes of a block that begins with the journal's magic number.
const MAGIC: [u8; 4] = 0xc03b_3998u32.to_be_bytes();

/// The newest copy of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Copy {
    /// The block on the device that has it.
    pub(crate) place: u64,
    /// Whether it begins with the journal's magic number, which the copy has as zeros.
    pub(crate) is_escaped: bool,
}

/// The blocks that a mount would replay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replay {
    pub(crate) blocks: BTreeMap<u64, Copy>,
}

/// The decorator.
#[derive(Debug)]
pub(crate) struct ReplayedDevice {
    inner: Arc<dyn Device>,
    replay: Replay,
    block_size: u64,
}

impl ReplayedDevice {
    pub(crate) fn new(inner: Arc<dyn Device>, replay: Replay, block_size: u64) -> Self {
        Self { inner, replay, block_size }
    }

    /// Puts the newest copy of a block where a read asks for it.
    fn patch(&self, buffer: &mut [u8], offset: u64, block: u64, copy: Copy) -> io::Result<()> {
        let start = block * self.block_size;
        let from = start.max(offset);
        let to = (start + self.block_size).min(offset + buffer.len() as u64);
        let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
        self.inner.read_at(part, PhysicalAddress(copy.place * self.block_size + (from - start)))?;
        if copy.is_escaped {
            for (at, byte) in MAGIC.iter().enumerate() {
                let place = start + at as u64;
                if (from..to).contains(&place) {
                    part[(place - from) as usize] = *byte;
                }
            }
        }
        Ok(())
    }
}

impl Device for ReplayedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.size(), offset, buffer.len())?;
        self.inner.read_at(buffer, offset)?;
        let end = (offset.0 + buffer.len() as u64).div_ceil(self.block_size);
        for (block, copy) in self.replay.blocks.range(offset.0 / self.block_size..end) {
            self.patch(buffer, offset.0, *block, *copy)?;
        }
        Ok(())
    }

    fn write_at(&self, _buffer: &[u8], _offset: PhysicalAddress) -> io::Result<()> {
        Err(papilio_device::read_only())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(papilio_device::read_only())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::MemoryDevice;

    #[test]
    fn reads_show_the_newest_copies() {
        let inner = Arc::new(MemoryDevice::new(64 << 10));
        inner.write_at(&[1; 4096], PhysicalAddress(8192)).unwrap();
        inner.write_at(&[2; 4096], PhysicalAddress(40_960)).unwrap();
        let mut replay = Replay::default();
        replay.blocks.insert(2, Copy { place: 10, is_escaped: true });
        let device = ReplayedDevice::new(inner, replay, 4096);
        let mut bytes = vec![0; 8192];
        device.read_at(&mut bytes, PhysicalAddress(8190)).unwrap();
        assert_eq!(bytes[..8], [0, 0, 0xc0, 0x3b, 0x39, 0x98, 2, 2]);
        assert_eq!(bytes[4097..4100], [2, 0, 0]);
        device.read_at(&mut bytes[..2], PhysicalAddress(8194)).unwrap();
        assert_eq!(bytes[..2], [0x39, 0x98]);
        assert!(device.write_at(&[0], PhysicalAddress(0)).is_err());
    }
}
