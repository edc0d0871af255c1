//! Single changes of files, with every detail of the outcome checked.

use super::files::{Files, SECTOR};
use crate::data::clone::CloneRange;
use crate::data::compress::is_compressible;
use crate::data::csum_edit::{ChecksumRuns, insert_checksums};
use crate::data::dedupe::{Deduped, dedupe};
use crate::data::progress::Progress;
use crate::data::write_rules::{MAX_FILE_SIZE, WriteOptions};
use crate::errors::{Error, ErrorKind, PathError};
use crate::options::CompressionChoice;
use crate::transaction::csum_items::max_sums;
use papilio_format::features::IncompatFeatures;
use papilio_format::items::csum::CsumItem;
use papilio_format::items::file_extent::Compression;
use papilio_format::items::inode::InodeFlags;
use papilio_format::{FileOffset, Generation, LogicalAddress};
use std::collections::BTreeMap;

fn files() -> Files {
    Files::new(16384, true, WriteOptions::default())
}

fn noise(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    fastrand::Rng::with_seed(length as u64).fill(&mut bytes);
    bytes
}

fn put(files: &mut Files, index: usize, offset: u64, data: &[u8]) {
    files.edit(index, |phases, file| phases.write(file, offset, data)).unwrap();
    let model = &mut files.files[index].bytes;
    let end = offset as usize + data.len();
    model.resize(model.len().max(end), 0);
    model[offset as usize..end].copy_from_slice(data);
    files.check();
}

fn truncate(files: &mut Files, index: usize, size: u64) {
    let progress = files.edit(index, |phases, file| phases.truncate(file, size)).unwrap();
    assert_eq!(progress, Progress::Done);
    files.files[index].bytes.resize(size as usize, 0);
    files.check();
}

#[test]
fn small_files_are_inline_until_they_grow() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    put(&mut files, file, 0, b"begin");
    assert_eq!(files.map(file), [(0, SECTOR, 'i')]);
    put(&mut files, file, 2_000, b"end");
    assert_eq!(files.map(file), [(0, SECTOR, 'i')]);
    truncate(&mut files, file, 2_048);
    assert_eq!((files.map(file), files.files[file].item.nbytes), (vec![(0, SECTOR, 'i')], 2_048));
    put(&mut files, file, 2_048, b"!");
    assert_eq!((files.map(file), files.files[file].item.nbytes), (vec![(0, SECTOR, 'r')], SECTOR));
    truncate(&mut files, file, 7);
    put(&mut files, file, 3, b"");
    assert_eq!(files.map(file), [(0, SECTOR, 'r')]);
    put(&mut files, file, 3, b"in");
    assert_eq!(files.map(file), [(0, SECTOR, 'i')]);
    // Data far after the end leaves the old data in a sector of its own.
    put(&mut files, file, 10 * SECTOR, b"far");
    assert_eq!(files.map(file), [(0, SECTOR, 'r'), (10 * SECTOR, 11 * SECTOR, 'r')]);
    truncate(&mut files, file, 0);
    assert_eq!((files.map(file), files.files[file].item.nbytes), (vec![], 0));
}

#[test]
fn each_change_updates_the_inode() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    files.files[file].item.transid = Generation(3);
    for (round, size) in [(1, 5), (2, 9_000)] {
        put(&mut files, file, 0, &noise(size));
        let item = files.files[file].item;
        assert_eq!((item.sequence, item.size, item.transid), (round, size as u64, Generation(10)));
        assert!(item.mtime == item.ctime && item.mtime.seconds == 1_000 + round as i64);
        assert_eq!(item.atime.seconds, 0);
    }
}

#[test]
fn growing_reads_as_zeros_after_the_old_end() {
    for no_holes in [true, false] {
        let mut files = Files::new(4096, no_holes, WriteOptions::default());
        let file = files.create(0, InodeFlags::empty());
        put(&mut files, file, 0, &noise(3 * SECTOR as usize));
        truncate(&mut files, file, 2 * SECTOR + 100);
        // The bytes after the end are still on disk.
        truncate(&mut files, file, 5 * SECTOR + 1);
        assert_eq!(files.map(file).last().unwrap().2, if no_holes { 'r' } else { 'h' });
        truncate(&mut files, file, SECTOR + 1);
        put(&mut files, file, 3 * SECTOR, b"data");
    }
}

