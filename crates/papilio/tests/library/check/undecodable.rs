//! Compressed data that matches its checksums and that no reader can decode: the check of data and
//! the scrub find it, and name its files.

use super::image::Image;
use crate::in_memory::{assert_clean, check, crashed, formatted_with, open, open_with, writable};
use papilio::format::items::file_extent::{Compression, FileExtentContent, FileExtentItem};
use papilio::format::{ChecksumType, ItemType, objectid};
use papilio::{
    CompressionChoice, EncodedExtent, FileSystem, FindingKind, MkfsFeature, MkfsOptions, NewInode, NewKind,
    RaidProfile, ScrubOptions,
};
use papilio_device::{Device, MemoryDevice};
use std::sync::Arc;

const EXTENT: u64 = 128 << 10;
const CHOICES: [&str; 4] = ["zlib:1", "zlib:9", "lzo", "zstd:3"];

/// Returns text that compresses to a few sectors of each extent, and differs from one to the next.
fn text(seed: u64, length: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < length {
        bytes.extend(format!("{} lines of text, {}\n", random.u32(..), random.u8(..)).into_bytes());
    }
    bytes.truncate(length as usize);
    bytes
}

fn forced(choice: CompressionChoice) -> papilio::OpenOptions {
    writable().compress_force(choice)
}

/// Makes what no decoder accepts: the header stays, the first bits after it do not.
fn wreck(stream: &mut [u8]) {
    stream[8..72].fill(0xff);
}

/// Writes `/good-NAME` and `/bad-NAME` for each algorithm, the second extent of the latter wrecked.
fn written(device: &Arc<MemoryDevice>) {
    for choice in CHOICES {
        let fs = open_with(device, &forced(choice.parse().unwrap()));
        let content = text(1, 3 * EXTENT + 5000);
        fs.write(format!("/good-{choice}"), &content).unwrap();
        fs.write(format!("/bad-{choice}"), &content).unwrap();
        fs.sync().unwrap();
        let mut encoded = fs
            .open_file(format!("/good-{choice}"))
            .unwrap()
            .read_encoded_at(EXTENT, 1 << 20)
            .unwrap()
            .unwrap();
        assert!(encoded.compression != Compression::None && encoded.uncompressed == EXTENT, "{choice}");
        wreck(&mut encoded.data);
        write_stream(&fs, &format!("/bad-{choice}"), encoded.compression, &encoded.data, EXTENT);
        fs.close().unwrap();
    }
}

fn write_stream(fs: &FileSystem, path: &str, compression: Compression, data: &[u8], offset: u64) {
    let extent = EncodedExtent {
        compression,
        lzo_sector: 4096,
        data,
        uncompressed: EXTENT,
        offset: 0,
        length: EXTENT,
    };
    let file = fs.open_or_create(path, &NewInode::new(NewKind::Regular, 0o644)).unwrap();
    assert!(file.write_encoded_at(&extent, offset).unwrap(), "{path}");
}

#[test]
fn wrecked_streams_are_found_and_their_files_are_named() {
    for copies in [RaidProfile::Single, RaidProfile::Dup] {
        let device = formatted_with(256 << 20, &MkfsOptions::new().data_profile(copies));
        written(&device);
        let fs = open(&device);
        fs.create_subvolume("/sub").unwrap();
        write_stream(&fs, "/sub/alone", Compression::Zlib, &[&[0x78, 1][..], &[0xff; 4094]].concat(), 0);
        fs.snapshot("/sub", "/snapshot", true).unwrap();
        fs.close().unwrap();

        let report = check(&device);
        let counts: Vec<_> = report.counts.iter().map(|(kind, count)| (*kind, *count)).collect();
        assert_eq!(counts, [(FindingKind::DataUndecodable, 5)], "{:#?}", report.findings);
        assert!(report.statistics.extents_decoded > 30);
        let messages: Vec<_> = report.findings.iter().map(|finding| &finding.message).collect();
        for file in CHOICES
            .map(|choice| format!("/bad-{choice}"))
            .iter()
            .map(String::as_str)
            .chain(["/snapshot/alone, /sub/alone", "/sub/alone, /snapshot/alone"])
        {
            let named = messages.iter().filter(|message| message.ends_with(&format!("files: {file}")));
            assert_eq!(named.count(), usize::from(!file.starts_with("/snap")), "{file}: {messages:#?}");
        }
        assert!(messages.iter().all(|message| message.contains("only a rewrite from a good copy cures it")));

        let fs = open(&device);
        let scrubbed = fs.scrub(&ScrubOptions::new().decode(true), |_| true).unwrap();
        assert_eq!(scrubbed.undecodable, 5, "{scrubbed:#?}");
        assert!(!scrubbed.total().has_errors() && scrubbed.skipped == 0, "{scrubbed:#?}");
        assert!(scrubbed.undecodable_extents.iter().any(|line| line.ends_with("files: /bad-lzo")));
        assert_eq!(fs.scrub(&ScrubOptions::new().decode(false), |_| true).unwrap().undecodable, 0);
        // A reader meets what the check says, and no more.
        for choice in CHOICES {
            let file = fs.open_file(format!("/bad-{choice}")).unwrap();
            let mut buffer = vec![0; EXTENT as usize];
            assert!(file.read_at(&mut buffer, EXTENT).is_err(), "{choice}");
            file.read_at(&mut buffer, 2 * EXTENT).unwrap();
            assert!(buffer == text(1, 3 * EXTENT)[2 * EXTENT as usize..], "{choice}");
            fs.write(format!("/bad-{choice}"), text(1, 1 << 20)).unwrap();
        }
        fs.remove_file("/sub/alone").unwrap();
        fs.delete_subvolume("/snapshot").unwrap();
        fs.close().unwrap();
        assert_clean(&device);
    }
}

