//! `FileDevice`: a regular file or a block device on the host.
//!
//! It owns the open file and, through it, the lock.
//!
//! **Invariants**
//! - A write never extends a file.
//! - With direct I/O the size is rounded down to the alignment, so an aligned request can reach
//!   every byte. An unaligned write reads, modifies and writes whole blocks.
//! - With `direct_reads`, every write goes through the host's page cache. Direct writes beside
//!   cached ones could leave stale pages there; the host itself warns of it.
//!
//! **Locks**
//! - `unaligned` (direct I/O only): aligned writes hold it shared. An unaligned write holds it
//!   exclusively, because its read-modify-write could undo a neighbouring write. No other lock is
//!   acquired under it.
//!
//! Kernel counterpart: block/fops.c, and mm/filemap.c for files.

use crate::aligned::AlignedBuffer;
use crate::backing::Backing;
use crate::device::{
    Access, Advice, DEVICE_IO, Device, ReadRequest, RingTarget, WriteRequest, check_read, check_write,
    fill_with_zeros, past_end, read_only,
};
use crate::host::calls;
use crate::lock::LockedFile;
use crate::started::{Direction, StartedOp};
use crate::uring;
use crate::workers;
use papilio_format::PhysicalAddress;
use papilio_locks::RwLock;
use rustix::io::Errno;
use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that one step of an unaligned direct request transfers.
const BOUNCE_SIZE: usize = 256 * 1024;

/// Smaller batches do not repay the ring's two system calls and bookkeeping, where the host has the
/// bytes in its page cache.
const MIN_RING_BATCH: usize = 4;
/// With direct I/O, two requests at once already take half the time of one after the other.
const MIN_DIRECT_BATCH: usize = 2;

thread_local! {
    /// The aligned memory for this thread's unaligned direct requests.
    static BOUNCE: RefCell<Option<AlignedBuffer>> = const { RefCell::new(None) };
}

/// A regular file or a block device, opened by [`OpenOptions::open`](crate::OpenOptions::open).
#[derive(Debug)]
pub struct FileDevice {
    file: LockedFile,
    name: String,
    access: Access,
    backing: Backing,
    /// In bytes; 1 with the host's page cache.
    alignment: usize,
    /// Whether batches may use io_uring.
    ring: bool,
    /// The last measured size in bytes, which saves a system call per write.
    known_size: AtomicU64,
    unaligned: RwLock<()>,
    /// For started reads whose bytes are not in the host's page cache.
    direct_reads: Option<DirectReads>,
}

/// A second descriptor of the file, which reads past the host's page cache.
#[derive(Debug)]
struct DirectReads {
    file: File,
    /// In bytes. At least a page, so that a read never shares a page with a cached write.
    alignment: usize,
    page: u64,
}

impl FileDevice {
    pub(crate) fn from_parts(
        file: LockedFile,
        name: String,
        access: Access,
        backing: Backing,
        alignment: usize,
        ring: bool,
    ) -> Self {
        let (known_size, unaligned) = Default::default();
        Self { file, name, access, backing, alignment, ring, known_size, unaligned, direct_reads: None }
    }

    /// Lets started reads bypass the host's page cache where it lacks their bytes, if it can.
    pub(crate) fn add_direct_reads(&mut self) {
        // Without an answer a read could not tell whether the cache has its bytes.
        if calls::cached_pages(&self.file, 0, 1).is_none() {
            return;
        }
        let Some(file) = calls::reopen_for_direct_reads(&self.file) else { return };
        let page = rustix::param::page_size();
        let alignment = calls::direct_alignment(&file, self.backing).max(page);
        self.direct_reads = Some(DirectReads { file, alignment, page: page as u64 });
    }

    /// Returns the open file, for the drivers of image formats.
    #[cfg(feature = "images")]
    pub(crate) fn host_file(&self) -> &std::fs::File {
        &self.file
    }