#[test]
fn cut_extents_keep_their_references() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    put(&mut files, file, 0, &noise(8 * SECTOR as usize));
    let counts = |files: &Files| files.state().references.values().copied().collect::<Vec<_>>();
    assert_eq!(counts(&files), [1]);
    let punch = |files: &mut Files, from: u64, to: u64| {
        files.edit(file, |phases, file| phases.punch(file, from * SECTOR, (to - from) * SECTOR)).unwrap();
        files.files[file].bytes[(from * SECTOR) as usize..(to * SECTOR) as usize].fill(0);
        files.check();
    };
    punch(&mut files, 3, 4);
    assert_eq!(counts(&files), [2]);
    punch(&mut files, 0, 1);
    assert_eq!(counts(&files), [2]);
    punch(&mut files, 7, 8);
    punch(&mut files, 5, 6);
    assert_eq!(counts(&files), [3]);
    punch(&mut files, 0, 5);
    assert_eq!(counts(&files), [1]);
    punch(&mut files, 0, 8);
    assert!(files.state().allocated.is_empty());
    assert_eq!(files.files[file].item.size, 8 * SECTOR);
}

#[test]
fn without_space_nothing_changes() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    put(&mut files, file, 0, &noise(10 * SECTOR as usize));
    let item = files.files[file].item;
    (files.state().left, files.state().largest) = (20 * SECTOR, 3 * SECTOR);
    let allocated = files.state().allocated.clone();
    for (offset, sectors) in [(0, 21), (100, 20), (50 * SECTOR, 40)] {
        let data = noise((sectors * SECTOR) as usize);
        let error = files.edit(file, |phases, file| phases.write(file, offset, &data));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace);
        let state = files.state();
        assert_eq!((&state.allocated, state.left), (&allocated, 20 * SECTOR));
        drop(state);
        assert_eq!(files.files[file].item, item);
        files.check();
    }
    let error = files.edit(file, |phases, file| phases.preallocate(file, 20 * SECTOR, 30 * SECTOR, false));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::NoSpace);
    files.check();
    put(&mut files, file, 0, &noise(20 * SECTOR as usize));
}

#[test]
fn offsets_past_the_largest_are_refused() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    for offset in [MAX_FILE_SIZE, MAX_FILE_SIZE - 3, u64::MAX - 1] {
        let error = files.edit(file, |phases, file| phases.write(file, offset, b"0123"));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Path(PathError::TooLarge));
        let size = offset.max(MAX_FILE_SIZE + 1);
        let error = files.edit(file, |phases, file| phases.truncate(file, size));
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Path(PathError::TooLarge));
    }
    files.check();
}

#[test]
fn large_writes_make_extents_of_the_largest_size() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    let length = (128 << 20) + 3 * SECTOR;
    let data = noise(length as usize);
    files.edit(file, |phases, file| phases.write(file, 0, &data)).unwrap();
    assert_eq!(files.map(file), [(0, 128 << 20, 'r'), (128 << 20, length, 'r')]);
    assert!(files.read(file).unwrap() == data);
    let most = max_sums(&files.forest.volume.geometry()) as u64;
    let items = files.checksums.tree().items().count() as u64;
    assert_eq!(items, (length / SECTOR).div_ceil(most));
}

#[test]
fn data_is_compressed_in_pieces() {
    let choice = CompressionChoice::new(Compression::Zstd);
    let options = WriteOptions { compression: Some(choice), ..WriteOptions::default() };
    let mut files = Files::new(16384, true, options);
    let file = files.create(0, InodeFlags::empty());
    let text: Vec<u8> = (0..300_000u32).flat_map(|n| (n / 7).to_le_bytes()).take(300 << 10).collect();
    put(&mut files, file, 0, &text);
    let piece = 128 << 10;
    assert_eq!(files.map(file), [(0, piece, 'R'), (piece, 2 * piece, 'R'), (2 * piece, 300 << 10, 'R')]);
    assert!(files.state().features.contains(IncompatFeatures::COMPRESS_ZSTD));
    // In a file that is not a multiple of the sector size, the last sector is compressed too.
    put(&mut files, file, 299 << 10, &text[..1_500]);
    // A single sector is not.
    put(&mut files, file, 17 * SECTOR, &text[..SECTOR as usize]);
    assert_eq!(
        files.map(file)[..3],
        [(0, 17 * SECTOR, 'R'), (17 * SECTOR, 18 * SECTOR, 'r'), (18 * SECTOR, piece, 'R')]
    );
    let small = files.create(0, InodeFlags::empty());
    put(&mut files, small, 0, &text[..4_000]);
    assert_eq!(files.map(small), [(0, SECTOR, 'I')]);
    truncate(&mut files, small, 3_000);
    truncate(&mut files, small, 3);
    assert_eq!(files.map(small), [(0, SECTOR, 'i')]);
}

