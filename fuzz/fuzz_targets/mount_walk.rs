//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks
//! and reads it. One input in eight starts from an image of the kernel's, and one in eight is checked
//! too; both take longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::Images;
use papilio_simulator::{exercise, exercise_reads, mutate};
use std::sync::LazyLock;

/// First bytes below this ask for a check.
const CHECKED: u8 = 32;

static IMAGES: LazyLock<Images> = LazyLock::new(Images::default);

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    let image = mutate(IMAGES.choose(*choice, 8, 2), plan);
    match *choice < CHECKED {
        true => exercise(image),
        false => exercise_reads(image),
    };
});
