//! Every path that compresses gets blocks that do not compress before ones that do, in one batch.
//! The result is read back, decoded by the check, and compared with what the kernel reads.

use crate::in_memory::{assert_clean, formatted, open, open_with, writable};
use papilio::{
    BalanceOptions, CompressionChoice, DefragmentOptions, FileSystem, Populate, Receive, SendOptions,
    SendProtocol,
};
use papilio_device::MemoryDevice;
use papilio_oracle::{ImageSet, Need, Scratch, require};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

const EXTENT: usize = 128 << 10;
/// Each algorithm, and the levels with an encoder of their own.
const CHOICES: [&str; 11] = [
    "zlib:1", "zlib:2", "zlib:3", "zlib:6", "zlib:9", "lzo", "zstd:-7", "zstd:1", "zstd:3", "zstd:8",
    "zstd:15",
];

type Files = BTreeMap<String, Vec<u8>>;

/// Returns noise and text in turn, from a seed.
fn content(seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let text = |random: &mut fastrand::Rng, length: usize| -> Vec<u8> {
        let lines = std::iter::repeat_with(|| format!("line {}\n", random.u16(..)).into_bytes());
        let mut bytes: Vec<u8> = lines.take(length / 6).flatten().collect();
        bytes.truncate(length);
        bytes
    };
    let mut bytes = Vec::new();
    for length in [EXTENT, EXTENT, 70_000, 20_001] {
        bytes.extend(std::iter::repeat_with(|| random.u8(..)).take(EXTENT));
        bytes.extend(text(&mut random, length));
        bytes.resize(bytes.len().next_multiple_of(EXTENT), 0);
    }
    bytes.extend(text(&mut random, 20_001));
    bytes
}

/// Writes files by the ways of an open file.
fn write_files(device: &Arc<MemoryDevice>, choice: CompressionChoice, files: &mut Files) {
    let fs = open_with(device, &writable().compress_force(choice));
    fs.create_subvolume("/sub").unwrap();
    for (seed, (name, direct, step)) in
        [("buffered", false, usize::MAX), ("direct", true, usize::MAX), ("pieces", false, 50_000)]
            .into_iter()
            .enumerate()
    {
        let (path, bytes) = (format!("/sub/{name}"), content(seed as u64));
        let mut file = fs.create_file(&path).unwrap();
        file.set_direct(direct);
        for (number, piece) in bytes.chunks(step.min(bytes.len())).enumerate() {
            file.write_all_at(piece, (number * step.min(bytes.len())) as u64).unwrap();
        }
        file.sync_all().unwrap();
        files.insert(path, bytes);
    }
    let mut changed = content(3);
    fs.write("/sub/overwritten", &changed).unwrap();
    fs.sync().unwrap();
    let part = &content(4)[..3 * EXTENT];
    fs.open_file("/sub/overwritten").unwrap().write_all_at(part, 60_000).unwrap();
    changed[60_000..][..part.len()].copy_from_slice(part);
    files.insert("/sub/overwritten".to_owned(), changed);
    fs.close().unwrap();

    let fs = open_with(device, &writable().compress(choice));
    fs.write("/sub/sampled", content(5)).unwrap();
    files.insert("/sub/sampled".to_owned(), content(5));
    fs.close().unwrap();
}

/// Rewrites, shares and moves files.
fn rewrite_files(device: &Arc<MemoryDevice>, choice: CompressionChoice, files: &mut Files) {
    let fs = open(device);
    let bytes = content(6);
    fs.write("/sub/defragmented", &bytes).unwrap();
    fs.sync().unwrap();
    let file = fs.open_file("/sub/defragmented").unwrap();
    let options = DefragmentOptions { compression: Some(choice), ..DefragmentOptions::default() };
    assert!(file.defragment(0..bytes.len() as u64, &options, |_| true).unwrap() > 0);
    files.insert("/sub/defragmented".to_owned(), bytes);
    let source = fs.open_file("/sub/buffered").unwrap();
    fs.create_file("/sub/cloned").unwrap().clone_range(&source, 0, 0, 0).unwrap();
    files.insert("/sub/cloned".to_owned(), content(0));
    fs.write("/sub/same", content(1)).unwrap();
    fs.sync().unwrap();
    let (same, length) = (fs.open_file("/sub/same").unwrap(), 4 * EXTENT as u64);
    let shared = same.dedupe_range(&fs.open_file("/sub/direct").unwrap(), 0, length, 0).unwrap();
    assert_eq!(shared, Some(length));
    files.insert("/sub/same".to_owned(), content(1));
    fs.sync().unwrap();
    drop((file, source, same));
    fs.balance(&BalanceOptions { data: Some(Default::default()), ..Default::default() }, |_| true).unwrap();
    fs.close().unwrap();
}