/// A stream of zlib that decodes to other data than was compressed, or that does not end.
#[test]
fn zlib_streams_with_a_wrong_end_are_found() {
    let device = formatted_with(256 << 20, &MkfsOptions::new());
    let fs = open(&device);
    let encoded = |bytes: &[u8]| {
        use std::io::Write;
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::new(6));
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let data = text(3, EXTENT);
    let mut stream = encoded(&data);
    let length = stream.len();
    stream.resize(length.next_multiple_of(4096), 0);
    write_stream(&fs, "/good", Compression::Zlib, &stream, 0);
    stream[length - 1] ^= 1;
    write_stream(&fs, "/checksum", Compression::Zlib, &stream, 0);
    let mut longer = encoded(&text(3, 2 * EXTENT));
    longer.resize(longer.len().next_multiple_of(4096), 0);
    assert!(longer.len() < EXTENT as usize);
    write_stream(&fs, "/end", Compression::Zlib, &longer, 0);
    for path in ["/good", "/checksum", "/end"] {
        assert!(fs.read(path).unwrap() == data, "{path}: readers ignore the end");
    }
    fs.close().unwrap();
    let report = check(&device);
    let messages: Vec<_> = report.findings.iter().map(|finding| &finding.message[..]).collect();
    assert_eq!(messages.len(), 2, "{messages:#?}");
    assert!(messages.iter().any(|found| found.contains("Adler-32") && found.ends_with("/checksum")));
    assert!(messages.iter().any(|found| found.contains("does not end") && found.ends_with("/end")));
}

#[test]
fn damaged_inline_data_is_found() {
    let device = formatted_with(256 << 20, &MkfsOptions::new());
    let fs = open_with(&device, &forced("zlib:6".parse().unwrap()));
    fs.create_dir("/folder").unwrap();
    fs.write("/folder/small", text(2, 2000)).unwrap();
    fs.write("/folder/other", text(2, 2000)).unwrap();
    fs.close().unwrap();
    assert_clean(&device);
    let image = Image::new(device.snapshot());
    let (key, _) = image.find(objectid::FS_TREE, |key, data| {
        key.item_type == ItemType::EXTENT_DATA
            && FileExtentItem::parse(data).is_ok_and(|item| {
                item.compression == Compression::Zlib && matches!(item.content, FileExtentContent::Inline(_))
            })
    });
    image
        .edit(objectid::FS_TREE, &key, |data| data[FileExtentItem::INLINE_DATA_START + 4..][..20].fill(0xff));
    let report = check(&crashed(&image.device));
    assert_eq!(report.errors(), 1, "{:#?}", report.findings);
    let finding = &report.findings[0];
    assert_eq!((finding.kind, finding.place.key), (FindingKind::DataUndecodable, Some(key)));
    assert!(finding.message.ends_with("files: /folder/small"), "{finding}");
}

