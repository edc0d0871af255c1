//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks
//! and reads it. One input in eight starts from an image of the kernel's. One in 32 is checked too,
//! which takes as long as ten walks.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::Images;
use papilio_fuzz::is_checked;
use papilio_simulator::{exercise, exercise_reads, mutate};
use std::sync::LazyLock;

/// One input of so many is checked.
const CHECKED: u32 = 32;

static IMAGES: LazyLock<Images> = LazyLock::new(Images::default);

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    // The second byte only varies the sum.
    let [choice, _, plan @ ..] = data else { return };
    let image = mutate(IMAGES.choose(*choice, 8, 2), plan);
    if is_checked(data, CHECKED) {
        exercise(image);
    } else {
        exercise_reads(image);
    }
});
