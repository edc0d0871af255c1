//! `Export`: a device with a name, and the commands that clients may give it.
//!
//! **Invariants**
//! - A command that is refused changes nothing.
//! - A range is checked before the device sees it, so no device decides how its excess is reported.
//! - The size is that of the start: a client learns it once.

use crate::protocol::{Errno, MAX_NAME, ability};
use papilio_device::{Access, Device, PhysicalAddress};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The steps, in bytes, in which the end of data is looked for.
const GRAIN: u64 = 64 << 10;

/// A device that clients see under a name.
#[derive(Debug)]
pub struct Export {
    name: String,
    device: Arc<dyn Device>,
    /// Bytes.
    size: u64,
    /// Whether something was written since the last flush.
    dirty: AtomicBool,
}

/// The name of an export is longer than the protocol allows.
#[derive(Debug, thiserror::Error)]
#[error("the name of an export has {0} bytes; at most {MAX_NAME} are allowed")]
pub struct NameTooLong(usize);

/// A run of bytes that are all data, or all zeros in a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Bytes.
    pub length: u64,
    /// Whether it reads as zeros.
    pub is_hole: bool,
}

impl Export {
    /// Creates an export. A client that asks for no name gets it, too.
    ///
    /// # Errors
    /// [`NameTooLong`].
    pub fn new(name: String, device: Arc<dyn Device>) -> Result<Self, NameTooLong> {
        if name.len() > MAX_NAME {
            return Err(NameTooLong(name.len()));
        }
        let size = device.size();
        Ok(Self { name, device, size, dirty: AtomicBool::new(false) })
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns whether clients may only read.
    pub fn is_read_only(&self) -> bool {
        self.device.access() == Access::ReadOnly
    }

    /// Returns the device's description of itself.
    pub(crate) fn description(&self) -> &str {
        self.device.name()
    }

    /// Returns the size of requests that suits the device best, in bytes.
    pub(crate) fn preferred_block(&self) -> u32 {
        (self.device.alignment() as u32).clamp(4096, 1 << 20)
    }

    /// Returns whether a client may ask for this name.
    pub(crate) fn answers_to(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the transmission flags. All connections use one device, so a flush of one covers
    /// the writes that any of them has completed: that is what multi-conn promises.
    pub(crate) fn abilities(&self, shared: bool, structured: bool) -> u16 {
        let mut flags = ability::HAS_FLAGS | ability::FLUSH;
        flags |= match self.is_read_only() {
            true => ability::READ_ONLY,
            false => ability::FUA | ability::TRIM | ability::WRITE_ZEROES,
        };
        if shared {
            flags |= ability::MULTI_CONN;
        }
        if structured {
            flags |= ability::DF;
        }
        flags
    }

    /// Fails with `outside` unless the range lies within the export.
    fn check(&self, offset: u64, length: u64, outside: Errno) -> Result<(), Errno> {
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(outside),
        }
    }

    fn check_change(&self, offset: u64, length: u64, outside: Errno) -> Result<(), Errno> {
        if self.is_read_only() {
            return Err(Errno::Perm);
        }
        self.check(offset, length, outside)
    }

    fn failed(&self, doing: &str, offset: u64, error: &io::Error) -> Errno {
        tracing::warn!("{}: {doing} at {offset}: {error}", self.device.name());
        Errno::of(error)
    }

    /// Checks a READ before memory is taken for it.
    pub(crate) fn check_read(&self, offset: u64, length: u32) -> Result<(), Errno> {
        self.check(offset, length.into(), Errno::Invalid)
    }

    /// Fills the buffer.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.check(offset, buffer.len() as u64, Errno::Invalid)?;
        self.device
            .read_at(buffer, PhysicalAddress(offset))
            .map_err(|error| self.failed("reading", offset, &error))
    }

    /// Writes the buffer, durably if `fua`.
    pub(crate) fn write(&self, buffer: &[u8], offset: u64, fua: bool) -> Result<(), Errno> {
        self.check_change(offset, buffer.len() as u64, Errno::NoSpace)?;
        let at = PhysicalAddress(offset);
        self.dirty.store(true, Ordering::Release);
        let written = if fua { self.device.write_fua(buffer, at) } else { self.device.write_at(buffer, at) };
        written.map_err(|error| self.failed("writing", offset, &error))
    }

    /// Makes all completed writes durable.
    pub(crate) fn flush(&self) -> Result<(), Errno> {
        if self.is_read_only() {
            return Ok(());
        }
        self.flush_device().map_err(|error| self.failed("flushing", 0, &error))
    }

    /// Makes the writes durable that no flush has covered yet.
    pub(crate) fn flush_rest(&self) -> io::Result<()> {
        if self.dirty.load(Ordering::Acquire) { self.flush_device() } else { Ok(()) }
    }

    fn flush_device(&self) -> io::Result<()> {
        // A write that begins from here on sets it again.
        let was = self.dirty.swap(false, Ordering::AcqRel);
        self.device.flush().inspect_err(|_| {
            self.dirty.fetch_or(was, Ordering::AcqRel);
        })
    }

    /// Tells the device that the range is no longer needed. It is only advice, so a device that
    /// cannot discard ignores it.
    pub(crate) fn trim(&self, offset: u64, length: u32, fua: bool) -> Result<(), Errno> {
        self.check_change(offset, length.into(), Errno::Invalid)?;
        self.dirty.store(true, Ordering::Release);
        match self.device.discard(PhysicalAddress(offset), length.into()) {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => {
                return Err(self.failed("discarding", offset, &error));
            }
            _ => {}
        }
        if fua { self.flush() } else { Ok(()) }
    }

