//! The undo file: the old content of every block that is about to be overwritten, so that the
//! devices can be set back byte by byte.
//!
//! Owns [`UndoLog`], which writes the file; [`UndoDevice`], the decorator that saves a block before
//! its first overwrite; and [`UndoFile`], which reads the file and restores the devices.
//!
//! The file starts with a header of 4096 bytes: identity of the file system, devices with sizes,
//! whether the file is complete, its length, a checksum. Records follow: device, offset, length,
//! checksum, old bytes. All numbers are little-endian, checksums are CRC-32C.
//!
//! The first records are the first superblock copies of the devices. A record with the bit
//! [`NEW`] has the content that a superblock is about to get. So each state that a crash leaves is
//! known: a superblock with any other sector is that of another file system, or of a later commit.
//!
//! **Invariants**
//! - A record is durable before the write that it covers reaches the device.
//! - A block is saved once: its first old content is that of the start.
//! - A file that was not completed may end in a torn record, whose block was not overwritten yet. A
//!   completed file has exactly the length that its header says.
//!
//! **Locks**
//! - `state`: held while blocks are read and saved, not across the write to the device.

use crate::device::{Access, Advice, Device, ReadRequest};
use papilio_format::{ChecksumType, PhysicalAddress, Uuid};
use papilio_locks::Mutex;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a block, the unit that is saved once.
const BLOCK: u64 = 4096;
const HEADER: usize = 4096;
const RECORD_HEADER: usize = 24;
/// Set in the device number of a record of the new content of a superblock.
const NEW: u32 = 1 << 31;
/// Bytes that a device writes completely or not at all.
const SECTOR: usize = 512;
/// Place and size of the first superblock copy of a device.
const SUPERBLOCK: (u64, usize) = (64 << 10, 4096);
const MAGIC: &[u8; 8] = b"PAPUNDO2";
/// The most devices that a header has room for.
const MOST_DEVICES: usize = 100;
/// The most bytes of a record; the writer's are much smaller than that.
const MOST_BYTES: u32 = 64 << 20;

fn crc(parts: &[&[u8]]) -> u32 {
    let sum = ChecksumType::Crc32c.compute(&parts.concat());
    let bytes = sum.padded();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn invalid(text: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.into())
}

/// One device as the header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UndoMember {
    /// The number of the device in its file system.
    pub devid: u64,
    /// The UUID of the device.
    pub uuid: Uuid,
    /// Bytes of the device.
    pub size: u64,
}

/// The file system and the devices that an undo file belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UndoIdentity {
    /// The UUID of the file system.
    pub fsid: Uuid,
    /// The generation of the superblock; a later commit makes the undo file worthless.
    pub generation: u64,
    /// The devices, in the order of the records' numbers.
    pub members: Vec<UndoMember>,
}

impl UndoIdentity {
    fn encode(&self, length: Option<u64>) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.fsid.as_bytes());
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(length.unwrap_or_default().to_le_bytes());
        bytes.extend((self.members.len() as u64).to_le_bytes());
        for member in &self.members {
            bytes.extend(member.devid.to_le_bytes());
            bytes.extend(member.uuid.as_bytes());
            bytes.extend(member.size.to_le_bytes());
        }
        bytes.resize(HEADER - 4, 0);
        let sum = crc(&[&bytes]);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Decodes a header; also returns the file's length if it is complete.
    fn decode(bytes: &[u8]) -> io::Result<(Self, Option<u64>)> {
        if bytes.len() < HEADER || bytes[..8] != MAGIC[..] {
            return Err(invalid("it is not an undo file"));
        }
        let (body, sum) = bytes[..HEADER].split_at(HEADER - 4);
        if number(sum) != u64::from(crc(&[body])) {
            return Err(invalid("the header of the undo file has a wrong checksum"));
        }
        let uuid = |at: usize| {
            let mut uuid = [0; 16];
            uuid.copy_from_slice(&body[at..at + 16]);
            Uuid::from_bytes(uuid)
        };
        let field = |at: usize| number(&body[at..at + 8]);
        let count = field(40);
        if count > MOST_DEVICES as u64 {
            return Err(invalid("the header of the undo file names too many devices"));
        }
        let member = |index: usize| {
            let at = 48 + 32 * index;
            UndoMember { devid: field(at), uuid: uuid(at + 8), size: field(at + 24) }
        };
        let members = (0..count as usize).map(member).collect();
        let length = field(32);
        Ok((Self { fsid: uuid(8), generation: field(24), members }, (length > 0).then_some(length)))
    }
}

