//! The old bytes under a new chunk with parity, while one of its devices is being replaced.
//!
//! Owns [`Volume::settle_new_rows`]. A write of a part of a row computes parity from the rest of
//! the row, which may be bytes that nothing has written. They must be the same on the device and on
//! the target of its replacement, or the parity is wrong once the target takes the device's place.
//!
//! **Invariant**: this runs before the chunk can be found, so that nothing writes to it meanwhile.
//!
//! **Locks**: `replaced`, not across device I/O.

use super::dev_replace::DevReplace;
use super::device_writes::device_error;
use super::volume::Volume;
use crate::errors::Result;
use papilio_format::items::chunk::Stripe;
use papilio_format::{DeviceId, PhysicalAddress};
use std::sync::Arc;

/// Bytes that are copied or zeroed at once.
const PIECE: u64 = 1 << 20;

impl Volume {
    /// Sets the device that is being replaced, or that none is.
    pub(crate) fn set_replaced(&self, replaced: Option<(DeviceId, Arc<DevReplace>)>) {
        *self.replaced.lock() = replaced;
    }

    /// Prepares the stripes of a chunk that is about to be made, of `bytes` each: where one is on
    /// the device that is being replaced, its target gets the same bytes. Without that device, all
    /// stripes become zeros, so that parity tells the same bytes as the target.
    ///
    /// # Errors
    /// [`Error::Device`](crate::Error::Device) if zeros cannot be written.
    pub(crate) fn settle_new_rows(&self, stripes: &[Stripe], bytes: u64) -> Result<()> {
        let Some((devid, dev_replace)) = self.replaced.lock().clone() else { return Ok(()) };
        let Some(stripe) = stripes.iter().find(|stripe| stripe.devid == devid) else { return Ok(()) };
        if dev_replace.source().is_some() {
            for (offset, length) in pieces(stripe.offset, bytes) {
                dev_replace.copy_unused(offset, length);
            }
            return Ok(());
        }
        let (devices, zeros) = (self.devices(), vec![0; PIECE as usize]);
        for (number, stripe) in stripes.iter().filter_map(|stripe| Some((devices.present(stripe)?.0, stripe)))
        {
            let device = devices.device(number).expect("it is present");
            for (offset, length) in pieces(stripe.offset, bytes) {
                let written = device.write_at(&zeros[..length], offset);
                written.map_err(|source| device_error(device, "write", offset, length, source))?;
            }
        }
        Ok(())
    }
}

fn pieces(start: PhysicalAddress, bytes: u64) -> impl Iterator<Item = (PhysicalAddress, usize)> {
    let piece = move |at| (PhysicalAddress(start.0 + at), PIECE.min(bytes - at) as usize);
    (0..bytes).step_by(PIECE as usize).map(piece)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TestVolume;
    use super::*;
    use papilio_device::{Device, MemoryDevice};
    use papilio_format::items::chunk::RaidProfile;

    #[test]
    fn the_target_gets_the_unused_bytes_of_a_new_chunk() {
        let test = TestVolume::new(RaidProfile::Raid5, 3);
        let volume = test.open(0, false).unwrap();
        let stripes = &test.data_chunk.1.stripes;
        let stripe = stripes.iter().find(|stripe| stripe.devid == DeviceId(2)).unwrap();
        let bytes = |device: &MemoryDevice| {
            let mut bytes = vec![0; 300_000];
            device.read_at(&mut bytes, stripe.offset).unwrap();
            bytes
        };
        let target = Arc::new(MemoryDevice::new(test.devices[1].size()));
        let dev_replace = Arc::new(DevReplace::new(Some(test.devices[1].clone()), target.clone()));
        volume.settle_new_rows(stripes, 300_000).unwrap();
        assert!(bytes(&target).iter().all(|byte| *byte == 0), "nothing is being replaced");
        volume.set_replaced(Some((DeviceId(2), dev_replace)));
        volume.settle_new_rows(stripes, 300_000).unwrap();
        assert!(bytes(&target) == bytes(&test.devices[1]));
        volume.set_replaced(None);
        target.write_at(&[0; 4096], stripe.offset).unwrap();
        volume.settle_new_rows(stripes, 300_000).unwrap();
        assert_eq!(bytes(&target)[..4096], [0; 4096], "nothing is being replaced any more");
    }

    #[test]
    fn pieces_cover_the_bytes() {
        for bytes in [PIECE / 2, PIECE, PIECE + 4096, 3 * PIECE - 512] {
            let mut next = 4096;
            for (start, length) in pieces(PhysicalAddress(4096), bytes) {
                assert_eq!(start.0, next);
                next += length as u64;
            }
            assert_eq!(next, 4096 + bytes);
        }
    }
}