    /// Makes the range read as zeros. It keeps its space if `no_hole`.
    pub(crate) fn write_zeros(
        &self,
        offset: u64,
        length: u32,
        no_hole: bool,
        fua: bool,
    ) -> Result<(), Errno> {
        self.check_change(offset, length.into(), Errno::NoSpace)?;
        self.dirty.store(true, Ordering::Release);
        self.device
            .write_zeroes(PhysicalAddress(offset), length.into(), no_hole)
            .map_err(|error| self.failed("writing zeros", offset, &error))?;
        if fua { self.flush() } else { Ok(()) }
    }

    /// Returns the run of data or of zeros at `offset`, at most `length` bytes of it. The caller
    /// has checked the range, and `length` is not 0.
    pub(crate) fn extent(&self, offset: u64, length: u64) -> Extent {
        let end = offset + length;
        let next =
            |at: u64| self.device.next_data(PhysicalAddress(at)).map_or(end, |data| data.get().min(end));
        let data = next(offset);
        if data > offset {
            return Extent { length: data - offset, is_hole: true };
        }
        // The end of data is found to a grain: a hole that is called data costs only time.
        let mut at = offset;
        while at < end {
            let step = (at - at % GRAIN + GRAIN).min(end);
            if at > offset && next(at) > at {
                break;
            }
            at = step;
        }
        Extent { length: at - offset, is_hole: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use papilio_device::{FaultDevice, MemoryDevice, OpenOptions};

    fn export(size: u64) -> Export {
        Export::new("disk".to_owned(), Arc::new(MemoryDevice::new(size))).unwrap()
    }

    #[test]
    fn ranges_outside_are_refused_and_change_nothing() {
        let export = export(8192);
        export.write(&[7; 8192], 0, false).unwrap();
        assert_eq!(export.write(&[1; 2], 8191, false), Err(Errno::NoSpace));
        assert_eq!(export.write(&[1; 2], u64::MAX, true), Err(Errno::NoSpace));
        assert_eq!(export.write_zeros(1, 8192, false, false), Err(Errno::NoSpace));
        assert_eq!(export.trim(8192, 1, false), Err(Errno::Invalid));
        assert_eq!(export.trim(u64::MAX - 1, u32::MAX, false), Err(Errno::Invalid));
        assert_eq!(export.read(&mut [0; 2], 8191), Err(Errno::Invalid));
        assert_eq!(export.check_read(u64::MAX, 1), Err(Errno::Invalid));
        let mut all = [0; 8192];
        export.read(&mut all, 0).unwrap();
        assert!(all == [7; 8192]);
        assert_eq!(export.write(&[], 8192, false), Ok(()));
    }

    #[test]
    fn zeros_cover_the_range_and_nothing_else() {
        let export = export(2 << 20);
        export.write(&vec![7; 2 << 20], 0, false).unwrap();
        export.write_zeros(100, 1 << 20, false, true).unwrap();
        let mut all = vec![0; 2 << 20];
        export.read(&mut all, 0).unwrap();
        let end = 100 + (1 << 20);
        assert!(all[..100].iter().chain(&all[end..]).all(|byte| *byte == 7));
        assert!(all[100..end].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn extents_tell_data_from_holes() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8 << 20).unwrap();
        let device = Arc::new(OpenOptions::new(Access::ReadWrite).open(image.path()).unwrap());
        let export = Export::new(String::new(), device).unwrap();
        export.write(&[1; 200_000], 1 << 20, true).unwrap();
        let first = export.extent(0, 8 << 20);
        if !first.is_hole {
            // The host knows no holes.
            assert_eq!(first.length, 8 << 20);
            return;
        }
        assert_eq!(first.length, 1 << 20);
        let second = export.extent(1 << 20, 7 << 20);
        assert!(!second.is_hole && (200_000..=262_144).contains(&second.length), "{second:?}");
        let third = export.extent((1 << 20) + second.length, 4096);
        assert_eq!(third, Extent { length: 4096, is_hole: true });
    }

    #[test]
    fn read_only_device_cannot_be_changed() {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(8192).unwrap();
        let device = Arc::new(OpenOptions::new(Access::ReadOnly).open(image.path()).unwrap());
        let export = Export::new(String::new(), device).unwrap();
        assert!(export.is_read_only());
        assert_eq!(export.write(&[1], 0, false), Err(Errno::Perm));
        assert_eq!(export.write_zeros(0, 1, true, false), Err(Errno::Perm));
        assert_eq!(export.trim(0, 1, false), Err(Errno::Perm));
        assert_eq!(export.flush(), Ok(()));
        assert_eq!(export.abilities(true, false) & ability::READ_ONLY, ability::READ_ONLY);
        assert_eq!(export.abilities(true, false) & ability::TRIM, 0);
    }

    #[test]
    fn failures_of_the_device_are_reported() {
        let device = Arc::new(FaultDevice::new(Arc::new(MemoryDevice::new(8192))));
        let export = Export::new(String::new(), Arc::<FaultDevice>::clone(&device)).unwrap();
        assert_eq!(export.write(&[1; 512], 0, false), Ok(()));
        device.fail_all();
        assert_eq!(export.read(&mut [0; 512], 0), Err(Errno::Io));
        assert_eq!(export.write(&[2; 512], 0, false), Err(Errno::Io));
        assert_eq!(export.write_zeros(0, 512, false, false), Err(Errno::Io));
        assert_eq!(export.flush(), Err(Errno::Io));
        assert!(export.flush_rest().is_err());
        device.repair();
        assert!(export.flush_rest().is_ok());
        device.fail_all();
        assert!(export.flush_rest().is_ok(), "nothing was left to flush");
    }
}
