//! Fuzzes whole file systems: changes bytes of an image, repairs the checksums, then mounts, walks,
//! reads and checks it. One input in eight starts from an image of the kernel's, which takes
//! longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_simulator::{BaseImage, exercise, mutate, small_images};
use std::sync::LazyLock;

static KERNELS: LazyLock<[BaseImage; 2]> = LazyLock::new(|| {
    [
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-default.img.zst")),
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-mixed.img.zst")),
    ]
});
static SMALL: LazyLock<[BaseImage; 4]> = LazyLock::new(|| small_images().expect("a device in memory"));

fuzz_target!(init: { LazyLock::force(&KERNELS); LazyLock::force(&SMALL); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    let number = usize::from(choice / 8);
    let base = if choice % 8 == 0 { &KERNELS[number % 2] } else { &SMALL[number % 4] };
    exercise(mutate(base, plan));
});