#[test]
fn incompressible_data_marks_the_file() {
    let choice = CompressionChoice::new(Compression::Zlib);
    for (force, flag) in [(false, true), (true, false)] {
        let options =
            WriteOptions { compression: Some(choice), force_compression: force, ..WriteOptions::default() };
        let mut files = Files::new(16384, true, options);
        let file = files.create(0, InodeFlags::empty());
        // Data that looks compressible, as the sampled bytes are all the same, but saves less than
        // a sector of each piece.
        let mut data = noise(400 << 10);
        for chunk in data.chunks_mut(256) {
            chunk[..9].fill(b'a');
        }
        assert!(is_compressible(&data[..128 << 10]));
        put(&mut files, file, 0, &data[..100 << 10]);
        assert!(!files.files[file].item.flags.contains(InodeFlags::NOCOMPRESS), "too little to tell");
        put(&mut files, file, 0, &data);
        let marked = files.files[file].item.flags.contains(InodeFlags::NOCOMPRESS);
        if files.map(file).iter().all(|extent| extent.2 == 'r') {
            assert_eq!(marked, flag);
        } else {
            panic!("{:?}", files.map(file));
        }
    }
}

#[test]
fn clone_requests_are_checked() {
    let mut files = files();
    let (source, target) = (files.create(0, InodeFlags::empty()), files.create(1, InodeFlags::empty()));
    let unsummed = files.create(1, InodeFlags::NODATASUM);
    put(&mut files, source, 0, &noise(4 * SECTOR as usize + 100));
    put(&mut files, target, 0, &noise(9 * SECTOR as usize));
    let mut ask = |source, from: u64, length: u64, target, to: u64| {
        files.edit_from(target, source, |phases, file, source| {
            CloneRange::new(&phases.data.rules, source, FileOffset(from), length, file, FileOffset(to))
        })
    };
    let s = SECTOR;
    for (from, length, to) in [
        (1, s, 0),
        (0, s, 1),
        (0, s + 1, 9 * s),
        (0, 5 * s, 0),
        (4 * s, 100, 4 * s),
        (4 * s, 0, 4 * s),
        (5 * s, 0, 0),
        (0, u64::MAX, 0),
    ] {
        let error = ask(source, from, length, target, to).expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Invalid, "{from} {length} {to}");
    }
    assert_eq!(ask(source, 0, s, unsummed, 0).unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(ask(source, 0, 2 * s, source, s).unwrap_err().kind(), ErrorKind::Invalid);
    let far = MAX_FILE_SIZE / s * s;
    assert_eq!(ask(source, 0, s, target, far).unwrap_err().kind(), ErrorKind::Path(PathError::TooLarge));
    assert!(ask(source, 0, 2 * s, source, 2 * s).unwrap().is_some());
    assert!(ask(source, 4 * s, 0, target, 9 * s).unwrap().is_some());
    assert!(ask(unsummed, 0, 0, unsummed, 0).unwrap().is_none());
}

#[test]
fn clones_add_references_not_bytes() {
    let mut files = files();
    let (source, target) = (files.create(0, InodeFlags::empty()), files.create(1, InodeFlags::empty()));
    put(&mut files, source, 0, &noise(4 * SECTOR as usize + 100));
    let allocated = files.state().allocated.len();
    let mut range = None;
    let progress = files.edit_from(target, source, |phases, file, source| {
        range = CloneRange::new(&phases.data.rules, source, FileOffset(0), 0, file, FileOffset(SECTOR))?;
        phases.share(range.as_mut().unwrap(), source, file, 1000)
    });
    assert_eq!(progress.unwrap(), Progress::Done);
    files.files[target].bytes = [vec![0; SECTOR as usize], files.files[source].bytes.clone()].concat();
    files.check();
    assert_eq!(files.state().allocated.len(), allocated);
    assert_eq!(files.state().references.len(), 2);
    // Inline data is copied, and stays inline where it is the whole file.
    let (small, copy) = (files.create(0, InodeFlags::empty()), files.create(0, InodeFlags::empty()));
    put(&mut files, small, 0, b"a few bytes");
    for (to, kind) in [(0, 'i'), (SECTOR, 'r')] {
        let progress = files.edit_from(copy, small, |phases, file, source| {
            let rules = &phases.data.rules;
            let range = CloneRange::new(rules, source, FileOffset(0), 0, file, FileOffset(to))?;
            phases.share(&mut range.unwrap(), source, file, 1000)
        });
        assert_eq!(progress.unwrap(), Progress::Done);
        assert_eq!(files.map(copy).last(), Some(&(to, to + SECTOR, kind)));
    }
    let few: &[u8] = b"a few bytes";
    files.files[copy].bytes = [few, &[0; SECTOR as usize - 11], few].concat();
    files.check();
}