    /// Punches a hole into the file, beyond the size that it had when it was opened, too. Does
    /// nothing where the host's file system has no holes.
    #[cfg(feature = "images")]
    pub(crate) fn punch(&self, start: u64, length: u64) -> io::Result<()> {
        match calls::zero_range(&self.file, start, length, false) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            punched => Ok(punched?),
        }
    }

    /// Returns whether this is a block device.
    pub fn is_block_device(&self) -> bool {
        self.backing == Backing::BlockDevice
    }

    /// Grows a regular file with zeros, or shrinks it.
    ///
    /// # Errors
    /// `Unsupported` for a block device, `ReadOnlyFilesystem`, or the host's error.
    pub fn resize(&self, size: u64) -> io::Result<()> {
        if self.access == Access::ReadOnly {
            return Err(read_only());
        }
        if self.is_block_device() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "a block device cannot be resized"));
        }
        self.file.set_len(size)?;
        self.measure().map(drop)
    }

    /// Reads the current size in bytes from the host.
    pub(crate) fn measure(&self) -> io::Result<u64> {
        let size = match self.backing {
            Backing::RegularFile => self.file.metadata()?.len(),
            // Nothing here uses the file position.
            Backing::BlockDevice => rustix::fs::seek(&*self.file, rustix::fs::SeekFrom::End(0))?,
        };
        let size = size - size % self.alignment as u64;
        self.known_size.store(size, Ordering::Relaxed);
        Ok(size)
    }

    /// Runs a range check against the known size, then against a fresh one before failing.
    fn check(&self, check: impl Fn(u64) -> io::Result<()>) -> io::Result<()> {
        check(self.known_size.load(Ordering::Relaxed)).or_else(|_| check(self.measure()?))
    }

    fn is_direct(&self) -> bool {
        self.alignment > 1
    }

    /// Returns whether a request can go to the host without a copy.
    fn is_aligned(&self, address: *const u8, length: usize, offset: PhysicalAddress) -> bool {
        let mask = self.alignment - 1;
        (address.addr() | length | offset.get() as usize) & mask == 0
    }

    /// Calls `step(buffer, at, done)` for each run of whole blocks that covers the range.
    ///
    /// `buffer` is aligned memory for the blocks from `at`. `done` is the number of bytes of the
    /// range that earlier steps covered.
    fn in_blocks(
        &self,
        offset: PhysicalAddress,
        length: usize,
        mut step: impl FnMut(&mut [u8], u64, usize) -> io::Result<()>,
    ) -> io::Result<()> {
        let block = self.alignment as u64;
        let room = BOUNCE_SIZE.max(self.alignment);
        BOUNCE.with_borrow_mut(|slot| {
            let usable = |buffer: &AlignedBuffer| {
                buffer.len() >= room && buffer.as_ptr().addr().is_multiple_of(self.alignment)
            };
            let bounce = match slot.take().filter(usable) {
                Some(buffer) => slot.insert(buffer),
                None => slot.insert(AlignedBuffer::new(room, self.alignment)),
            };
            let mut done = 0;
            while done < length {
                let from = offset.get() + done as u64;
                let at = from - from % block;
                let end = (offset.get() + length as u64).next_multiple_of(block).min(at + room as u64);
                step(&mut bounce[..(end - at) as usize], at, done)?;
                done = length.min((end - offset.get()) as usize);
            }
            Ok(())
        })
    }

    fn read_unaligned(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.in_blocks(offset, buffer.len(), |blocks, at, done| {
            self.file.read_exact_at(blocks, at)?;
            let skip = (offset.get() + done as u64 - at) as usize;
            let length = (blocks.len() - skip).min(buffer.len() - done);
            buffer[done..done + length].copy_from_slice(&blocks[skip..skip + length]);
            Ok(())
        })
    }

    /// Returns whether offset and length are whole blocks, so that only the memory is unaligned.
    fn is_whole_blocks(&self, length: usize, offset: PhysicalAddress) -> bool {
        (length | offset.get() as usize) & (self.alignment - 1) == 0
    }

    /// Writes whole blocks from unaligned memory, through the bounce buffer. `write` puts the
    /// blocks of the buffer at an offset of the file.
    fn write_copied(
        &self,
        buffer: &[u8],
        offset: PhysicalAddress,
        mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
    ) -> io::Result<()> {
        let _shared = self.unaligned.read();
        self.in_blocks(offset, buffer.len(), |blocks, at, done| {
            blocks.copy_from_slice(&buffer[done..done + blocks.len()]);
            write(blocks, at)
        })
    }

    fn write_unaligned(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        if self.is_whole_blocks(buffer.len(), offset) {
            return self.write_copied(buffer, offset, |blocks, at| self.file.write_all_at(blocks, at));
        }
        let _alone = self.unaligned.write();
        self.in_blocks(offset, buffer.len(), |blocks, at, done| {
            let skip = (offset.get() + done as u64 - at) as usize;
            let length = (blocks.len() - skip).min(buffer.len() - done);
            let (first, last) = (self.alignment, blocks.len() - self.alignment);
            if skip > 0 {
                self.file.read_exact_at(&mut blocks[..first], at)?;
            }
            if skip + length < blocks.len() && (last > 0 || skip == 0) {
                self.file.read_exact_at(&mut blocks[last..], at + last as u64)?;
            }
            blocks[skip..skip + length].copy_from_slice(&buffer[done..done + length]);
            self.file.write_all_at(blocks, at)
        })
    }

    /// Returns whether the host's page cache lacks bytes of a range.
    fn lacks(&self, direct: &DirectReads, start: u64, length: u64) -> bool {
        let pages = length.div_ceil(direct.page);
        calls::cached_pages(&self.file, start, length).is_some_and(|cached| cached < pages)
    }

    /// Returns whether the ring may carry a request on a device of `size` bytes.
    fn fits_ring(&self, size: u64, buffer: &[u8], offset: PhysicalAddress) -> bool {
        let end = offset.checked_add(buffer.len() as u64);
        !buffer.is_empty()
            && end.is_some_and(|end| end.get() <= size)
            && self.is_aligned(buffer.as_ptr(), buffer.len(), offset)
    }
}

