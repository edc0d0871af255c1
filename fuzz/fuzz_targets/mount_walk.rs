//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks
//! and reads it. One input in eight starts from an image of the kernel's. One in 32 is checked too,
//! which takes as long as ten walks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::Images;
use papilio_simulator::{exercise, exercise_reads, mutate};
use std::sync::LazyLock;

/// One input of so many is checked.
const CHECKED: u32 = 32;

static IMAGES: LazyLock<Images> = LazyLock::new(Images::default);

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    // The second byte only varies the sum.
    let [choice, _, plan @ ..] = data else { return };
    let image = mutate(IMAGES.choose(*choice, 8, 2), plan);
    // Not by a byte of the input: libFuzzer keeps inputs that reach the check, so that most of
    // their descendants would be checked too.
    let sum = data.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    match sum % CHECKED {
        0 => exercise(image),
        _ => exercise_reads(image),
    };
});
