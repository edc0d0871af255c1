//! Files that grow: the pieces of one transaction become one extent where they continue each other
//! on disk, unless something else refers to what is there already.

use super::support::SECTOR;
use crate::in_memory::{assert_clean, close_clean, crashed, formatted, open};
use papilio::{File, FileSystem, MkfsOptions, OpenOptions};
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::BTreeMap;

const PIECE: u64 = 1 << 20;

fn piece(number: u64) -> Vec<u8> {
    let mut piece = vec![number as u8 | 1; PIECE as usize];
    piece.chunks_exact_mut(SECTOR as usize).enumerate().for_each(|(sector, bytes)| {
        bytes[..8].copy_from_slice(&(number << 16 | sector as u64).to_le_bytes());
    });
    piece
}

fn append(file: &File, numbers: std::ops::Range<u64>) {
    for number in numbers {
        file.write_all_at(&piece(number), number * PIECE).unwrap();
    }
}

/// Returns the lengths of a file's extents in pieces, as its tree has them.
fn lengths(file: &File) -> Vec<u64> {
    file.extents(0, usize::MAX).unwrap().iter().map(|extent| extent.stored / PIECE).collect()
}

fn expected(pieces: u64) -> Vec<u8> {
    (0..pieces).flat_map(piece).collect()
}

#[test]
fn a_file_that_grows_has_few_extents() {
    let device = formatted(1 << 30);
    let fs = open(&device);
    let file = fs.create_file("/file").unwrap();
    append(&file, 0..200);
    let extents = lengths(&file);
    // An extent ends after 8 MiB, and with its block group.
    assert!(extents.len() <= 30 && extents.iter().all(|pieces| *pieces <= 8), "{extents:?}");
    fs.sync().unwrap();
    assert_clean(&device);
    assert!(file.read_all().unwrap() == expected(200));
    // An extent that a commit has does not change.
    append(&file, 200..204);
    let grown = lengths(&file);
    assert!(grown.starts_with(&extents) && grown.len() == extents.len() + 1, "{grown:?}");
    drop(file);
    close_clean(fs, &device);
    assert!(open(&device).read("/file").unwrap() == expected(204));
}

#[test]
fn a_snapshot_or_a_clone_ends_an_extent() {
    let device = formatted(512 << 20);
    let fs = open(&device);
    fs.create_subvolume("/volume").unwrap();
    let file = fs.create_file("/volume/file").unwrap();
    append(&file, 0..3);
    fs.snapshot("/volume", "/snapshot", false).unwrap();
    append(&file, 3..6);
    let copy = fs.create_file("/volume/copy").unwrap();
    copy.clone_range(&file, 0, 6 * PIECE, 0).unwrap();
    append(&file, 6..9);
    // So does a commit, and an fsync: the log would have an extent anew after each piece.
    fs.sync().unwrap();
    for number in 9..12 {
        append(&file, number..number + 1);
        file.sync_all().unwrap();
    }
    let mut ends = Vec::new();
    for pieces in lengths(&file) {
        ends.push(pieces + ends.last().unwrap_or(&0));
    }
    assert!([3, 6, 9, 10, 11, 12].iter().all(|end| ends.contains(end)), "{ends:?}");
    // A crash leaves all that the log has.
    let lost = open(&crashed(&device));
    assert!(lost.read("/volume/file").unwrap() == expected(12));
    assert!(lost.read("/snapshot/file").unwrap() == expected(3));
    drop(lost);
    fs.sync().unwrap();
    assert_clean(&device);
    drop((file, copy));
    fs.remove_file("/volume/file").unwrap();
    fs.sync().unwrap();
    assert_clean(&device);
    for (path, pieces) in [("/snapshot/file", 3), ("/volume/copy", 6)] {
        assert!(fs.read(path).unwrap() == expected(pieces), "{path}");
    }
    close_clean(fs, &device);
}

/// The model of a run: the bytes of each file by path.
type Model = BTreeMap<String, Vec<u8>>;

