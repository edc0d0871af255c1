//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks,
//! reads and checks it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_simulator::{BaseImage, exercise, mutate};
use std::sync::LazyLock;

static IMAGES: LazyLock<[BaseImage; 2]> = LazyLock::new(|| {
    [
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-default.img.zst")),
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-mixed.img.zst")),
    ]
});

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    exercise(mutate(&IMAGES[usize::from(choice % 2)], plan));
});
