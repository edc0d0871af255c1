//! Disk archives that were cut, damaged and reordered, chains that do not belong together, and
//! sources with bad copies: an error that names archive and place, and no result that looks whole.

use crate::changed_archives::{Archives, frames, reseal};
use crate::in_memory::{assert_clean, formatted_with, open, open_last_commit, open_read_only};
use papilio::archive::{
    ArchiveChain, ArchiveCreated, ArchiveOptions, ArchiveReader, ArchiveSource, restore_archive,
    restore_sizes, verify_archive,
};
use papilio::device::{Device, MemoryDevice};
use papilio::format::superblock::superblock_offset;
use papilio::{FileSystem, MkfsOptions, OpenOptions, RaidProfile};
use papilio_device::PhysicalAddress;
use std::io::{Cursor, Read};
use std::sync::Arc;

/// A file system with a file of `length` bytes.
fn source(profile: RaidProfile, length: usize) -> Arc<MemoryDevice> {
    let options = MkfsOptions::new().data_profile(profile).metadata_profile(RaidProfile::Dup);
    let device = formatted_with(256 << 20, &options);
    let fs = open(&device);
    let mut random = fastrand::Rng::with_seed(length as u64);
    let bytes: Vec<u8> = (0..length).map(|at| if at % 8192 < 4096 { random.u8(..) } else { 3 }).collect();
    fs.create_file("/file").unwrap().write_all_at(&bytes, 0).unwrap();
    fs.close().unwrap();
    device
}

fn archive_with(
    device: &Arc<MemoryDevice>,
    parent: Option<&[u8]>,
    options: &ArchiveOptions,
) -> papilio::Result<(Vec<u8>, ArchiveCreated)> {
    let mut bytes = Vec::new();
    let parent = parent.map(|parent| Arc::new(chain(&[parent]).unwrap()));
    let created = open_last_commit(device).archive(parent, &mut bytes, options, |_, _| {})?;
    assert_eq!(created.bytes, bytes.len() as u64);
    Ok((bytes, created))
}

fn archive(device: &Arc<MemoryDevice>, parent: Option<&[u8]>) -> Vec<u8> {
    archive_with(device, parent, &ArchiveOptions::new()).unwrap().0
}

fn memory(bytes: &[u8]) -> Arc<dyn Device> {
    let device = MemoryDevice::new(bytes.len() as u64);
    device.write_at(bytes, PhysicalAddress(0)).unwrap();
    Arc::new(device)
}

/// Opens archives, of which each is based on the next.
fn chain(archives: &[&[u8]]) -> Result<ArchiveChain, String> {
    let mut rest = archives[1..].iter();
    ArchiveChain::open(memory(archives[0]), &mut |_| Ok(rest.next().map(|bytes| memory(bytes))))
        .map_err(|error| error.to_string())
}

fn reader(bytes: &[u8]) -> Result<ArchiveSource, String> {
    let input: Box<dyn Read + Send> = Box::new(Cursor::new(bytes.to_vec()));
    ArchiveReader::new(input, "backup.pbk").map_err(|error| error.to_string())
}

fn verify(bytes: &[u8]) -> Result<(), String> {
    verify_archive(&mut reader(bytes)?, 0, &mut |_| {}).map(drop).map_err(|error| error.to_string())
}

/// Restores archives, the full one first, to a device of `size` bytes that had a file system.
fn restore(archives: &[&[u8]], size: u64) -> (Arc<MemoryDevice>, Result<(), String>) {
    let target = formatted_with(size, &MkfsOptions::new());
    let sources: Result<Vec<_>, _> = archives.iter().map(|bytes| reader(bytes)).collect();
    let restored = sources.and_then(|mut sources| {
        let devices = [target.clone() as Arc<dyn Device>];
        restore_archive(&mut sources, &devices, &std::env::temp_dir(), |_| {})
            .map(drop)
            .map_err(|error| error.to_string())
    });
    (target, restored)
}

fn content(fs: &FileSystem) -> Vec<u8> {
    fs.read("/file").unwrap()
}

