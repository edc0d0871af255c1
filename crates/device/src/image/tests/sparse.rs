//! Tests of images that grow by units: VMDK and VHDX, with a model, losses of power and qemu-img as
//! the judges.

use super::super::sparse::{Growing, SparseDevice};
use super::super::{vhdx, vmdk};
use super::*;
use crate::device::check_write;
use std::sync::Mutex;

/// Name of the format, its options and the size of the disk.
const FORMATS: [(&str, &str, u64); 6] = [
    ("vmdk", "subformat=monolithicSparse", SIZE),
    ("vmdk", "subformat=monolithicFlat", SIZE),
    // Two extents.
    ("vmdk", "subformat=twoGbMaxExtentSparse", (2 << 30) + SIZE),
    ("vmdk", "subformat=twoGbMaxExtentFlat", (2 << 30) + SIZE),
    ("vhdx", "subformat=dynamic,block_size=1048576", SIZE),
    ("vhdx", "subformat=fixed,block_size=1048576", SIZE),
];

fn create(path: &Path, format: &str, options: &str, size: u64) {
    let (path, size) = (path.to_str().unwrap(), size.to_string());
    run("qemu-img", &["create", "-q", "-f", format, "-o", options, path, &size]);
}

/// Asserts that qemu-img finds no fault in an image, where it can look for some.
fn assert_checked(path: &Path, format: &str, options: &str) {
    if !options.contains("Flat") {
        run("qemu-img", &["check", "-q", "-f", format, path.to_str().unwrap()]);
    }
}

#[test]
fn images_match_a_memory_device() {
    if !has("qemu-img") {
        return;
    }
    for (format, options, size) in FORMATS {
        let folder = folder();
        let (path, raw) = (folder.path().join("disk"), folder.path().join("raw"));
        create(&path, format, options, size);
        let model = MemoryDevice::new(size);
        let mut seed = 7;
        // Around the end of the disk, which is also that of the first of two extents.
        let base = size - SIZE - (size - SIZE).min(SIZE / 2);
        let span = size - base;
        for round in 0..4u64 {
            let device = open(&path, Access::ReadWrite).unwrap();
            assert_eq!(device.size(), size);
            for step in 0..60u64 {
                let at = base + random(&mut seed, span - 1);
                let length = (1 + random(&mut seed, 150_000)).min(size - at);
                let place = PhysicalAddress(at);
                if step % 10 == 9 {
                    // Reads as anything afterwards, so both get the same bytes.
                    device.discard(place, length).unwrap();
                }
                if step % 7 == 3 {
                    device.write_zeroes(place, length, step % 2 == 0).unwrap();
                    model.write_zeroes(place, length, false).unwrap();
                } else {
                    let bytes: Vec<u8> = (0..length).map(|index| (index * 3 + step + round) as u8).collect();
                    device.write_at(&bytes, place).unwrap();
                    model.write_at(&bytes, place).unwrap();
                }
                if step % 20 == 19 {
                    device.flush().unwrap();
                }
                let mut read = [vec![1; length as usize], vec![2; length as usize]];
                device.read_at(&mut read[0], place).unwrap();
                model.read_at(&mut read[1], place).unwrap();
                assert!(read[0] == read[1], "{options}: {length} bytes at {at}");
            }
            // The last writes become durable when the device is closed.
            assert!(device.write_at(&[0; 2], PhysicalAddress(size - 1)).is_err());
            assert!(matches!(open(&path, Access::ReadOnly), Err(OpenErrorKind::InUseByProcess)));
        }
        let (ours, mut bytes) =
            (open(&path, Access::ReadOnly).unwrap(), [vec![0; span as usize], vec![1; span as usize]]);
        ours.read_at(&mut bytes[0], PhysicalAddress(base)).unwrap();
        model.read_at(&mut bytes[1], PhysicalAddress(base)).unwrap();
        assert!(bytes[0] == bytes[1], "{options}");
        for refused in
            [ours.write_at(&[1], PhysicalAddress(0)), ours.flush(), ours.discard(PhysicalAddress(0), 1)]
        {
            assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        }
        drop(ours);
        assert_checked(&path, format, options);
        let file = std::fs::File::create(&raw).unwrap();
        file.set_len(size).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &bytes[1], base).unwrap();
        let (path, raw) = (path.to_str().unwrap(), raw.to_str().unwrap());
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", format, raw, path]);
    }
}

