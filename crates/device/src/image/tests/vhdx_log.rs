//! Tests of logs of VHDX that a program left behind, with qemu-img as the judge.

use super::*;

const MIB: usize = 1 << 20;
const LOG: usize = MIB;
const PAGE: usize = 4096;
const ID: [u8; 16] = [0x5a; 16];

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let mut copy = bytes.to_vec();
    copy[4..8].fill(0);
    (crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &copy) as u32).to_le_bytes()
}

/// An entry with pages, each with its place, as [MS-VHDX] 2.3.1 has it.
fn entry(sequence: u64, tail: usize, size: usize, pages: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; PAGE * (1 + pages.len())];
    let length = bytes.len() as u32;
    put(&mut bytes, 0, b"loge");
    put(&mut bytes, 8, &length.to_le_bytes());
    put(&mut bytes, 12, &(tail as u32).to_le_bytes());
    put(&mut bytes, 16, &sequence.to_le_bytes());
    put(&mut bytes, 24, &(pages.len() as u32).to_le_bytes());
    put(&mut bytes, 32, &ID);
    put(&mut bytes, 48, &(size as u64).to_le_bytes());
    put(&mut bytes, 56, &(size as u64).to_le_bytes());
    for (index, (place, page)) in pages.iter().enumerate() {
        let descriptor = 64 + 32 * index;
        put(&mut bytes, descriptor, b"desc");
        put(&mut bytes, descriptor + 4, &page[PAGE - 4..]);
        put(&mut bytes, descriptor + 8, &page[..8]);
        put(&mut bytes, descriptor + 16, &(*place as u64).to_le_bytes());
        put(&mut bytes, descriptor + 24, &sequence.to_le_bytes());
        let data = PAGE * (1 + index);
        put(&mut bytes, data, page);
        put(&mut bytes, data, b"data");
        put(&mut bytes, data + 4, &((sequence >> 32) as u32).to_le_bytes());
        put(&mut bytes, data + PAGE - 4, &(sequence as u32).to_le_bytes());
    }
    let sum = checksum(&bytes);
    put(&mut bytes, 4, &sum);
    bytes
}

/// Gives both headers the identifier of the log.
fn dirty(image: &mut [u8]) {
    for header in [64 << 10, 128 << 10] {
        if image[header..].starts_with(b"head") {
            put(image, header + 48, &ID);
            let sum = checksum(&image[header..header + PAGE]);
            put(image, header + 4, &sum);
        }
    }
}

fn write_ring(image: &mut [u8], at: usize, entry: &[u8]) {
    for (index, byte) in entry.iter().enumerate() {
        image[LOG + (at + index) % MIB] = *byte;
    }
}

/// Entries and their places in a log.
type Ring = Vec<(usize, Vec<u8>)>;

/// Logs whose last finished entry for a page is `new`.
fn histories(size: usize, new: (usize, &[u8]), old: (usize, &[u8])) -> Vec<(&'static str, Ring)> {
    let entry = |sequence, tail, page| entry(sequence, tail, size, &[page]);
    let mut torn = entry(9, 0, old);
    torn[700] ^= 1;
    // Entries have two pages.
    let before_end = MIB - 3 * PAGE;
    vec![
        ("one entry", vec![(0, entry(1, 0, new))]),
        ("two entries", vec![(8192, entry(7, 8192, old)), (16384, entry(8, 8192, new))]),
        (
            "around the end of the ring",
            vec![
                (before_end, entry(u64::from(u32::MAX), before_end, old)),
                (before_end + 2 * PAGE, entry(1 << 32, before_end, new)),
            ],
        ),
        ("the last one was not finished", vec![(0, entry(8, 0, new)), (8192, torn)]),
        ("an older one behind the tail", vec![(40960, entry(3, 40960, old)), (0, entry(8, 0, new))]),
    ]
}

/// Tables that were changed in the log only count, for readers and writers, and as QEMU has it.
#[test]
fn a_log_left_behind_is_applied() {
    if !has("qemu-img") {
        return;
    }
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let bytes = content();
    std::fs::write(at("raw"), &bytes).unwrap();
    let options = "subformat=dynamic,block_size=1048576";
    let (raw, whole) = (text(&at("raw")), text(&at("whole")));
    run("qemu-img", &["convert", "-f", "raw", "-O", "vhdx", "-o", options, &raw, &whole]);
    let good = std::fs::read(at("whole")).unwrap();
    let table = 2 * MIB;
    let page = good[table..table + PAGE].to_vec();
    let older = {
        let mut older = page.clone();
        older[8..64].fill(0);
        older
    };
    let lacking = |entries: &[(usize, Vec<u8>)]| {
        let mut image = good.clone();
        image[table..table + PAGE].fill(0);
        dirty(&mut image);
        for (at, entry) in entries {
            write_ring(&mut image, *at, entry);
        }
        image
    };
    let size = good.len();
    for (name, entries) in histories(size, (table, &page), (table, &older)) {
        let (path, copy) = (at("dirty"), at("copy"));
        let image = lacking(&entries);
        std::fs::write(&path, &image).unwrap();
        std::fs::write(&copy, &image).unwrap();
        // QEMU applies it.
        run("qemu-img", &["check", "-q", "-r", "all", "-f", "vhdx", &text(&copy)]);
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "vhdx", &raw, &text(&copy)]);
        // A reader sees it applied, and leaves the file as it is.
        assert_reads(&*open(&path, Access::ReadOnly).unwrap(), &bytes);
        assert!(std::fs::read(&path).unwrap() == image, "{name}");
        // A writer applies it, and needs no log any more.
        let device = open(&path, Access::ReadWrite).unwrap();
        assert_reads(&*device, &bytes);
        device.write_at(&bytes[..10], PhysicalAddress(0)).unwrap();
        drop(device);
        run("qemu-img", &["check", "-q", "-f", "vhdx", &text(&path)]);
        run("qemu-img", &["compare", "-q", "-f", "raw", "-F", "vhdx", &raw, &text(&path)]);
        assert_eq!(std::fs::read(&path).unwrap()[table..table + PAGE], page, "{name}");
    }
    // Nothing was finished, so nothing counts.
    let mut torn = entry(1, 0, size, &[(table, &page)]);
    torn[5000] ^= 1;
    std::fs::write(at("dirty"), lacking(&[(0, torn)])).unwrap();
    assert_reads(&*open(&at("dirty"), Access::ReadOnly).unwrap(), &vec![0; SIZE as usize]);
    // Each page begins an entry that is as long as the log. Verifying them all would need checksums
    // of 1 TiB for a log of 64 MiB.
    let mut long = entry(1, 0, size, &[]);
    put(&mut long, 8, &(MIB as u32).to_le_bytes());
    let pages: Vec<_> = (0..MIB).step_by(PAGE).map(|at| (at, long.clone())).collect();
    std::fs::write(at("dirty"), lacking(&pages)).unwrap();
    assert!(refused(&at("dirty")).contains("overlap"));
    // A file that lost its end since.
    std::fs::write(at("dirty"), lacking(&[(0, entry(1, 0, size + 1, &[(table, &page)]))])).unwrap();
    assert!(refused(&at("dirty")).contains("shorter"));
}