#[test]
fn only_equal_ranges_are_deduped() {
    let mut files = files();
    let (one, other) = (files.create(0, InodeFlags::empty()), files.create(1, InodeFlags::empty()));
    let mut data = noise(300 << 10);
    put(&mut files, one, 0, &data);
    data[(299 << 10) + 5] ^= 1;
    put(&mut files, other, 0, &data);
    let ask = |files: &mut Files, length: u64| {
        files.edit_from(other, one, |phases, file, source| {
            dedupe(&phases.data, source, FileOffset(0), length, file, FileOffset(0))
        })
    };
    assert!(matches!(ask(&mut files, 300 << 10), Ok(Deduped::Differs)));
    assert!(matches!(ask(&mut files, 301 << 10), Err(Error::Invalid(_))));
    assert!(matches!(ask(&mut files, 100), Ok(Deduped::Nothing)));
    let Ok(Deduped::Same(mut range)) = ask(&mut files, 298 << 10) else { panic!("these are the same") };
    let before = files.files[other].item;
    let progress =
        files.edit_from(other, one, |phases, file, source| phases.share(&mut range, source, file, 1000));
    assert_eq!(progress.unwrap(), Progress::Done);
    // Half a sector is left out.
    assert_eq!(range.bytes_done(), 296 << 10);
    assert_eq!(
        (files.files[other].item.mtime, files.files[other].item.sequence),
        (before.mtime, before.sequence)
    );
    files.check();
    assert_eq!(files.map(other), [(0, 296 << 10, 'r'), (296 << 10, 300 << 10, 'r')]);
}

#[test]
fn checksums_are_inserted_in_any_order() {
    for node_size in [4096, 16384] {
        let files = Files::new(node_size, true, WriteOptions::default());
        let geometry = files.forest.volume.geometry();
        let mut random = fastrand::Rng::with_seed(node_size.into());
        let mut model = BTreeMap::new();
        for _ in 0..200 {
            let mut checksums = ChecksumRuns::new(&geometry);
            let mut places: Vec<u64> = (0..40).collect();
            random.shuffle(&mut places);
            for place in &places[..random.usize(1..6)] {
                let start = (1 << 30) + place * 1_000 * SECTOR + random.u64(..300) * SECTOR;
                let data = noise_of(&mut random, 600);
                for (sector, bytes) in data.chunks(SECTOR as usize).enumerate() {
                    model.insert(start + sector as u64 * SECTOR, geometry.checksum_type.compute(bytes));
                }
                let compute = |sector: &[u8]| geometry.checksum_type.compute(sector).as_bytes().to_vec();
                let computed: Vec<u8> = data.chunks(SECTOR as usize).flat_map(compute).collect();
                checksums.add(LogicalAddress(start), &computed);
            }
            // Some of the checksums are there already, and are replaced.
            insert_checksums(&mut files.checksums.edit(&files.space), checksums).unwrap();
        }
        let mut found = BTreeMap::new();
        for item in files.checksums.tree().items() {
            let item = item.unwrap();
            let checksums = CsumItem::parse(&item.key, item.data(), &geometry).unwrap();
            assert!(checksums.sectors() <= max_sums(&geometry));
            for at in (checksums.start().0..checksums.end().0).step_by(SECTOR as usize) {
                assert!(found.insert(at, checksums.sum_at(LogicalAddress(at)).unwrap()).is_none());
            }
        }
        assert!(found == model);
    }
}

fn noise_of(random: &mut fastrand::Rng, most: usize) -> Vec<u8> {
    let byte = random.u8(..);
    vec![byte; random.usize(1..most) * SECTOR as usize]
}

#[test]
fn sequential_checksums_fill_items() {
    let mut files = files();
    let file = files.create(0, InodeFlags::empty());
    let piece = noise(256 << 10);
    for number in 0..100 {
        let offset = number * piece.len() as u64;
        files.edit(file, |phases, file| phases.write(file, offset, &piece)).unwrap();
    }
    let sectors = 100 * piece.len() as u64 / SECTOR;
    let most = max_sums(&files.forest.volume.geometry()) as u64;
    assert_eq!(files.checksums.tree().items().count() as u64, sectors.div_ceil(most));
}