#[test]
fn an_archive_is_restored_to_devices_of_several_sizes() {
    let original = source(RaidProfile::Dup, 5 << 20);
    let bytes = archive(&original, None);
    verify(&bytes).unwrap();
    let expected = content(&open_read_only(&original));
    let devices = Arc::new(chain(&[&bytes]).unwrap()).devices().unwrap();
    let inside = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    assert!(content(&inside) == expected);
    assert_eq!(restore_sizes(&reader(&bytes).unwrap()), [256 << 20]);
    for size in [256 << 20, 512 << 20, 200 << 20] {
        let (target, restored) = restore(&[&bytes], size);
        restored.unwrap();
        let fs = open_read_only(&target);
        assert_eq!(fs.uuid(), open_read_only(&original).uuid());
        assert!(content(&fs) == expected, "{size}");
        drop(fs);
        assert_clean(&target);
    }
    let target: Arc<dyn Device> = Arc::new(MemoryDevice::new(12 << 20));
    let mut sources = [reader(&bytes).unwrap()];
    let restored =
        restore_archive(&mut sources, std::slice::from_ref(&target), &std::env::temp_dir(), |_| {});
    assert!(restored.is_err());
    assert!(FileSystem::from_devices(vec![target], &OpenOptions::new()).is_err());
}

#[test]
fn cut_archives_are_refused_and_leave_no_file_system() {
    let bytes = archive(&source(RaidProfile::Single, 3 << 20), None);
    let starts = frames(&bytes);
    let near = |at: &usize| [at - 1, *at, at + 1, at + 47, at + 49];
    let lengths: Vec<_> = starts.iter().flat_map(near).chain([0, 7, 5000, bytes.len() - 1]).collect();
    for (number, length) in lengths.into_iter().filter(|length| *length < bytes.len()).enumerate() {
        let cut = &bytes[..length];
        let error = verify(cut).unwrap_err();
        assert!(error.starts_with("backup.pbk: "), "{length}: {error}");
        assert!(chain(&[cut]).is_err(), "{length}");
        // A restore takes longer than the others.
        if number % 5 == 0 {
            let (target, restored) = restore(&[cut], 256 << 20);
            assert!(restored.is_err(), "{length}");
            let is_old = reader(cut).is_err();
            let opened = FileSystem::from_devices(vec![target as Arc<dyn Device>], &OpenOptions::new());
            assert_eq!(opened.is_ok(), is_old, "{length}: what was there goes only when a restore begins");
        }
    }
    let longer = [&bytes[..], b"x"].concat();
    assert!(verify(&longer).unwrap_err().contains("more bytes follow"));
    assert!(chain(&[&longer]).is_err());
}

#[test]
fn every_damaged_byte_is_found() {
    let bytes = archive(&source(RaidProfile::Single, 2 << 20), None);
    let mut random = fastrand::Rng::with_seed(5);
    let starts = frames(&bytes);
    let fields = starts.iter().flat_map(|start| (0..48).step_by(5).map(move |at| start + at));
    let others: Vec<_> = (0..150).map(|_| random.usize(..bytes.len())).collect();
    for at in fields.chain(others).filter(|at| *at < bytes.len()) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1 << random.u32(..8);
        let error = verify(&damaged).unwrap_err();
        assert!(error.starts_with("backup.pbk: ") && error.contains("at byte"), "{at}: {error}");
        // A reader at any place sees what it reads.
        if let Ok(chain) = chain(&[&damaged])
            && let Ok(devices) = Arc::new(chain).devices()
            && let Ok(fs) = FileSystem::from_devices(devices, &OpenOptions::new())
            && let Ok(found) = fs.read("/file")
        {
            assert_eq!(found.len(), 2 << 20, "{at}");
        }
    }
}

#[test]
fn frames_in_another_order_or_of_another_archive_are_refused() {
    let device = source(RaidProfile::Single, 4 << 20);
    let bytes = archive(&device, None);
    let other = archive(&device, None);
    let starts = frames(&bytes);
    let frame = |bytes: &[u8], number: usize| bytes[starts[number]..starts[number + 1]].to_vec();
    for number in 1..starts.len() - 2 {
        let swapped = [
            &bytes[..starts[number]],
            &frame(&bytes, number + 1),
            &frame(&bytes, number),
            &bytes[starts[number + 2]..],
        ]
        .concat();
        assert!(verify(&swapped).unwrap_err().contains(&format!("frame {number} at byte")), "{number}");
        let missing = [&bytes[..starts[number]], &bytes[starts[number + 1]..]].concat();
        assert!(verify(&missing).is_err() && chain(&[&missing]).is_err(), "{number}");
        let twice = [&bytes[..starts[number]], &frame(&bytes, number), &bytes[starts[number]..]].concat();
        assert!(verify(&twice).is_err() && chain(&[&twice]).is_err(), "{number}");
        let foreign =
            [&bytes[..starts[number]], &frame(&other, number), &bytes[starts[number + 1]..]].concat();
        assert!(verify(&foreign).unwrap_err().contains("another archive"), "{number}");
    }
}

