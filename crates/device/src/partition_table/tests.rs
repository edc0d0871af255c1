//! Tests of partition tables made by the crate `gpt` and by hand.

use super::*;
use crate::memory::MemoryDevice;
use papilio_format::PhysicalAddress;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A device as the crate `gpt` wants one.
#[derive(Debug)]
struct Disk {
    device: Arc<MemoryDevice>,
    at: u64,
}

impl Read for Disk {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = buffer.len().min(self.device.size().saturating_sub(self.at) as usize);
        self.device.read_at(&mut buffer[..length], PhysicalAddress(self.at))?;
        self.at += length as u64;
        Ok(length)
    }
}

impl Write for Disk {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.device.write_at(buffer, PhysicalAddress(self.at))?;
        self.at += buffer.len() as u64;
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Disk {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.at = match to {
            SeekFrom::Start(at) => at,
            SeekFrom::Current(by) => self.at.saturating_add_signed(by),
            SeekFrom::End(by) => self.device.size().saturating_add_signed(by),
        };
        Ok(self.at)
    }
}

/// Makes a disk of 64 MiB with two partitions by the crate `gpt`.
fn gpt_disk(sector: u64) -> Arc<MemoryDevice> {
    let device = Arc::new(MemoryDevice::new(64 * MIB));
    let size = if sector == 512 {
        ::gpt::disk::LogicalBlockSize::Lb512
    } else {
        ::gpt::disk::LogicalBlockSize::Lb4096
    };
    let mut disk = Disk { device: Arc::clone(&device), at: 0 };
    let protective = ::gpt::mbr::ProtectiveMBR::with_lb_size((64 * MIB / sector - 1) as u32);
    protective.overwrite_lba0(&mut disk).unwrap();
    let config = ::gpt::GptConfig::new().writable(true).logical_block_size(size);
    let mut made = config.create_from_device(disk, None).unwrap();
    made.add_partition("boot", 8 * MIB, ::gpt::partition_types::EFI, 0, None).unwrap();
    made.add_partition("Wurzel ä", 32 * MIB, ::gpt::partition_types::LINUX_FS, 0, None).unwrap();
    made.write().unwrap();
    device
}

#[test]
fn gpt_of_both_sector_sizes_is_read() {
    for sector in SECTOR_SIZES {
        let disk = gpt_disk(sector);
        let table = PartitionTable::read(&*disk).unwrap().unwrap();
        assert_eq!((table.kind, table.sector_size), (TableKind::Gpt, sector));
        assert!(table.faults.is_empty(), "{:?}", table.faults);
        let [first, second] = &table.partitions[..] else { panic!("{table:?}") };
        assert_eq!((first.number, first.label.as_str(), first.length), (1, "boot", 8 * MIB));
        assert_eq!((second.number, second.label.as_str(), second.length), (2, "Wurzel ä", 32 * MIB));
        assert!(second.start.get() >= first.start.get() + first.length);
        assert_eq!(first.kind.to_string(), "c12a7328-f81f-11d2-ba4b-00a0c93ec93b");
        assert_ne!(first.uuid, second.uuid);
    }
}

#[test]
fn backup_stands_in_for_a_damaged_gpt() {
    for sector in SECTOR_SIZES {
        let disk = gpt_disk(sector);
        let whole = PartitionTable::read(&*disk).unwrap().unwrap();
        // An entry of the first copy.
        disk.write_at(&[0x55], PhysicalAddress(2 * sector + 40)).unwrap();
        let table = PartitionTable::read(&*disk).unwrap().unwrap();
        assert_eq!(table.partitions, whole.partitions);
        assert!(table.faults[0].contains("using its backup"), "{:?}", table.faults);
        // And the backup's header.
        disk.write_at(&[0; 8], PhysicalAddress(64 * MIB - sector)).unwrap();
        let table = PartitionTable::read(&*disk).unwrap().unwrap();
        assert_eq!((table.kind, table.partitions.len()), (TableKind::Mbr, 0));
        assert!(table.faults[0].contains("neither of its copies"), "{:?}", table.faults);
    }
}

/// Writes a boot record with entries of type, start and sectors.
fn put_record(disk: &MemoryDevice, sector: u64, entries: &[(u8, u32, u32)]) {
    let mut bytes = [0; 512];
    bytes[440..444].copy_from_slice(&0x1234_abcd_u32.to_le_bytes());
    for (index, (kind, start, sectors)) in entries.iter().enumerate() {
        let entry = &mut bytes[446 + index * 16..][..16];
        entry[4] = *kind;
        entry[8..12].copy_from_slice(&start.to_le_bytes());
        entry[12..].copy_from_slice(&sectors.to_le_bytes());
    }
    bytes[510..].copy_from_slice(&[0x55, 0xaa]);
    disk.write_at(&bytes, PhysicalAddress(sector * 512)).unwrap();
}

fn numbers(table: &PartitionTable) -> Vec<(u32, u64, u64)> {
    let place =
        |partition: &Partition| (partition.number, partition.start.get() / 512, partition.length / 512);
    table.partitions.iter().map(place).collect()
}

