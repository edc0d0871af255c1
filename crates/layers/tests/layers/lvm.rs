//! Volume groups in memory, with the headers that lvm2 writes.

use papilio_device::{Device, MemoryDevice, PhysicalAddress};
use papilio_layers::LayerError;
use papilio_layers::lvm::{PhysicalVolume, open_volume};
use std::sync::Arc;

const EXTENT: u64 = 1 << 20;
const SIZE: u64 = 12 * EXTENT;

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0xf597_a6cf, |crc: u32, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}

fn uuid(number: u8) -> String {
    String::from_utf8(vec![b'a' + number; 32]).unwrap()
}

/// Writes a label and metadata that begins near the end of its area, and goes on at its start.
fn put(device: &MemoryDevice, number: u8, text: &str) {
    const AREA: u64 = 4096;
    const AREA_SIZE: u64 = EXTENT - AREA;
    let mut label = vec![0; 512];
    let mut set = |at: usize, bytes: &[u8]| label[at..at + bytes.len()].copy_from_slice(bytes);
    set(0, b"LABELONE");
    set(8, &1_u64.to_le_bytes());
    set(20, &32_u32.to_le_bytes());
    set(24, b"LVM2 001");
    set(32, uuid(number).as_bytes());
    set(64, &SIZE.to_le_bytes());
    set(72, &EXTENT.to_le_bytes());
    set(104, &AREA.to_le_bytes());
    set(112, &AREA_SIZE.to_le_bytes());
    let sum = checksum(&label[20..]);
    label[16..20].copy_from_slice(&sum.to_le_bytes());
    device.write_at(&label, PhysicalAddress(512)).unwrap();
    let start = AREA_SIZE - 100;
    let mut header = vec![0; 512];
    let mut set = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    set(4, b"\x20LVM2\x20x[5A%r0N*>");
    set(20, &1_u32.to_le_bytes());
    set(24, &AREA.to_le_bytes());
    set(32, &AREA_SIZE.to_le_bytes());
    set(40, &start.to_le_bytes());
    set(48, &(text.len() as u64).to_le_bytes());
    set(56, &checksum(text.as_bytes()).to_le_bytes());
    let sum = checksum(&header[4..]);
    header[..4].copy_from_slice(&sum.to_le_bytes());
    device.write_at(&header, PhysicalAddress(AREA)).unwrap();
    let (first, rest) = text.as_bytes().split_at(text.len().min(100));
    device.write_at(first, PhysicalAddress(AREA + start)).unwrap();
    device.write_at(rest, PhysicalAddress(AREA + 512)).unwrap();
}

fn text() -> String {
    let physical =
        |number: u8| format!("pv{number} {{ id = \"{}\" pe_start = 2048 pe_count = 11 }}\n", uuid(number));
    let volume = |name: &str, segments: &[&str]| {
        let all: Vec<String> = segments
            .iter()
            .zip(1..)
            .map(|(text, number)| format!("segment{number} {{ {text} }}\n"))
            .collect();
        format!(
            "{name} {{ id = \"x\" status = [\"READ\", \"WRITE\", \"VISIBLE\"] segment_count = {}\n{} }}\n",
            all.len(),
            all.concat()
        )
    };
    let segment =
        |start: u32, count: u32, rest: &str| format!("start_extent = {start} extent_count = {count} {rest}");
    let one = segment(0, 3, "type = \"striped\" stripe_count = 1 stripes = [\"pv1\", 4]");
    let two = segment(3, 2, "type = \"striped\" stripe_count = 1 stripes = [\"pv0\", 0]");
    let stripes = segment(
        0,
        4,
        "type = \"striped\" stripe_count = 2 stripe_size = 32 stripes = [\"pv0\", 5, \"pv1\", 0]",
    );
    let mirror = segment(0, 1, "type = \"mirror\" mirror_count = 2 mirrors = [\"pv0\", 9, \"pv1\", 9]");
    let thin = segment(0, 1, "type = \"thin\"");
    let circle = segment(0, 1, "type = \"striped\" stripe_count = 1 stripes = [\"circle\", 0]");
    let past = segment(0, 3, "type = \"striped\" stripe_count = 1 stripes = [\"pv0\", 10]");
    [
        "# comment\nvg {\nid = \"vg-id\"\nseqno = 7\nextent_size = 2048\nphysical_volumes {\n",
        &physical(0),
        &physical(1),
        "}\nlogical_volumes {\n",
        &volume("linear", &[&one, &two]),
        &volume("stripes", &[&stripes]),
        &volume("mirror", &[&mirror]),
        &volume("thin", &[&thin]),
        &volume("circle", &[&circle]),
        &volume("past", &[&past]),
        "}\n}\ncontents = \"Text Format Volume Group\"\n\0",
    ]
    .concat()
}