/// Returns the first superblock copy; `None` of a device that is too small for one.
fn superblock(device: &dyn Device) -> io::Result<Option<Vec<u8>>> {
    let (place, size) = SUPERBLOCK;
    if device.size() < place + size as u64 {
        return Ok(None);
    }
    let mut bytes = vec![0; size];
    device.read_at(&mut bytes, PhysicalAddress(place))?;
    Ok(Some(bytes))
}

/// Returns a record: `old` is the content at `start` of a device.
fn record(number: u32, start: u64, old: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER + old.len());
    record.extend(number.to_le_bytes());
    record.extend(start.to_le_bytes());
    record.extend((old.len() as u32).to_le_bytes());
    let sum = crc(&[&record, old]);
    record.extend(sum.to_le_bytes());
    record.resize(RECORD_HEADER, 0);
    record.extend(old);
    record
}

#[derive(Debug)]
struct UndoState {
    file: File,
    length: u64,
    /// By device and block.
    saved: HashSet<(u32, u64)>,
    /// The first error of the file.
    failure: Option<String>,
}

impl UndoState {
    /// Writes records to the end of the file, durably.
    fn append(&mut self, records: &[Vec<u8>]) -> io::Result<()> {
        let mut at = self.length;
        for record in records {
            self.file.write_all_at(record, at)?;
            at += record.len() as u64;
        }
        self.file.sync_all()?;
        self.length = at;
        Ok(())
    }
}

/// An undo file that is being written.
#[derive(Debug)]
pub struct UndoLog {
    identity: UndoIdentity,
    state: Mutex<UndoState>,
}

impl UndoLog {
    /// Creates the file, which must not exist, and makes its header durable.
    ///
    /// # Errors
    /// The host's error; `InvalidInput` for more devices than the header has room for.
    pub fn create(path: &Path, identity: UndoIdentity) -> io::Result<Self> {
        if identity.members.len() > MOST_DEVICES {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many devices for an undo file"));
        }
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.write_all_at(&identity.encode(None), 0)?;
        file.sync_all()?;
        if let Some(folder) = path.parent() {
            let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
            File::open(folder)?.sync_all()?;
        }
        let state = UndoState { file, length: HEADER as u64, saved: HashSet::new(), failure: None };
        Ok(Self { identity, state: Mutex::new(state) })
    }

    /// Saves the superblocks of the devices, which are in the order of the identity's members, and
    /// returns the decorators of the devices.
    ///
    /// # Errors
    /// The host's error.
    pub fn attach(self: &Arc<Self>, devices: &[Arc<dyn Device>]) -> io::Result<Vec<Arc<dyn Device>>> {
        assert_eq!(devices.len(), self.identity.members.len(), "one device for each member");
        let (place, size) = SUPERBLOCK;
        for (number, device) in devices.iter().enumerate() {
            if device.size() >= place + size as u64 {
                self.save(number as u32, &**device, place, size as u64, None)?;
            }
        }
        let attach = |(number, inner): (usize, &Arc<dyn Device>)| -> Arc<dyn Device> {
            Arc::new(UndoDevice { inner: Arc::clone(inner), number: number as u32, log: Arc::clone(self) })
        };
        Ok(devices.iter().enumerate().map(attach).collect())
    }

    /// Returns the bytes of blocks that were saved.
    pub fn saved_bytes(&self) -> u64 {
        self.state.lock().saved.len() as u64 * BLOCK
    }

    /// Returns why the file could not be written, if so; the write to the device did not happen.
    pub fn failure(&self) -> Option<String> {
        self.state.lock().failure.clone()
    }

    /// Marks the file as complete: nothing more will be written to the devices.
    ///
    /// # Errors
    /// The host's error.
    pub fn complete(&self) -> io::Result<()> {
        let state = self.state.lock();
        state.file.write_all_at(&self.identity.encode(Some(state.length)), 0)?;
        state.file.sync_all()
    }

