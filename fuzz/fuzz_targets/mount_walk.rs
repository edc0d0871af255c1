//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks,
//! reads and checks it. One input in eight starts from an image of the kernel's, which takes
//! longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::Images;
use papilio_simulator::{exercise, mutate};
use std::sync::LazyLock;

static IMAGES: LazyLock<Images> = LazyLock::new(Images::default);

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    exercise(mutate(IMAGES.choose(*choice, 8, 2), plan));
});