#[test]
fn threads_add_units_at_once() {
    if !has("qemu-img") {
        return;
    }
    for (format, options, size) in [FORMATS[0], FORMATS[4]] {
        let folder = folder();
        let path = folder.path().join("disk");
        create(&path, format, options, size);
        let device = open(&path, Access::ReadWrite).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let device = &device;
                scope.spawn(move || {
                    for step in 0..128 {
                        let at = PhysicalAddress((step * 4 + thread) * 16384);
                        let value = (thread * 60 + step % 60) as u8 + 1;
                        device.write_at(&[value; 16384], at).unwrap();
                        let mut bytes = [0; 16384];
                        device.read_at(&mut bytes, at).unwrap();
                        assert!(bytes.iter().all(|byte| *byte == value));
                        if step % 32 == 0 {
                            device.flush().unwrap();
                        }
                    }
                });
            }
        });
        drop(device);
        assert_checked(&path, format, options);
        let device = open(&path, Access::ReadOnly).unwrap();
        let mut bytes = vec![0; SIZE as usize];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        for (index, block) in bytes.chunks(16384).enumerate() {
            let wanted = (index % 4 * 60 + index / 4 % 60) as u8 + 1;
            assert!(block.iter().all(|byte| *byte == wanted), "{options}: block {index}");
        }
    }
}

#[test]
fn only_writers_change_an_image() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    for (format, options, size) in FORMATS {
        let path = folder.path().join("disk");
        create(&path, format, options, size);
        let start = |path: &Path| {
            let bytes = std::fs::read(path).unwrap();
            bytes[..bytes.len().min(4 << 20)].to_vec()
        };
        let before = start(&path);
        let device = open(&path, Access::ReadWrite).unwrap();
        device.read_at(&mut [0; 9], PhysicalAddress(5)).unwrap();
        device.flush().unwrap();
        drop(device);
        assert!(start(&path) == before, "{options}");
        // A program that has the image as a parent sees that it changed.
        let device = open(&path, Access::ReadWrite).unwrap();
        device.write_at(&[3], PhysicalAddress(5)).unwrap();
        assert!(start(&path) != before, "{options}");
        if options.ends_with("monolithicSparse") {
            assert_eq!(start(&path)[72], 1, "open");
        }
        device.flush().unwrap();
        drop(device);
        if format == "vmdk" {
            let cid = |bytes: &[u8]| {
                let text = String::from_utf8_lossy(bytes).into_owned();
                let line = text.lines().find_map(|line| line.strip_prefix("CID=").map(str::to_owned));
                line.unwrap()
            };
            let after = start(&path);
            // qemu-img writes no leading zeros: one identifier in 16 has fewer than eight digits.
            let (old, new) = (cid(&before), cid(&after));
            assert!(old.len() == new.len() && old != new, "{options}: {old}, then {new}");
            if options.ends_with("monolithicSparse") {
                assert_eq!(after[72], 0, "closed");
            }
        } else {
            // Both headers are current, and have new identifiers.
            let identifiers = |bytes: &[u8]| [64, 128].map(|kib: usize| bytes[kib << 10..][16..48].to_vec());
            let [first, second] = identifiers(&start(&path));
            assert_eq!(first, second);
            assert!(!identifiers(&before).contains(&first));
        }
        assert_checked(&path, format, options);
    }
}

/// Opens, writes and flushes an image with a few wrong bytes.
#[test]
fn writing_to_a_damaged_image_is_no_panic() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    for (format, options, size) in [FORMATS[0], FORMATS[4]] {
        let path = folder.path().join("disk");
        create(&path, format, options, size);
        let device = open(&path, Access::ReadWrite).unwrap();
        device.write_at(&content()[..3 << 20], PhysicalAddress(0)).unwrap();
        drop(device);
        let good = std::fs::read(&path).unwrap();
        let mut seed = 41;
        let (mut opened, mut refused) = (0, 0);
        for _ in 0..100 {
            let mut bytes = good.clone();
            for _ in 0..=random(&mut seed, 3) {
                let area = match format {
                    "vmdk" => [0..80, 512..600, 0..70_000][random(&mut seed, 3) as usize].clone(),
                    _ => [0, 64, 128, 192, 256, 1024, 2048, 2112, 3072]
                        .map(|kib| kib << 10..(kib << 10) + 512)[random(&mut seed, 9) as usize]
                        .clone(),
                };
                let at = area.start + random(&mut seed, (area.end - area.start) as u64) as usize;
                bytes[at] = random(&mut seed, 256) as u8;
            }
            std::fs::write(&path, &bytes).unwrap();
            match open(&path, Access::ReadWrite) {
                Err(_) => refused += 1,
                Ok(device) => {
                    opened += 1;
                    let last = device.size().saturating_sub(70_000);
                    for at in [0, 2 << 20, 5 << 20, last] {
                        let _ = device.write_at(&[7; 70_000], PhysicalAddress(at));
                    }
                    let _ = device.flush();
                }
            }
        }
        assert!(opened > 5 && refused > 5, "{format}: {opened} opened, {refused} refused");
    }
}