/// Each extent is decoded once, also where items of checksums, reads and units of a scrub split it.
/// A checksum that is wrong is one finding only.
#[test]
fn every_extent_is_decoded_once() {
    for checksum in [ChecksumType::Crc32c, ChecksumType::Sha256] {
        let device = formatted_with(512 << 20, &MkfsOptions::new().checksum(checksum));
        let fs = open_with(&device, &forced("zstd:1".parse().unwrap()));
        let length = 300 * EXTENT;
        fs.write("/large", text(4, length)).unwrap();
        fs.close().unwrap();
        let report = check(&device);
        assert!(report.is_clean(), "{:#?}", report.findings);
        assert_eq!(report.statistics.extents_decoded, 300, "{checksum:?}");

        let image = Image::new(device.snapshot());
        let mut places = Vec::new();
        image.for_each_item(objectid::FS_TREE, |_, key, data| {
            if key.item_type == ItemType::EXTENT_DATA
                && let FileExtentContent::Regular(part) = FileExtentItem::parse(data).unwrap().content
            {
                places.push(part.disk_address);
            }
        });
        assert_eq!(places.len(), 300);
        for place in places.iter().step_by(3) {
            image.flip(*place, 1);
        }
        let report = check(&crashed(&image.device));
        let counts: Vec<_> = report.counts.iter().map(|(kind, count)| (*kind, *count)).collect();
        assert_eq!(counts, [(FindingKind::DataChecksum, 100)]);
        assert_eq!(report.statistics.extents_decoded, 200, "{checksum:?}");

        // All extents wrecked, with right checksums.
        let fs = open(&device);
        let file = fs.open_file("/large").unwrap();
        for offset in (0..length).step_by(EXTENT as usize) {
            let mut encoded = file.read_encoded_at(offset, 1 << 20).unwrap().unwrap();
            wreck(&mut encoded.data);
            write_stream(&fs, "/large", encoded.compression, &encoded.data, offset);
        }
        fs.sync().unwrap();
        let scrubbed = fs.scrub(&ScrubOptions::new().decode(true), |_| true).unwrap();
        assert_eq!(scrubbed.undecodable, 300, "{checksum:?}");
        assert_eq!(scrubbed.undecodable_extents.len(), 100, "a bounded list");
        fs.close().unwrap();
        assert_eq!(
            check(&device).counts.into_iter().collect::<Vec<_>>(),
            [(FindingKind::DataUndecodable, 300)]
        );
    }
}

/// A scrub decodes from stripes of every kind, also where a device is lost.
#[test]
fn scrubs_decode_in_all_profiles() {
    use RaidProfile::{Raid0, Raid1, Raid5, Raid6, Raid10};
    for (profile, mixed) in
        [Raid0, Raid1, Raid10, Raid5, Raid6].map(|it| (it, false)).into_iter().chain([(Raid5, true)])
    {
        let memory: Vec<Arc<MemoryDevice>> = (0..4).map(|_| Arc::new(MemoryDevice::new(512 << 20))).collect();
        let shared: Vec<Arc<dyn Device>> = memory.iter().map(|device| device.clone() as _).collect();
        let made = MkfsOptions::new().data_profile(profile).feature(MkfsFeature::MixedGroups, mixed);
        let made = made.metadata_profile(if mixed { profile } else { Raid1 });
        papilio::mkfs_devices(&shared, &made).unwrap();
        let fs = FileSystem::from_devices(shared.clone(), &forced("zstd:1".parse().unwrap())).unwrap();
        fs.write("/good", text(6, 60 * EXTENT)).unwrap();
        let mut encoded = fs.open_file("/good").unwrap().read_encoded_at(0, 1 << 20).unwrap().unwrap();
        wreck(&mut encoded.data);
        for number in 0..3 {
            write_stream(&fs, &format!("/bad{number}"), encoded.compression, &encoded.data, 0);
        }
        fs.close().unwrap();
        let losses: &[Option<usize>] = if profile == Raid0 { &[None] } else { &[None, Some(0), Some(2)] };
        for lost in losses {
            let present = shared.iter().enumerate().filter(|(number, _)| Some(*number) != *lost);
            let present = present.map(|(_, device)| device.clone()).collect();
            let fs = FileSystem::from_devices(present, &papilio::OpenOptions::new().degraded(lost.is_some()))
                .unwrap();
            let scrubbed = fs.scrub(&ScrubOptions::new().decode(true), |_| true).unwrap();
            assert_eq!(scrubbed.undecodable, 3, "{profile:?} without {lost:?}: {scrubbed:#?}");
            assert!(scrubbed.undecodable_extents.iter().all(|line| line.contains("files: /bad")));
        }
    }
}