fn devices() -> Vec<(String, Arc<dyn Device>)> {
    let device = |number| {
        let device = MemoryDevice::new(SIZE);
        put(&device, number, &text());
        (uuid(number), Arc::new(device) as Arc<dyn Device>)
    };
    vec![device(0), device(1)]
}

#[test]
fn volumes_are_where_the_metadata_says() {
    let present = devices();
    let group = PhysicalVolume::read(&*present[0].1).unwrap().unwrap().group.unwrap();
    assert_eq!((group.sequence, group.volumes.len()), (7, 6));
    let open = |volume: &str| open_volume(&group, volume, &present, volume.to_owned());
    let (linear, read_only) = open("linear").unwrap();
    assert_eq!((linear.size(), read_only), (5 * EXTENT, None));
    let bytes: Vec<u8> = (0..5 * EXTENT).map(|at| (at / 4096) as u8).collect();
    linear.write_at(&bytes, PhysicalAddress(0)).unwrap();
    let mut found = vec![0; 4096];
    present[1].1.read_at(&mut found, PhysicalAddress(EXTENT * 5 + 8192)).unwrap();
    assert!(found.iter().all(|byte| *byte == 2));
    present[0].1.read_at(&mut found, PhysicalAddress(EXTENT)).unwrap();
    assert!(found.iter().all(|byte| *byte == (3 * EXTENT / 4096) as u8));
    let mut all = vec![0; bytes.len()];
    linear.read_at(&mut all, PhysicalAddress(0)).unwrap();
    assert!(all == bytes);
    assert!(linear.read_at(&mut [0; 2], PhysicalAddress(5 * EXTENT - 1)).is_err());

    let (stripes, _) = open("stripes").unwrap();
    stripes.write_at(&bytes[..4 * EXTENT as usize], PhysicalAddress(0)).unwrap();
    // The fourth stripe of 16 KiB is the second of the second leg.
    present[1].1.read_at(&mut found, PhysicalAddress(EXTENT + (16 << 10))).unwrap();
    assert!(found.iter().all(|byte| *byte == 12));
    stripes.flush().unwrap();

    let (mirror, read_only) = open("mirror").unwrap();
    assert!(read_only.unwrap().contains("mirror"));
    assert!(mirror.write_at(&[0; 512], PhysicalAddress(0)).is_err());
    assert!(open("thin").unwrap_err().to_string().contains("\"thin\" is not supported"));
    assert!(matches!(open("circle"), Err(LayerError::Circle { .. })));
    assert!(open("past").unwrap_err().to_string().contains("past the end"));
    assert!(open("none").unwrap_err().to_string().contains("no volume"));
}

#[test]
fn a_missing_physical_volume_is_named() {
    let present = devices();
    let group = PhysicalVolume::read(&*present[0].1).unwrap().unwrap().group.unwrap();
    let error = open_volume(&group, "linear", &present[..1].to_vec(), "linear".to_owned()).unwrap_err();
    assert!(error.to_string().contains(&format!("pv1 ({})", uuid(1))), "{error}");
    // One mirror is enough.
    open_volume(&group, "mirror", &present[..1].to_vec(), "mirror".to_owned()).unwrap();
}

#[test]
fn damaged_metadata_never_panics() {
    let text = text();
    let mut random = fastrand::Rng::with_seed(9);
    for round in 0..2000 {
        let device = MemoryDevice::new(SIZE);
        if round % 2 == 0 {
            // Good checksums around numbers and names that are not.
            let mut bytes = text.clone().into_bytes();
            for _ in 0..random.usize(1..8) {
                let at = random.usize(..bytes.len() - 1);
                bytes[at] = b"0123456789 \"[]{}=pv"[random.usize(..19)];
            }
            put(&device, 0, std::str::from_utf8(&bytes).unwrap());
        } else {
            put(&device, 0, &text);
            let at = random.u64(512..8192);
            device.write_at(&[random.u8(..)], PhysicalAddress(at)).unwrap();
        }
        let device: Arc<dyn Device> = Arc::new(device);
        let Some(Ok(physical)) = PhysicalVolume::read(&*device) else { continue };
        let Some(group) = physical.group else { continue };
        let present = vec![(uuid(0), Arc::clone(&device)), (uuid(1), device)];
        for volume in &group.volumes {
            if let Ok((opened, _)) = open_volume(&group, &volume.name, &present, "volume".to_owned()) {
                let mut bytes = [0; 4096];
                let _ = opened.read_at(&mut bytes, PhysicalAddress(opened.size().saturating_sub(4096)));
            }
        }
    }
}