#[test]
fn overlapping_units_are_not_written() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    let path = folder.path().join("disk");
    create(&path, "vhdx", FORMATS[4].1, SIZE);
    let device = open(&path, Access::ReadWrite).unwrap();
    device.write_at(&[1], PhysicalAddress(0)).unwrap();
    device.write_at(&[2], PhysicalAddress(1 << 20)).unwrap();
    drop(device);
    let good = std::fs::read(&path).unwrap();
    let table = 2 << 20;
    let places = |first: u64| {
        let mut bytes = good.clone();
        bytes[table..table + 8].copy_from_slice(&(first << 20 | 6).to_le_bytes());
        std::fs::write(&path, bytes).unwrap();
        open(&path, Access::ReadWrite).map(drop)
    };
    let second = u64::from_le_bytes(good[table + 8..][..8].try_into().unwrap()) >> 20;
    for (first, reason) in
        [(second, "overlap"), (1, "overlap"), (3, "overlap"), (1 << 20, "outside"), (0, "damaged")]
    {
        let text = places(first).unwrap_err().to_string();
        assert!(text.contains(reason), "block at {first} MiB: {text}");
    }
    places(second - 1).unwrap();
}

/// A file whose writes may be lost until it is flushed.
#[derive(Debug)]
struct Losing {
    state: Mutex<LosingState>,
}

#[derive(Debug, Default, Clone)]
struct LosingState {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Writes since the last flush: place and bytes.
    pending: Vec<(usize, Vec<u8>)>,
    /// Whether the host has no space left. A write then stops in the middle.
    full: bool,
}

impl Losing {
    fn new(bytes: Vec<u8>) -> Self {
        let state = LosingState { durable: bytes.clone(), now: bytes, ..LosingState::default() };
        Self { state: Mutex::new(state) }
    }

    /// The file after a loss of power: each sector since the last flush is written or not.
    fn lose(&self, seed: &mut u64) -> Vec<u8> {
        let state = self.state.lock().unwrap().clone();
        let mut bytes = state.durable;
        let lost = random(seed, 4);
        for (place, written) in state.pending {
            let mut at = 0;
            while at < written.len() {
                let end = (at + 512 - (place + at) % 512).min(written.len());
                if random(seed, 4) >= lost {
                    if bytes.len() < place + end {
                        bytes.resize(place + end, 0);
                    }
                    bytes[place + at..place + end].copy_from_slice(&written[at..end]);
                }
                at = end;
            }
        }
        bytes
    }
}

impl Growing for Losing {
    fn set_size(&self, size: u64) -> std::io::Result<()> {
        self.state.lock().unwrap().now.resize(size as usize, 0);
        Ok(())
    }
}