#[test]
fn chains_hold_together_by_ids_and_commits() {
    let device = source(RaidProfile::Single, 8 << 20);
    let full = archive(&device, None);
    let fs = open(&device);
    fs.open_file("/file").unwrap().write_all_at(b"changed", 100_000).unwrap();
    fs.close().unwrap();
    let next = archive(&device, Some(&full));
    assert!(next.len() < full.len() / 4, "{} of {}", next.len(), full.len());
    let expected = content(&open_read_only(&device));
    let devices = Arc::new(chain(&[&next, &full]).unwrap()).devices().unwrap();
    assert!(content(&FileSystem::from_devices(devices, &OpenOptions::new()).unwrap()) == expected);
    let (target, restored) = restore(&[&full, &next], 256 << 20);
    restored.unwrap();
    assert!(content(&open_read_only(&target)) == expected);
    assert_clean(&target);

    assert!(chain(&[&next]).unwrap_err().contains("neither named nor found"));
    assert!(restore(&[&next], 256 << 20).1.unwrap_err().contains("based on the archive"));
    let again = archive(&device, None);
    assert!(chain(&[&next, &again]).unwrap_err().contains("based on the archive"));
    assert!(restore(&[&again, &next], 256 << 20).1.unwrap_err().contains("based on the archive"));
    // An archive of another file system is no parent.
    let stranger = archive(&source(RaidProfile::Single, 1 << 20), None);
    let mut bytes = Vec::new();
    let parent = Arc::new(chain(&[&stranger]).unwrap());
    let refused =
        open_last_commit(&device).archive(Some(parent), &mut bytes, &ArchiveOptions::new(), |_, _| {});
    assert!(refused.unwrap_err().to_string().contains("of the file system"));
}

#[test]
fn the_good_copy_is_archived() {
    let device = source(RaidProfile::Dup, 1 << 20);
    let expected = content(&open_read_only(&device));
    // The first copy of each sector with the pattern is destroyed.
    let mut sector = vec![0; 4096];
    let mut seen = std::collections::HashSet::new();
    for at in (1 << 20..256 << 20).step_by(4096).map(PhysicalAddress) {
        device.read_at(&mut sector, at).unwrap();
        if expected.chunks(4096).any(|part| part == sector) && seen.insert(sector.clone()) {
            device.write_at(&[0xee; 4096], at).unwrap();
        }
    }
    assert!(seen.len() > 100);
    let (bytes, created) = archive_with(&device, None, &ArchiveOptions::new()).unwrap();
    assert_eq!(created.damaged_bytes, 0);
    let (target, restored) = restore(&[&bytes], 256 << 20);
    restored.unwrap();
    assert!(content(&open_read_only(&target)) == expected);
    assert_clean(&target);
}

#[test]
fn unreadable_bytes_are_an_error_or_noted() {
    let device = source(RaidProfile::Single, 1 << 20);
    let first = {
        let mut sector = vec![0; 4096];
        let expected = content(&open_read_only(&device));
        let places = (1 << 20..256 << 20).step_by(4096).map(PhysicalAddress);
        let mut places = places.filter(|at| {
            device.read_at(&mut sector, *at).unwrap();
            sector == expected[..4096]
        });
        places.next().unwrap()
    };
    let bad = Arc::new(BadSector { device: device.clone(), at: first });
    let open =
        || FileSystem::from_devices(vec![bad.clone() as Arc<dyn Device>], &OpenOptions::new()).unwrap();
    let mut bytes = Vec::new();
    let refused = open().archive(None, &mut bytes, &ArchiveOptions::new(), |_, _| {});
    assert!(refused.unwrap_err().to_string().contains("a bad sector"));
    assert!(verify(&bytes).is_err(), "no end mark");
    bytes.clear();
    let options = ArchiveOptions::new().skip_unreadable(true);
    let created = open().archive(None, &mut bytes, &options, |_, _| {}).unwrap();
    assert_eq!(created.unreadable_bytes, 4096);
    let devices = Arc::new(chain(&[&bytes]).unwrap()).devices().unwrap();
    let inside = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    assert!(inside.read("/file").is_err());
    let mut sources = [reader(&bytes).unwrap()];
    let target: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
    let restored = restore_archive(&mut sources, &[target], &std::env::temp_dir(), |_| {}).unwrap();
    assert_eq!(restored.unreadable_bytes, 4096);
    // The next archive, of a source that can be read again, has these bytes.
    let next = archive(&device, Some(&bytes));
    let devices = Arc::new(chain(&[&next, &bytes]).unwrap()).devices().unwrap();
    let inside = FileSystem::from_devices(devices, &OpenOptions::new()).unwrap();
    assert!(content(&inside) == content(&open_read_only(&device)));
}