impl Device for FileDevice {
    fn name(&self) -> &str {
        &self.name
    }

    fn size(&self) -> u64 {
        self.measure().unwrap_or_else(|_| self.known_size.load(Ordering::Relaxed))
    }

    fn access(&self) -> Access {
        self.access
    }

    fn alignment(&self) -> usize {
        self.alignment
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        DEVICE_IO.might_wait(&DEVICE_IO);
        self.check(|size| check_read(size, offset, buffer.len()))?;
        let length = buffer.len();
        let result = if self.is_aligned(buffer.as_ptr(), length, offset) {
            self.file.read_exact_at(buffer, offset.get())
        } else {
            self.read_unaligned(buffer, offset)
        };
        // The file was truncated since it was measured.
        result.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => {
                past_end(error.kind(), "read", self.size(), offset, length as u64)
            }
            _ => error,
        })
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        DEVICE_IO.might_wait(&DEVICE_IO);
        let plain =
            |request: &mut ReadRequest<'_>| request.result = self.read_at(request.buffer, request.offset);
        let fewest = if self.is_direct() { MIN_DIRECT_BATCH } else { MIN_RING_BATCH };
        if !self.ring || requests.len() < fewest {
            return requests.iter_mut().for_each(plain);
        }
        let size = self.known_size.load(Ordering::Relaxed);
        uring::run(
            &self.file,
            requests,
            |request| self.fits_ring(size, request.buffer, request.offset),
            plain,
        );
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        DEVICE_IO.might_wait(&DEVICE_IO);
        self.check(|size| check_write(self.access, size, offset, buffer.len() as u64))?;
        if !self.is_direct() {
            return self.file.write_all_at(buffer, offset.get());
        }
        if !self.is_aligned(buffer.as_ptr(), buffer.len(), offset) {
            return self.write_unaligned(buffer, offset);
        }
        let _shared = self.unaligned.read();
        self.file.write_all_at(buffer, offset.get())
    }

    /// Uses io_uring for direct I/O only. A buffered write is a copy into the page cache. The ring
    /// is no faster at that, and on some file systems hands each write to a worker thread.
    fn write_many(&self, requests: &mut [WriteRequest<'_>]) {
        DEVICE_IO.might_wait(&DEVICE_IO);
        let size = self.known_size.load(Ordering::Relaxed);
        let eligible = |request: &WriteRequest<'_>| self.fits_ring(size, request.buffer, request.offset);
        let ring = self.ring && self.is_direct() && self.access == Access::ReadWrite;
        if !ring || requests.len() < MIN_DIRECT_BATCH || !requests.iter().all(eligible) {
            for request in requests {
                request.result = self.write_at(request.buffer, request.offset);
            }
            return;
        }
        let _shared = self.unaligned.read();
        uring::run(&self.file, requests, eligible, |request| {
            request.result = self.file.write_all_at(request.buffer, request.offset.get());
        });
    }

    fn write_fua(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        DEVICE_IO.might_wait(&DEVICE_IO);
        if self.is_aligned(buffer.as_ptr(), buffer.len(), offset) {
            self.check(|size| check_write(self.access, size, offset, buffer.len() as u64))?;
            let _shared = self.is_direct().then(|| self.unaligned.read());
            if calls::write_dsync(&self.file, buffer, offset.get())? {
                return Ok(());
            }
        } else if self.is_whole_blocks(buffer.len(), offset) {
            self.check(|size| check_write(self.access, size, offset, buffer.len() as u64))?;
            let mut durable = true;
            self.write_copied(buffer, offset, |blocks, at| {
                durable = durable && calls::write_dsync(&self.file, blocks, at)?;
                if durable { Ok(()) } else { self.file.write_all_at(blocks, at) }
            })?;
            return if durable { Ok(()) } else { self.flush() };
        }
        self.write_at(buffer, offset)?;
        self.flush()
    }

    fn flush(&self) -> io::Result<()> {
        DEVICE_IO.might_wait(&DEVICE_IO);
        match self.access {
            Access::ReadWrite => self.file.sync_data(),
            Access::ReadOnly => Err(read_only()),
        }
    }

    /// Punches a hole in a file (reads as zeros); issues BLKDISCARD on a block device (reads as
    /// arbitrary bytes). On a block device only the whole sectors within the range are discarded.
    fn discard(&self, offset: PhysicalAddress, length: u64) -> io::Result<()> {
        self.check(|size| check_write(self.access, size, offset, length))?;
        let unsupported = |errno| match errno {
            Errno::OPNOTSUPP | Errno::NOSYS => io::Error::from(io::ErrorKind::Unsupported),
            _ => io::Error::from(errno),
        };
        if length == 0 {
            return Ok(());
        }
        let (start, file) = (offset.get(), &self.file);
        match self.backing {
            Backing::RegularFile => calls::zero_range(file, start, length, false),
            Backing::BlockDevice => calls::discard_sectors(file, start, length),
        }
        .map_err(unsupported)
    }

    fn clone_from_file(
        &self,
        source: BorrowedFd<'_>,
        from: u64,
        length: u64,
        offset: PhysicalAddress,
    ) -> io::Result<()> {
        self.check(|size| check_write(self.access, size, offset, length))?;
        match self.backing {
            // A length of 0 means "to the end" to the host.
            _ if length == 0 => Ok(()),
            Backing::RegularFile => {
                let _shared = self.is_direct().then(|| self.unaligned.read());
                Ok(calls::clone_range(&self.file, source, from, length, offset.get())?)
            }
            Backing::BlockDevice => Err(io::Error::from(io::ErrorKind::Unsupported)),
        }
    }

    /// Changes the host's extents only. Writes zeros where the host cannot do that, for example for
    /// a part of a block device's sector.
    fn write_zeroes(&self, offset: PhysicalAddress, length: u64, keep_space: bool) -> io::Result<()> {
        self.check(|size| check_write(self.access, size, offset, length))?;
        if length == 0 {
            return Ok(());
        }
        // An unaligned write of a neighbour would put old bytes back.
        let shared = self.is_direct().then(|| self.unaligned.read());
        match calls::zero_range(&self.file, offset.get(), length, keep_space) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(errno) => return Err(errno.into()),
        }
        drop(shared);
        fill_with_zeros(self, offset, length)
    }

    fn answers_later(&self) -> bool {
        self.waits() || self.direct_reads.is_some()
    }

    fn ring_file(&self, request: &RingTarget) -> Option<(BorrowedFd<'_>, PhysicalAddress)> {
        let reads = request.direction == Direction::Read;
        let (file, alignment, usable) = match &self.direct_reads {
            Some(direct) => (&direct.file, direct.alignment, reads),
            None => {
                let allowed = reads || self.access == Access::ReadWrite;
                (&*self.file, self.alignment, allowed && self.ring && self.is_direct())
            }
        };
        let (start, length) = (request.offset.get(), request.length as u64);
        let end = start.checked_add(length)?;
        let inside = length > 0 && end <= self.known_size.load(Ordering::Relaxed);
        let aligned = (request.address | request.length | start as usize) & (alignment - 1) == 0;
        // Comes last: it is a system call.
        let wanted = || self.direct_reads.as_ref().is_none_or(|direct| self.lacks(direct, start, length));
        (usable && inside && aligned && wanted()).then(|| (file.as_fd(), request.offset))
    }

    /// With direct I/O the request waits in a thread of its own: there is no ring, or the ring
    /// cannot carry it. A read of bytes that the host has cached is carried out here.
    fn start(self: Arc<Self>, mut op: StartedOp) {
        let cached = self.direct_reads.is_some() && op.direction() == Direction::Read;
        let offset = op.offset();
        if cached && calls::read_cached(&self.file, op.bytes_mut(), offset.get()) {
            op.complete(Ok(()));
        } else if self.is_direct() || cached {
            workers::run(Box::new(move || op.run(&*self)));
        } else {
            op.run(&*self);
        }
    }

    fn next_data(&self, offset: PhysicalAddress) -> Option<PhysicalAddress> {
        // Nothing here uses the file position.
        match rustix::fs::seek(&*self.file, rustix::fs::SeekFrom::Data(offset.get())) {
            Ok(data) => Some(PhysicalAddress(data)),
            Err(Errno::NXIO) => None,
            // Block devices and some hosts know no holes.
            Err(_) => Some(offset),
        }
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        // The host takes a length of 0 as "to the end".
        if let Some(length) = NonZeroU64::new(length) {
            calls::advise(&self.file, offset.get(), length, advice);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MemoryDevice, OpenOptions};
    use std::path::Path;

    #[test]
    fn zeroes_cover_the_range_and_nothing_else() {
        let image = image(1 << 20);
        for keep_space in [false, true] {
            let device = options(false).open(image.path()).unwrap();
            device.write_at(&vec![7; 1 << 20], PhysicalAddress(0)).unwrap();
            device.write_zeroes(PhysicalAddress(1000), 500_000, keep_space).unwrap();
            let bytes = std::fs::read(image.path()).unwrap();
            assert!(bytes[..1000].iter().chain(&bytes[501_000..]).all(|byte| *byte == 7));
            assert!(bytes[1000..501_000].iter().all(|byte| *byte == 0));
            assert_eq!(bytes.len(), 1 << 20);
            let error = device.write_zeroes(PhysicalAddress(1), 1 << 20, keep_space).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        }
    }

    fn options(direct: bool) -> OpenOptions {
        OpenOptions::new(Access::ReadWrite).direct(direct)
    }

    fn image(size: u64) -> tempfile::NamedTempFile {
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(size).unwrap();
        image
    }

    /// Opens a direct device; skips with a message if the temporary folder's file system has no
    /// direct I/O.
    fn direct(path: &Path) -> Option<FileDevice> {
        match options(true).open(path) {
            Ok(device) => Some(device),
            Err(error) if std::env::var_os("PAPILIO_REQUIRE_ALL").is_none_or(|value| value != "1") => {
                eprintln!("SKIPPED direct I/O: {error}");
                None
            }
            Err(error) => panic!("direct I/O is required: {error}"),
        }
    }

    /// Runs mixed requests on `device` and on a memory device, and compares all reads.
    pub(crate) fn exercise(device: &dyn Device) {
        let size = device.size();
        let model = MemoryDevice::new(size);
        device.write_at(&vec![0; size as usize], PhysicalAddress(0)).unwrap();
        let mut seed = 1u64;
        let mut random = |bound: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % bound
        };
        for round in 0..200u64 {
            let length = match round % 4 {
                0 => 1 + random(5000),
                1 => 4096 * (1 + random(4)),
                2 => 1 + random(600_000),
                _ => 512,
            };
            let mut offset = random(size - length);
            if round % 3 == 0 {
                offset -= offset % 4096;
            }
            let data: Vec<u8> = (0..length).map(|at| (at * 7 + round) as u8).collect();
            for target in [device, &model as &dyn Device] {
                match round % 5 {
                    0 => target.write_fua(&data, PhysicalAddress(offset)).unwrap(),
                    _ => target.write_at(&data, PhysicalAddress(offset)).unwrap(),
                }
            }
            let from = offset.saturating_sub(random(9000));
            let span = (length + random(9000)).min(size - from) as usize;
            let (mut ours, mut theirs) = (vec![1; span], vec![2; span]);
            device.read_at(&mut ours, PhysicalAddress(from)).unwrap();
            model.read_at(&mut theirs, PhysicalAddress(from)).unwrap();
            assert!(ours == theirs, "round {round}");
        }
        device.flush().unwrap();
        let (mut ours, mut theirs) = (vec![1; size as usize], vec![2; size as usize]);
        device.read_at(&mut ours, PhysicalAddress(0)).unwrap();
        model.read_at(&mut theirs, PhysicalAddress(0)).unwrap();
        assert!(ours == theirs);
    }

    #[test]
    fn buffered_and_direct_match_a_memory_device() {
        let image = image(2 << 20);
        exercise(&options(false).open(image.path()).unwrap());
        if let Some(device) = direct(image.path()) {
            assert!(device.alignment() >= 512);
            exercise(&device);
        }
    }

    #[test]
    fn unaligned_direct_writes_keep_neighbouring_writes() {
        let image = image(64 * 1024);
        let Some(device) = direct(image.path()) else { return };
        std::thread::scope(|scope| {
            for thread in 0..8u64 {
                let device = &device;
                scope.spawn(move || {
                    for at in (thread * 100..64 * 1024 - 100).step_by(800) {
                        device.write_at(&[thread as u8 + 1; 100], PhysicalAddress(at)).unwrap();
                    }
                });
            }
        });
        let mut content = vec![0; 64 * 1024];
        device.read_at(&mut content, PhysicalAddress(0)).unwrap();
        for (at, byte) in content[..64 * 1024 - 800].iter().enumerate() {
            assert_eq!(*byte as usize, at % 800 / 100 + 1, "at {at}");
        }
    }

    #[test]
    fn requests_past_the_end_fail() {
        let image = image(10_000);
        let device = options(false).open(image.path()).unwrap();
        let error = device.write_at(&[1; 2], PhysicalAddress(9_999)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        let error = device.read_at(&mut [0; 2], PhysicalAddress(9_999)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        assert!(error.to_string().contains("10000"), "{error}");
        assert_eq!(device.size(), 10_000);

        // Truncate and grow the file behind the device's back.
        image.as_file().set_len(5_000).unwrap();
        let error = device.read_at(&mut [0; 2], PhysicalAddress(9_000)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        image.as_file().set_len(20_000).unwrap();
        device.write_at(&[1], PhysicalAddress(19_999)).unwrap();

        device.resize(30_000).unwrap();
        assert_eq!(device.size(), 30_000);
        drop(device);
        if let Some(device) = direct(image.path()) {
            assert_eq!(device.size() % device.alignment() as u64, 0);
            assert!(device.size() <= 30_000 && device.size() > 25_000);
        }
    }

    #[test]
    fn read_only_device_refuses_changes() {
        let image = image(4096);
        let device = FileDevice::open(image.path(), Access::ReadOnly).unwrap();
        for result in [
            device.write_at(&[1], PhysicalAddress(0)),
            device.write_fua(&[1], PhysicalAddress(0)),
            device.flush(),
            device.discard(PhysicalAddress(0), 1),
            device.resize(1),
        ] {
            assert_eq!(result.unwrap_err().kind(), io::ErrorKind::ReadOnlyFilesystem);
        }
    }

    #[test]
    fn discard_punches_a_hole() {
        use std::os::unix::fs::MetadataExt;
        let image = image(1 << 20);
        let device = options(false).open(image.path()).unwrap();
        device.write_at(&vec![1; 1 << 20], PhysicalAddress(0)).unwrap();
        device.flush().unwrap();
        let before = image.as_file().metadata().unwrap().blocks();
        match device.discard(PhysicalAddress(4096), 900 * 1024) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
            result => result.unwrap(),
        }
        device.discard(PhysicalAddress(0), 0).unwrap();
        let mut content = vec![9; 1 << 20];
        device.read_at(&mut content, PhysicalAddress(0)).unwrap();
        let end = 4096 + 900 * 1024;
        assert!(content[..4096].iter().chain(&content[end..]).all(|byte| *byte == 1));
        assert!(content[4096..end].iter().all(|byte| *byte == 0));
        assert!(image.as_file().metadata().unwrap().blocks() < before);
        assert!(device.discard(PhysicalAddress(4096), 1 << 20).is_err());
    }

    #[test]
    fn advice_does_not_change_data() {
        let image = image(8192);
        let device = options(false).open(image.path()).unwrap();
        for advice in [Advice::Sequential, Advice::Random, Advice::WillNeed, Advice::DontNeed] {
            device.advise(PhysicalAddress(0), 8192, advice);
            device.advise(PhysicalAddress(u64::MAX), 0, advice);
            device.advise(PhysicalAddress(u64::MAX), u64::MAX, advice);
        }
        device.read_at(&mut [0; 8192], PhysicalAddress(0)).unwrap();
    }
}