#[test]
fn logical_partitions_follow_the_chain() {
    let disk = MemoryDevice::new(64 * MIB);
    put_record(&disk, 0, &[(0x83, 2048, 4096), (0x05, 8192, 65536)]);
    put_record(&disk, 8192, &[(0x83, 64, 1000), (0x05, 2000, 3000)]);
    put_record(&disk, 10192, &[(0x82, 64, 500)]);
    let table = PartitionTable::read(&disk).unwrap().unwrap();
    assert_eq!(numbers(&table), [(1, 2048, 4096), (5, 8256, 1000), (6, 10256, 500)]);
    assert!(table.faults.is_empty(), "{:?}", table.faults);
    assert_eq!(table.partitions[1].uuid, "1234abcd-05");
    assert_eq!(table.partitions[2].kind.to_string(), "0x82");
}

#[test]
fn chains_of_boot_records_end() {
    let disk = MemoryDevice::new(64 * MIB);
    put_record(&disk, 0, &[(0x0f, 8192, 65536)]);
    // Names itself, its predecessor, then a place outside of the extended partition.
    for next in [0, 1, 65536, u32::MAX] {
        put_record(&disk, 8192, &[(0x83, 64, 1000), (0x05, 2000, 3000)]);
        put_record(&disk, 10192, &[(0x83, 64, 500), (0x05, next, 3000)]);
        let table = PartitionTable::read(&disk).unwrap().unwrap();
        assert_eq!(numbers(&table), [(5, 8256, 1000), (6, 10256, 500)], "next {next}");
        assert_eq!(table.faults.len(), 1, "{:?}", table.faults);
    }
    // Records without partitions, one after the other.
    for index in 0..1000 {
        put_record(&disk, 8192 + index, &[(0, 0, 0), (0x05, index as u32 + 1, 3000)]);
    }
    let table = PartitionTable::read(&disk).unwrap().unwrap();
    assert!(table.partitions.is_empty() && table.faults[0].contains("more than 256"), "{:?}", table.faults);
}

#[test]
fn partitions_outside_of_the_disk_are_left_out() {
    let disk = MemoryDevice::new(64 * MIB);
    put_record(
        &disk,
        0,
        &[(0x83, 2048, 4096), (0x83, 4096, 4096), (0x83, 131_000, 100), (7, u32::MAX, u32::MAX)],
    );
    let table = PartitionTable::read(&disk).unwrap().unwrap();
    assert_eq!(numbers(&table), [(1, 2048, 4096), (2, 4096, 4096)]);
    assert_eq!(table.faults.len(), 3, "{:?}", table.faults);
    assert_eq!(table.faults[0], "partitions 1 and 2 overlap");
    assert_eq!(table.faults[2], "partition 4 reaches past the end of the disk at 67108864");
}

#[test]
fn boot_sectors_and_empty_tables_are_none() {
    let disk = MemoryDevice::new(64 * MIB);
    assert_eq!(PartitionTable::read(&disk).unwrap(), None);
    put_record(&disk, 0, &[]);
    assert_eq!(PartitionTable::read(&disk).unwrap(), None);
    put_record(&disk, 0, &[(0x83, 2048, 4096)]);
    disk.write_at(b"code", PhysicalAddress(446 + 16)).unwrap();
    assert_eq!(PartitionTable::read(&disk).unwrap(), None);
    for size in [1, 511, 512, 513, 1024, 4096, 8192] {
        let small = MemoryDevice::new(size);
        assert_eq!(PartitionTable::read(&small).unwrap(), None);
    }
}

#[test]
fn damaged_tables_do_no_harm() {
    let mut seed = 7u64;
    let mut random = |bound: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % bound
    };
    for round in 0..400 {
        let disk = if round % 2 == 0 { gpt_disk(512) } else { Arc::new(MemoryDevice::new(64 * MIB)) };
        if round % 2 == 1 {
            put_record(&disk, 0, &[(0x83, 2048, 4096), (0x05, 8192, 65536)]);
            put_record(&disk, 8192, &[(0x83, 64, 1000), (0x05, 2000, 3000)]);
        }
        for _ in 0..=random(8) {
            // The header with its checksum made right again, or anything.
            let place = [512 + random(92), random(1024), 446 + random(64), 8192 * 512 + 446 + random(64)];
            let place = place[random(4) as usize];
            disk.write_at(&[random(256) as u8], PhysicalAddress(place)).unwrap();
        }
        let mut header = [0; 92];
        disk.read_at(&mut header, PhysicalAddress(512)).unwrap();
        header[16..20].fill(0);
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, &header) as u32;
        disk.write_at(&sum.to_le_bytes(), PhysicalAddress(512 + 16)).unwrap();
        for partition in PartitionTable::read(&*disk).unwrap().into_iter().flat_map(|table| table.partitions)
        {
            assert!(partition.start.get() + partition.length <= 64 * MIB, "{partition:?}");
        }
    }
}
