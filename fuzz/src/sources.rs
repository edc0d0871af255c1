//! The file systems of other kinds that `convert_source` changes: small ones, with little data.
//! `scripts/make-source-images.sh` makes them.
//!
//! Owns [`load`]. Changes and judgement are in the tests of the conversion, which do the same with
//! seeds.

#[path = "../../crates/convert/tests/convert/hostile.rs"]
mod hostile;

pub use hostile::Sources;
use papilio_device::{Device, MemoryDevice};
use papilio_format::PhysicalAddress;
use std::io::Read;

/// Bytes of a step in which an image is loaded, so that empty parts stay unallocated.
const STEP: usize = 4096;

/// Loads the images.
///
/// # Panics
/// If one is not what the script has made: images come from the repository.
pub fn load() -> Sources {
    let images: [&[u8]; 6] = [
        include_bytes!("../../tests/fixtures/source-plain.img.zst"),
        include_bytes!("../../tests/fixtures/source-xfs.img.zst"),
        include_bytes!("../../tests/fixtures/source-ext4.img.zst"),
        include_bytes!("../../tests/fixtures/source-xfs4.img.zst"),
        include_bytes!("../../tests/fixtures/source-journal.img.zst"),
        include_bytes!("../../tests/fixtures/source-ext2.img.zst"),
    ];
    Sources::new(images.map(device).into())
}

/// Returns a device with the content of a compressed image.
fn device(compressed: &[u8]) -> MemoryDevice {
    let mut content = Vec::new();
    let mut decoder = zstd::stream::read::Decoder::new(compressed).expect("it is compressed with zstd");
    decoder.read_to_end(&mut content).expect("the frame is complete");
    let device = MemoryDevice::new(content.len() as u64);
    for (at, piece) in
        content.chunks(STEP).enumerate().filter(|(_, piece)| piece.iter().any(|byte| *byte != 0))
    {
        device.write_at(piece, PhysicalAddress((at * STEP) as u64)).expect("the piece is inside");
    }
    device
}

#[cfg(test)]
mod tests {
    #[test]
    fn seeded_inputs_are_survived() {
        let sources = super::load();
        let mut state = 1u64;
        let mut byte = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let inputs = std::env::var("PAPILIO_SOURCE_INPUTS").ok().and_then(|text| text.parse().ok());
        for _ in 0..inputs.unwrap_or(2000) {
            let length = 1 + 8 * (1 + usize::from(byte() % 6));
            let input: Vec<u8> = (0..length).map(|_| byte()).collect();
            sources.prepare(&input);
        }
    }
}