impl Device for Losing {
    fn name(&self) -> &'static str {
        "losing"
    }

    fn size(&self) -> u64 {
        self.state.lock().unwrap().now.len() as u64
    }

    fn access(&self) -> Access {
        Access::ReadWrite
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> std::io::Result<()> {
        crate::device::check_read(self.size(), offset, buffer.len())?;
        let at = offset.get() as usize;
        buffer.copy_from_slice(&self.state.lock().unwrap().now[at..at + buffer.len()]);
        Ok(())
    }

    fn write_at(&self, buffer: &[u8], offset: PhysicalAddress) -> std::io::Result<()> {
        check_write(Access::ReadWrite, self.size(), offset, buffer.len() as u64)?;
        let (at, mut state) = (offset.get() as usize, self.state.lock().unwrap());
        if state.full {
            let half = buffer.len() / 2;
            state.now[at..at + half].copy_from_slice(&buffer[..half]);
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        state.now[at..at + buffer.len()].copy_from_slice(buffer);
        state.pending.push((at, buffer.to_vec()));
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap();
        state.durable = state.now.clone();
        state.pending.clear();
        Ok(())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> std::io::Result<()> {
        Ok(())
    }
}

fn open_losing(format: &str, file: Losing) -> (Arc<Losing>, SparseDevice) {
    let file = Arc::new(file);
    let growing = Arc::clone(&file) as Arc<dyn Growing>;
    let device = if format == "vmdk" { vmdk::open_writable(growing) } else { vhdx::open_writable(growing) };
    (file, device.unwrap())
}

/// After a loss of power an image is whole, and has the bytes of the last flush. Later bytes are
/// the old or the new ones, never those of another unit.
#[test]
fn a_loss_of_power_keeps_what_was_flushed() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    for (format, options, _) in [FORMATS[0], FORMATS[4]] {
        let path = folder.path().join("disk");
        create(&path, format, options, SIZE);
        let empty = std::fs::read(&path).unwrap();
        let mut seed = 17;
        for history in 0..4u32 {
            let (file, device) = open_losing(format, Losing::new(empty.clone()));
            let mut flushed = vec![0; SIZE as usize];
            let mut now = flushed.clone();
            // Writes since the last flush: start, end and value.
            let mut since: Vec<(usize, usize, u8)> = Vec::new();
            for step in 1..=25u8 {
                let at = random(&mut seed, SIZE - 1) as usize;
                let length = (1 + random(&mut seed, 100_000) as usize).min(SIZE as usize - at);
                device.write_at(&vec![step; length], PhysicalAddress(at as u64)).unwrap();
                now[at..at + length].fill(step);
                since.push((at, at + length, step));
                if random(&mut seed, 5) == 0 {
                    device.flush().unwrap();
                    flushed.copy_from_slice(&now);
                    since.clear();
                }
                let lost = file.lose(&mut seed);
                if history == 0 {
                    let copy = folder.path().join("lost");
                    std::fs::write(&copy, &lost).unwrap();
                    assert_checked(&copy, format, options);
                }
                let (_, after) = open_losing(format, Losing::new(lost));
                let mut found = vec![0; SIZE as usize];
                after.read_at(&mut found, PhysicalAddress(0)).unwrap();
                let later = |at: usize, value: u8| {
                    since.iter().any(|write| (write.0..write.1).contains(&at) && write.2 == value)
                };
                for (start, found) in (0..).step_by(4096).zip(found.chunks(4096)) {
                    let flushed = &flushed[start..start + 4096];
                    if found == flushed {
                        continue;
                    }
                    for (at, (found, flushed)) in (start..).zip(found.iter().zip(flushed)) {
                        let right = found == flushed || later(at, *found);
                        assert!(right, "{format}, history {history}, step {step}: {found} at {at}");
                    }
                }
                // It can be written again.
                after.write_at(&[200; 5000], PhysicalAddress(SIZE / 2)).unwrap();
                after.flush().unwrap();
            }
        }
    }
}

/// A unit that could not be written leaves nothing behind at its place.
#[test]
fn a_full_host_loses_nothing() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    for (format, options, _) in [FORMATS[0], FORMATS[4]] {
        let path = folder.path().join("disk");
        create(&path, format, options, SIZE);
        let (file, device) = open_losing(format, Losing::new(std::fs::read(&path).unwrap()));
        device.write_at(&[1; 100], PhysicalAddress(0)).unwrap();
        let size = file.size();
        file.state.lock().unwrap().full = true;
        let error = device.write_at(&[2; 50_000], PhysicalAddress(2 << 20)).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        assert_eq!(file.size(), size, "{format}");
        file.state.lock().unwrap().full = false;
        device.write_at(&[3; 100], PhysicalAddress((4 << 20) + 60_000)).unwrap();
        device.flush().unwrap();
        let mut bytes = vec![9; SIZE as usize];
        device.read_at(&mut bytes, PhysicalAddress(0)).unwrap();
        let mut expected = vec![0; SIZE as usize];
        expected[..100].fill(1);
        expected[(4 << 20) + 60_000..][..100].fill(3);
        assert!(bytes == expected, "{format}");
        drop(device);
        std::fs::write(&path, &file.state.lock().unwrap().now).unwrap();
        assert_checked(&path, format, options);
    }
}