    /// Saves the blocks of a range that were not saved yet, durably; and the superblock that is
    /// about to be written, if the range has one. `new` is the new content of the range.
    fn save(
        &self,
        number: u32,
        device: &dyn Device,
        offset: u64,
        length: u64,
        new: Option<&[u8]>,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        let blocks = offset / BLOCK..offset.saturating_add(length).div_ceil(BLOCK);
        let unsaved: Vec<u64> = blocks.filter(|block| !state.saved.contains(&(number, *block))).collect();
        let mut records = Vec::new();
        for block in &unsaved {
            let start = block * BLOCK;
            let mut old = vec![0; BLOCK.min(device.size().saturating_sub(start)) as usize];
            device.read_at(&mut old, PhysicalAddress(start))?;
            records.push(record(number, start, &old));
        }
        if let Some(new) = new
            && let Some(superblock) = new_superblock(device, offset, new)?
        {
            records.push(record(number | NEW, SUPERBLOCK.0, &superblock));
        }
        if records.is_empty() {
            return Ok(());
        }
        let written = state.append(&records);
        if let Err(error) = &written {
            state.failure.get_or_insert_with(|| error.to_string());
        }
        written?;
        state.saved.extend(unsaved.into_iter().map(|block| (number, block)));
        Ok(())
    }
}

/// Returns the first superblock copy as it is after a write, if that changes it.
fn new_superblock(device: &dyn Device, offset: u64, new: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let (place, size) = SUPERBLOCK;
    let (from, to) = (offset.max(place), (offset + new.len() as u64).min(place + size as u64));
    if from >= to {
        return Ok(None);
    }
    let Some(mut bytes) = superblock(device)? else { return Ok(None) };
    let part = &new[(from - offset) as usize..(to - offset) as usize];
    bytes[(from - place) as usize..(to - place) as usize].copy_from_slice(part);
    Ok(Some(bytes))
}

/// A decorator that saves blocks in an undo file before they change, made by [`UndoLog::attach`].
#[derive(Debug)]
pub struct UndoDevice {
    inner: Arc<dyn Device>,
    number: u32,
    log: Arc<UndoLog>,
}

