//! Files that tests write at random offsets, and sectors that name their writer.

use papilio::{FiemapExtent, File};

pub const SECTOR: u64 = 4096;

/// Returns the extents of a file: file offset, length and logical address, in bytes, and whether
/// the extent is preallocated.
pub fn extents_of(file: &File) -> Vec<(u64, u64, u64, bool)> {
    let unwritten = |extent: &FiemapExtent| extent.flags & FiemapExtent::UNWRITTEN != 0;
    let extents = file.fiemap(0).unwrap();
    extents.iter().map(|e| (e.start.0, e.length, e.address.0, unwritten(e))).collect()
}

/// Writes up to 16 sectors at a time at random offsets, to the file and to the model.
pub fn scatter(file: &File, model: &mut [u8], random: &mut fastrand::Rng, writes: usize) {
    let sectors = model.len() as u64 / SECTOR;
    for _ in 0..writes {
        let count = random.u64(1..=16).min(sectors);
        let at = random.u64(0..=sectors - count) * SECTOR;
        let bytes = vec![random.u8(1..); (count * SECTOR) as usize];
        file.write_all_at(&bytes, at).unwrap();
        model[at as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
}

/// Fills each sector with a word that names its writer (8 bits), the write (32) and the sector
/// (24).
pub fn stamp(buffer: &mut [u8], at: u64, writer: u64, sequence: u64) {
    for (number, sector) in buffer.chunks_exact_mut(SECTOR as usize).enumerate() {
        let place = at / SECTOR + number as u64;
        let word = ((writer << 56) | (sequence << 24) | place).to_le_bytes();
        sector.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&word));
    }
}

/// Returns the word of sector `place`; asserts that the sector is not torn and belongs there.
pub fn stamped(sector: &[u8], place: u64) -> u64 {
    let word = u64::from_le_bytes(sector[..8].try_into().unwrap());
    assert!(sector.chunks_exact(8).all(|bytes| bytes == &sector[..8]), "sector {place} is torn");
    assert!(word == 0 || word & 0xff_ffff == place, "sector {place} has {word:x}");
    word
}