/// Makes one random change, mostly one that makes a file grow.
fn step(fs: &FileSystem, model: &mut Model, durable: &mut Model, random: &mut fastrand::Rng, number: u64) {
    let path = format!("/s/{}", random.u8(..4));
    let file = match model.contains_key(&path) {
        true => fs.open_file(&path).unwrap(),
        false => fs.create_file(&path).unwrap(),
    };
    let bytes = model.entry(path.clone()).or_default();
    match random.u8(..24) {
        0 => {
            let length = random.u64(..=bytes.len() as u64);
            file.set_len(length).unwrap();
            bytes.truncate(length as usize);
        }
        1 if !bytes.is_empty() => {
            let at = random.usize(..bytes.len());
            let end = (at + random.usize(1..200_000)).min(bytes.len());
            file.punch_hole(at as u64, (end - at) as u64).unwrap();
            bytes[at..end].fill(0);
        }
        2 => {
            file.sync_all().unwrap();
            durable.insert(path, bytes.clone());
        }
        3 => {
            fs.sync().unwrap();
            durable.clone_from(model);
        }
        4 => {
            let name = format!("/snapshot{number}");
            fs.snapshot("/s", &name, false).unwrap();
            fs.sync().unwrap();
            let inside: Vec<_> = model
                .iter()
                .filter_map(|(path, bytes)| {
                    Some((
                        format!("{name}{}", path.strip_prefix("/s/").map(|rest| format!("/{rest}"))?),
                        bytes.clone(),
                    ))
                })
                .collect();
            model.extend(inside);
            durable.clone_from(model);
        }
        5 => {
            let other = "/s/clone";
            let whole = bytes.len() as u64;
            let copy = match model.contains_key(other) {
                true => fs.open_file(other).unwrap(),
                false => fs.create_file(other).unwrap(),
            };
            let bytes = model[&path].clone();
            copy.set_len(0).unwrap();
            copy.clone_range(&file, 0, whole, 0).unwrap();
            model.insert(other.to_owned(), bytes);
        }
        6 => {
            drop(file);
            fs.remove_file(&path).unwrap();
            model.remove(&path);
            fs.sync().unwrap();
            durable.clone_from(model);
        }
        _ => {
            for _ in 0..random.u8(1..6) {
                let sectors = random.usize(1..60) * SECTOR as usize;
                let length = if random.u8(..4) == 0 { random.usize(1..9000) } else { sectors };
                let piece: Vec<u8> = if random.bool() {
                    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
                } else {
                    vec![random.u8(1..); length]
                };
                file.write_all_at(&piece, bytes.len() as u64).unwrap();
                bytes.extend(piece);
            }
        }
    }
}

/// Runs `steps` random steps, and returns the files as they are.
fn run(fs: &FileSystem, seed: u64, steps: u64, crash: &dyn Fn(&Model)) -> Model {
    let mut random = fastrand::Rng::with_seed(seed);
    fs.create_subvolume("/s").unwrap();
    fs.sync().unwrap();
    let (mut model, mut durable) = (Model::new(), Model::new());
    for number in 0..steps {
        step(fs, &mut model, &mut durable, &mut random, number);
        if number % 50 == 49 {
            crash(&durable);
        }
    }
    for (path, bytes) in &model {
        assert!(fs.read(path).unwrap() == *bytes, "seed {seed}: {path}");
    }
    model
}

#[test]
fn random_growth_keeps_all_bytes_and_references() {
    for seed in 0..12 {
        let device = formatted(1 << 30);
        let fs = open(&device);
        // A crash leaves at least what a sync or an fsync has made durable of a file's beginning:
        // later changes of the file are not in the log.
        let crash = |durable: &Model| {
            let device = crashed(&device);
            let fs = open(&device);
            for (path, bytes) in durable {
                assert!(fs.read(path).unwrap() == *bytes, "seed {seed}: {path} after a crash");
            }
            close_clean(fs, &device);
        };
        let model = run(&fs, seed, 200, &crash);
        close_clean(fs, &device);
        let fs = open(&device);
        for (path, bytes) in &model {
            assert!(fs.read(path).unwrap() == *bytes, "seed {seed}: {path} after opening");
        }
    }
}

#[test]
fn the_kernel_reads_and_checks_files_that_grew() {
    if require(&[Need::Root, Need::Loop, Need::KernelBtrfs]).is_none() {
        return;
    }
    let scratch = Scratch::new(1 << 30).unwrap();
    for seed in 100..102 {
        let image = scratch.unique("growing.img");
        papilio::mkfs(&image, &MkfsOptions::new().size(1 << 30)).unwrap();
        let fs = FileSystem::open_with(&image, &OpenOptions::new().write(true)).unwrap();
        let model = run(&fs, seed, 200, &|_| {});
        fs.close().unwrap();
        let images = ImageSet::open(&scratch, vec![image.clone()]);
        images.btrfs_check().unwrap();
        let mounted = images.mount().unwrap();
        for (path, bytes) in &model {
            let host = mounted.path().join(&path[1..]);
            assert!(std::fs::read(&host).unwrap() == *bytes, "seed {seed}: {path}");
        }
        mounted.unmount().unwrap();
        std::fs::remove_file(&image).unwrap();
    }
}