impl Device for UndoDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn access(&self) -> Access {
        self.inner.access()
    }

    fn alignment(&self) -> usize {
        self.inner.alignment()
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> io::Result<()> {
        self.inner.read_at(buffer, offset)
    }

    fn read_many(&self, requests: &mut [ReadRequest<'_>]) {
        self.inner.read_many(requests);
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> io::Result<()> {
        self.log.save(self.number, &*self.inner, offset.0, buffer.len() as u64, Some(buffer))?;
        self.inner.write_at(buffer, offset)
    }

    fn flush(&self) -> io::Result<()> {
        self.inner.flush()
    }

    /// Does nothing: a discard cannot be taken back.
    fn discard(&self, _offset: PhysicalAddress, _length: u64) -> io::Result<()> {
        Err(io::Error::from(io::ErrorKind::Unsupported))
    }

    fn advise(&self, offset: PhysicalAddress, length: u64, advice: Advice) {
        self.inner.advise(offset, length, advice);
    }
}

/// An undo file that was read and verified.
#[derive(Debug)]
pub struct UndoFile {
    file: File,
    identity: UndoIdentity,
    /// Device, offset on it, place of the old bytes in the file, length.
    records: Vec<(u32, u64, u64, u32)>,
    /// Whether the writer completed it.
    pub complete: bool,
    /// Device and place in the file of all contents that the first superblock copies had.
    superblocks: Vec<(u32, u64)>,
}

impl UndoFile {
    /// Reads a file and verifies all its checksums.
    ///
    /// # Errors
    /// The host's error; `InvalidData` for a file that is damaged, cut short or no undo file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let mut header = Vec::new();
        file.by_ref().take(HEADER as u64).read_to_end(&mut header)?;
        let (identity, complete) = UndoIdentity::decode(&header)?;
        let length = file.metadata()?.len();
        if complete.is_some_and(|complete| complete != length) {
            return Err(invalid(format!("the undo file has {length} bytes, its header says otherwise")));
        }
        let (mut records, mut superblocks) = (Vec::new(), Vec::new());
        let mut at = HEADER as u64;
        while at < length {
            match read_record(&file, at, length, &identity)? {
                Some((device, offset, place, size)) => {
                    if (offset, size as usize) == SUPERBLOCK {
                        superblocks.push((device & !NEW, place));
                    }
                    if device & NEW == 0 {
                        records.push((device, offset, place, size));
                    }
                    at = place + u64::from(size);
                }
                // The end of an interrupted repair: the write that it covers did not happen.
                None if complete.is_none() => break,
                None => return Err(invalid(format!("the record at {at} of the undo file is damaged"))),
            }
        }
        Ok(Self { file, identity, records, complete: complete.is_some(), superblocks })
    }

    /// The file system and the devices that the file belongs to.
    pub fn identity(&self) -> &UndoIdentity {
        &self.identity
    }

    /// Whether the first superblock copy of a device is one that the member had before the repair
    /// or in its course, each sector for itself: a write may have been interrupted. A commit
    /// changes a superblock, and so does the log of an fsync, which keeps the generation.
    ///
    /// # Errors
    /// The host's error.
    pub fn knows(&self, member: usize, device: &dyn Device) -> io::Result<bool> {
        let Some(found) = superblock(device)? else { return Ok(true) };
        let mut known = Vec::new();
        for (_, place) in self.superblocks.iter().filter(|(number, _)| *number as usize == member) {
            let mut bytes = vec![0; SUPERBLOCK.1];
            self.file.read_exact_at(&mut bytes, *place)?;
            known.push(bytes);
        }
        let same = |at: usize| known.iter().any(|known| known[at..at + SECTOR] == found[at..at + SECTOR]);
        Ok((0..SUPERBLOCK.1).step_by(SECTOR).all(same))
    }

    /// Writes all old blocks back, and flushes. `devices` are in the order of the identity's
    /// members. A restore that was interrupted can be repeated.
    ///
    /// # Errors
    /// `InvalidInput` for a device of another size, before anything is written; the host's error.
    pub fn restore(&self, devices: &[Arc<dyn Device>]) -> io::Result<u64> {
        let sizes = self.identity.members.iter().map(|member| member.size);
        if !sizes.eq(devices.iter().map(|device| device.size())) {
            let text = "the devices have other sizes than those of the undo file";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let mut restored = 0;
        for &(device, offset, place, length) in &self.records {
            let mut old = vec![0; length as usize];
            self.file.read_exact_at(&mut old, place)?;
            devices[device as usize].write_at(&old, PhysicalAddress(offset))?;
            restored += u64::from(length);
        }
        let written = devices.iter().filter(|device| device.access() == Access::ReadWrite);
        written.into_iter().try_for_each(|device| device.flush())?;
        Ok(restored)
    }
}

/// Reads one record; `None` if it is torn or damaged.
fn read_record(
    file: &File,
    at: u64,
    length: u64,
    identity: &UndoIdentity,
) -> io::Result<Option<(u32, u64, u64, u32)>> {
    let place = at + RECORD_HEADER as u64;
    if place > length {
        return Ok(None);
    }
    let mut header = [0; RECORD_HEADER];
    file.read_exact_at(&mut header, at)?;
    let (device, offset) = (number(&header[..4]) as u32, number(&header[4..12]));
    let size = number(&header[12..16]) as u32;
    let inside = identity
        .members
        .get((device & !NEW) as usize)
        .is_some_and(|member| offset.checked_add(u64::from(size)).is_some_and(|end| end <= member.size));
    if !inside || size > MOST_BYTES || place + u64::from(size) > length {
        return Ok(None);
    }
    let mut old = vec![0; size as usize];
    file.read_exact_at(&mut old, place)?;
    let good = number(&header[16..20]) == u64::from(crc(&[&header[..16], &old]));
    Ok(good.then_some((device, offset, place, size)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::MemoryDevice;

    const SIZE: u64 = 9 * BLOCK + 512;

    fn content(device: &MemoryDevice) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        bytes
    }

    struct Case {
        folder: tempfile::TempDir,
        inner: Vec<Arc<MemoryDevice>>,
        log: Arc<UndoLog>,
        devices: Vec<Arc<dyn Device>>,
    }

    fn identity() -> UndoIdentity {
        let member = |devid| UndoMember { devid, uuid: Uuid::from_u128(devid.into()), size: SIZE };
        UndoIdentity { fsid: Uuid::from_u128(7), generation: 5, members: vec![member(1), member(2)] }
    }

    impl Case {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let inner: Vec<_> = (1..3u8)
                .map(|fill| {
                    let device = MemoryDevice::new(SIZE);
                    device.write_at(&[fill; SIZE as usize], PhysicalAddress(0)).unwrap();
                    Arc::new(device)
                })
                .collect();
            let log = Arc::new(UndoLog::create(&folder.path().join("undo"), identity()).unwrap());
            let dynamic: Vec<Arc<dyn Device>> = inner.iter().map(|one| one.clone() as _).collect();
            let devices = log.attach(&dynamic).unwrap();
            Self { folder, inner, log, devices }
        }

        fn open(&self) -> io::Result<UndoFile> {
            UndoFile::open(&self.folder.path().join("undo"))
        }

        fn restore(&self) -> io::Result<u64> {
            let devices: Vec<Arc<dyn Device>> = self.inner.iter().map(|one| one.clone() as _).collect();
            self.open()?.restore(&devices)
        }
    }

    #[test]
    fn every_byte_is_restored() {
        for complete in [false, true] {
            let case = Case::new();
            let before: Vec<_> = case.inner.iter().map(|device| content(device)).collect();
            case.devices[0].write_at(&[8; 10], PhysicalAddress(4090)).unwrap();
            case.devices[0].write_at(&[9; 5000], PhysicalAddress(0)).unwrap();
            case.devices[1].write_fua(&[7; 512], PhysicalAddress(9 * BLOCK)).unwrap();
            assert!(case.devices[0].discard(PhysicalAddress(0), 4096).is_err());
            assert_eq!(case.log.saved_bytes(), 3 * BLOCK);
            if complete {
                case.log.complete().unwrap();
            }
            assert_eq!(case.open().unwrap().complete, complete);
            assert_eq!(case.open().unwrap().identity(), &identity());
            assert_eq!(case.restore().unwrap(), 2 * BLOCK + 512);
            for (device, before) in case.inner.iter().zip(&before) {
                assert!(content(device) == *before);
            }
        }
    }

    #[test]
    fn a_superblock_of_each_moment_is_known() {
        let folder = tempfile::tempdir().unwrap();
        let size = 128 << 10;
        let device = Arc::new(MemoryDevice::new(size));
        let place = PhysicalAddress(SUPERBLOCK.0);
        device.write_at(&[1; 4096], place).unwrap();
        let member = UndoMember { devid: 1, uuid: Uuid::from_u128(1), size };
        let identity = UndoIdentity { fsid: Uuid::from_u128(7), generation: 5, members: vec![member] };
        let path = folder.path().join("undo");
        let log = Arc::new(UndoLog::create(&path, identity).unwrap());
        let attached = log.attach(&[device.clone() as _]).unwrap().remove(0);
        let knows = |bytes: &[u8]| {
            device.write_at(bytes, place).unwrap();
            UndoFile::open(&path).unwrap().knows(0, &*device).unwrap()
        };
        assert!(knows(&[1; 4096]) && !knows(&[2; 4096]));
        device.write_at(&[1; 4096], place).unwrap();
        attached.write_at(&[2; 4096], place).unwrap();
        attached.write_at(&[3; 8192], PhysicalAddress(SUPERBLOCK.0 - 4096)).unwrap();
        log.complete().unwrap();
        let torn = |first: u8, second: u8| [vec![first; 512], vec![second; 4096 - 512]].concat();
        assert!(knows(&torn(1, 1)) && knows(&torn(2, 1)) && knows(&torn(1, 3)) && knows(&torn(3, 3)));
        assert!(!knows(&torn(4, 1)) && !knows(&torn(1, 4)));
        UndoFile::open(&path).unwrap().restore(&[device.clone() as _]).unwrap();
        assert!(knows(&[1; 4096]));
    }

    #[test]
    fn damaged_files_are_refused() {
        let case = Case::new();
        let path = case.folder.path().join("undo");
        case.devices[0].write_at(&[8; 9000], PhysicalAddress(0)).unwrap();
        assert!(UndoLog::create(&path, identity()).is_err(), "it exists");
        let whole = std::fs::read(&path).unwrap();
        // A torn record at the end of an interrupted repair is left out.
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(case.restore().unwrap(), 2 * BLOCK);
        std::fs::write(&path, &whole).unwrap();
        case.log.complete().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 100, HEADER, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            assert_eq!(case.open().unwrap_err().kind(), io::ErrorKind::InvalidData, "cut at {cut}");
        }
        for flip in [3, 60, HEADER + 2, HEADER + 200, whole.len() - 1] {
            let mut bytes = whole.clone();
            bytes[flip] ^= 4;
            std::fs::write(&path, &bytes).unwrap();
            assert_eq!(case.open().unwrap_err().kind(), io::ErrorKind::InvalidData, "flip at {flip}");
        }
        std::fs::write(&path, &whole).unwrap();
        let other: Vec<Arc<dyn Device>> =
            vec![Arc::new(MemoryDevice::new(SIZE)), Arc::new(MemoryDevice::new(SIZE + 1))];
        let error = case.open().unwrap().restore(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
