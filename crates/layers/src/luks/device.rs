//! `LuksDevice`: an open encrypted volume.
//!
//! **Invariants**
//! - The device below sees only whole sectors, encrypted.
//! - A write of a part of a sector reads the rest first. A lock keeps two such writes of one sector
//!   apart; writes of whole sectors need none.
//!
//! Locks: `partial` is a leaf; it is held while the sector is read and written.
//!
//! Kernel counterpart: drivers/md/dm-crypt.c.

use super::header::{FORMAT, LuksHeader, VolumeKey};
use super::sector_cipher::{SectorCipher, UNIT};
use crate::error::{LayerError, Result};
use papilio_device::{
    Access, Advice, Device, PhysicalAddress, ReadRequest, WriteRequest, check_read, check_write,
};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes that are encrypted at once for one write.
const CHUNK: usize = 1 << 20;

/// The data of a LUKS volume, decrypted.
pub struct LuksDevice {
    below: Arc<dyn Device>,
    name: String,
    cipher: SectorCipher,
    start: u64,
    length: u64,
    sector_size: usize,
    iv_offset: u64,
    partial: Mutex<()>,
}

impl fmt::Debug for LuksDevice {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LuksDevice").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LuksDevice {
    /// Opens the data on `below` with its key.
    ///
    /// # Errors
    /// A cipher that is not supported; data past the end of the device.
    pub fn new(below: Arc<dyn Device>, name: String, header: &LuksHeader, key: &VolumeKey) -> Result<Self> {
        let cipher = SectorCipher::new(&header.cipher, &key.0)
            .map_err(|feature| LayerError::unsupported(below.name(), FORMAT, feature))?;
        let sector_size = header.sector_size as usize;
        let rest = below.size().checked_sub(header.data_offset);
        let length = match (rest, header.data_length) {
            (Some(rest), None) => Some(rest - rest % sector_size as u64),
            (Some(rest), Some(length)) if length <= rest && length % sector_size as u64 == 0 => Some(length),
            _ => None,
        };
        let Some(length) = length else {
            let reason = "the data begins or ends past the end of the device";
            return Err(LayerError::damaged(below.name(), FORMAT, reason));
        };
        Ok(Self {
            below,
            name,
            cipher,
            start: header.data_offset,
            length,
            sector_size,
            iv_offset: header.iv_offset,
            partial: Mutex::new(()),
        })
    }

    fn unit(&self, offset: u64) -> u64 {
        self.iv_offset.wrapping_add(offset / UNIT)
    }

    /// Returns the whole sectors that have a range.
    fn whole(&self, offset: u64, length: usize) -> (u64, u64) {
        let size = self.sector_size as u64;
        (offset - offset % size, (offset + length as u64).next_multiple_of(size))
    }

    fn is_whole(&self, offset: u64, length: usize) -> bool {
        let size = self.sector_size as u64;
        offset.is_multiple_of(size) && (length as u64).is_multiple_of(size)
    }

    fn below(&self, offset: u64) -> PhysicalAddress {
        PhysicalAddress(self.start + offset)
    }

    /// Reads whole sectors.
    fn read_whole(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.below.read_at(buffer, self.below(offset))?;
        self.cipher.decrypt(buffer, self.sector_size, self.unit(offset));
        Ok(())
    }

    /// Writes whole sectors.
    fn write_whole(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        let mut at = offset;
        let mut encrypted = Vec::with_capacity(buffer.len().min(CHUNK));
        for chunk in buffer.chunks(CHUNK) {
            encrypted.clear();
            encrypted.extend_from_slice(chunk);
            self.cipher.encrypt(&mut encrypted, self.sector_size, self.unit(at));
            self.below.write_at(&encrypted, self.below(at))?;
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

impl Device for LuksDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.length
    }

    fn access(&self) -> Access {
        self.below.access()
    }

    fn alignment(&self) -> usize {
        match self.below.alignment() {
            1 => 1,
            alignment => alignment.max(self.sector_size),
        }
    }

    fn waits(&self) -> bool {
        // Requests are decrypted by the thread that waits for them.
        false
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        check_read(self.length, offset, buffer.len())?;
        let offset = offset.get();
        if self.is_whole(offset, buffer.len()) {
            return self.read_whole(buffer, offset);
        }
        let (start, end) = self.whole(offset, buffer.len());
        let mut sectors = vec![0; (end - start) as usize];
        self.read_whole(&mut sectors, start)?;
        buffer.copy_from_slice(&sectors[(offset - start) as usize..][..buffer.len()]);
        Ok(())
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        let is_simple = requests.iter().all(|request| {
            let (offset, length) = (request.offset, request.buffer.len());
            check_read(self.length, offset, length).is_ok() && self.is_whole(offset.get(), length)
        });
        if !is_simple {
            for request in requests {
                request.result = self.read_at(request.buffer, request.offset);
            }
            return;
        }
        requests.iter_mut().for_each(|request| request.offset = self.below(request.offset.get()));
        self.below.read_many(requests);
        for request in requests {
            request.offset.0 -= self.start;
            if request.result.is_ok() {
                self.cipher.decrypt(request.buffer, self.sector_size, self.unit(request.offset.get()));
            }
        }
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        check_write(self.access(), self.length, offset, buffer.len() as u64)?;
        let offset = offset.get();
        if self.is_whole(offset, buffer.len()) {
            return self.write_whole(buffer, offset);
        }
        let (start, end) = self.whole(offset, buffer.len());
        let mut sectors = vec![0; (end - start) as usize];
        let _guard = self.partial.lock().unwrap_or_else(PoisonError::into_inner);
        self.read_whole(&mut sectors, start)?;
        sectors[(offset - start) as usize..][..buffer.len()].copy_from_slice(buffer);
        self.write_whole(&sectors, start)
    }

    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        for request in requests {
            request.result = self.write_at(request.buffer, request.offset);
        }
    }

    fn flush(&self) -> io::Result<()> {
        self.below.flush()
    }

    /// Discards nothing: it would show which sectors are in use. dm-crypt does the same by default.
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        check_write(self.access(), self.length, offset, length)?;
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        if length > 0 && offset.checked_add(length).is_some_and(|end| end.get() <= self.length) {
            self.below.advise(self.below(offset.get()), length, advice);
        }
    }
}