/// Fills directories from the host, from an archive, and from streams of another file system.
fn fill(device: &Arc<MemoryDevice>, choice: CompressionChoice, folder: &Path, files: &mut Files) {
    let source = folder.join("source");
    std::fs::create_dir(&source).unwrap();
    for seed in 10..13 {
        std::fs::write(source.join(format!("f{seed}")), content(seed)).unwrap();
    }
    let archive = folder.join("archive");
    let status = Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(&source).arg(".").status();
    assert!(status.unwrap().success());
    let sent = open(device);
    sent.snapshot("/sub", "/snapshot", true).unwrap();
    let mut streams = Vec::new();
    for compressed in [false, true] {
        let options = SendOptions::new().protocol(SendProtocol::V2).compressed_data(compressed);
        let (mut stream, id) = (Vec::new(), sent.inode("/snapshot").unwrap().tree());
        options.send(&sent, id, &mut stream, &mut ()).unwrap();
        streams.push(stream);
    }
    sent.close().unwrap();

    let fs = open_with(device, &writable().compress_force(choice));
    let directory = fs.create_dir("/directory").unwrap();
    Populate::new().directory(&source, &directory, &mut ()).unwrap();
    let unpacked = fs.create_dir("/unpacked").unwrap();
    Populate::new().tar(&archive, File::open(&archive).unwrap(), &unpacked, &mut ()).unwrap();
    for seed in 10..13 {
        for place in ["directory", "unpacked"] {
            files.insert(format!("/{place}/f{seed}"), content(seed));
        }
    }
    let written: Vec<_> = files.iter().filter(|(path, _)| path.starts_with("/sub/")).collect();
    let written: Files = written.into_iter().map(|(path, bytes)| (path.clone(), bytes.clone())).collect();
    for (number, stream) in streams.iter().enumerate() {
        for decompress in [false, true] {
            let place = format!("/received-{number}-{decompress}");
            fs.create_dir(&place).unwrap();
            let receive = Receive::new().force_decompress(decompress);
            receive.receive(&fs, &place[..], &mut &stream[..], &mut Vec::new(), &mut ()).unwrap();
            for (path, bytes) in &written {
                files.insert(path.replace("/sub/", &format!("{place}/snapshot/")), bytes.clone());
            }
        }
    }
    fs.close().unwrap();
}

fn assert_files(fs: &FileSystem, files: &Files, when: &str) {
    for (path, bytes) in files {
        let read = fs.read(&path[..]).unwrap_or_else(|error| panic!("{when}: {path}: {error}"));
        assert!(read == *bytes, "{when}: {path}");
    }
}

#[test]
fn noise_before_text_on_every_path() {
    let by_kernel = require(&[Need::Root, Need::Loop, Need::KernelBtrfs]).is_some();
    for choice in CHOICES {
        let device = formatted(512 << 20);
        let (mut files, folder) = (Files::new(), tempfile::tempdir().unwrap());
        let parsed: CompressionChoice = choice.parse().unwrap();
        write_files(&device, parsed, &mut files);
        rewrite_files(&device, parsed, &mut files);
        fill(&device, parsed, folder.path(), &mut files);
        assert_files(&open(&device), &files, choice);
        assert_clean(&device);
        if !by_kernel {
            continue;
        }
        let scratch = Scratch::new(1 << 30).unwrap();
        let path = scratch.unique("image");
        device.write_image(&path).unwrap();
        let images = ImageSet::open(&scratch, vec![path]);
        let mounted = images.mount().unwrap();
        for (path, bytes) in &files {
            let read = std::fs::read(mounted.path().join(&path[1..]));
            let read = read.unwrap_or_else(|error| panic!("{choice}: {path}: {error}"));
            assert!(read == *bytes, "{choice}: the kernel reads other bytes of {path}");
        }
        mounted.unmount().unwrap();
    }
}