/// A device with a sector that cannot be read.
#[derive(Debug)]
struct BadSector {
    device: Arc<MemoryDevice>,
    at: PhysicalAddress,
}

impl Device for BadSector {
    fn name(&self) -> &str {
        "bad"
    }

    fn size(&self) -> u64 {
        self.device.size()
    }

    fn access(&self) -> papilio::device::Access {
        papilio::device::Access::ReadOnly
    }

    fn read_at(&self, buffer: &mut [u8], offset: PhysicalAddress) -> std::io::Result<()> {
        if offset.0 < self.at.0 + 4096 && offset.0 + buffer.len() as u64 > self.at.0 {
            return Err(std::io::Error::other("a bad sector"));
        }
        self.device.read_at(buffer, offset)
    }

    fn write_at(&self, _: &[u8], _: PhysicalAddress) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn flush(&self) -> std::io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: PhysicalAddress, _: u64) -> std::io::Result<()> {
        Err(std::io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

#[test]
fn a_boot_area_is_kept() {
    let device = source(RaidProfile::Single, 100_000);
    device.write_at(b"boot", PhysicalAddress(440)).unwrap();
    let bytes = archive(&device, None);
    let (target, restored) = restore(&[&bytes], 256 << 20);
    restored.unwrap();
    let mut found = [0; 4];
    target.read_at(&mut found, PhysicalAddress(440)).unwrap();
    assert_eq!(&found, b"boot");
    let mut superblocks = [[0; 4096]; 2];
    for (bytes, device) in superblocks.iter_mut().zip([&device, &target]) {
        device.read_at(bytes, superblock_offset(0)).unwrap();
    }
    assert!(superblocks[0] == superblocks[1]);
}

#[test]
fn archives_that_lie_end_with_an_error_or_a_file_system() {
    let device = source(RaidProfile::Single, 100_000);
    let (good, _) = archive_with(&device, None, &ArchiveOptions::new().level(0)).unwrap();
    let mut same = good.clone();
    reseal(&mut same, &good);
    assert!(same == good);
    let map = frames(&good)[..2].to_vec();
    let count = std::env::var("PAPILIO_ARCHIVES").map_or(60, |count| count.parse().unwrap());
    let mut random = fastrand::Rng::with_seed(11);
    let (mut refused, mut opened) = (0, 0);
    for number in 0..count {
        let mut bytes = good.clone();
        for _ in 0..random.usize(1..4) {
            // The header, the superblock, the map with its chunks, the table.
            let at = match number % 4 {
                0 => random.usize(16..104),
                1 => 4096 + random.usize(..4096),
                2 => random.usize(map[0] + 48..map[1]),
                _ => good.len() - 64 - random.usize(1..2000),
            };
            let any = random.u8(..);
            bytes[at] = *random.choice(&[0, 1, 0x7f, 0x80, 0xff, any]).unwrap();
        }
        reseal(&mut bytes, &good);
        let (target, restored) = restore(&[&bytes], 256 << 20);
        if restored.is_ok() {
            drop(FileSystem::from_devices(vec![target], &OpenOptions::new()).map(|fs| fs.read("/file")));
        }
        let devices = chain(&[&bytes]).map(|chain| Arc::new(chain).devices());
        match devices {
            Ok(Ok(devices)) => {
                opened += 1;
                drop(FileSystem::from_devices(devices, &OpenOptions::new()).map(|fs| fs.read("/file")));
            }
            _ => refused += 1,
        }
    }
    assert!(refused > count / 4 && opened > 0, "{refused} {opened}");
}

/// Runs the part of the fuzz target `backup_repository` that is about archives, with some seeds.
/// `PAPILIO_CHANGED_ARCHIVES` sets their number.
#[test]
fn changed_archives_are_read_to_an_error_or_an_end() {
    let archives = Archives::new();
    assert!(archives.read(b""));
    let count = std::env::var("PAPILIO_CHANGED_ARCHIVES").map_or(1500, |count| count.parse().unwrap());
    let mut whole = 0;
    for seed in 0..count {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut input = vec![random.u8(..)];
        let changes = random.usize(1..4) * 4;
        input.extend(std::iter::repeat_with(|| random.u8(..)).take(changes));
        whole += u64::from(archives.read(&input));
    }
    assert!(whole > 0 && whole < count / 2, "{whole} of {count}");
}
