//! Fuzzes writing to damaged file systems: changes bytes of an image, repairs the checksums, mounts
//! it for writing, takes the steps that the input names, commits, and mounts the result. One input
//! in sixteen starts from an image of the kernel's, which takes longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_simulator::{BaseImage, exercise_changes, mutate, small_images};
use std::sync::LazyLock;

/// Bytes of the input that name steps.
const STEPS: usize = 12;

static KERNELS: LazyLock<[BaseImage; 3]> = LazyLock::new(|| {
    [
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-default.img.zst")),
        BaseImage::load(include_bytes!("../../tests/fixtures/fuzz-mixed.img.zst")),
        BaseImage::load(include_bytes!("../../tests/fixtures/fsync-log.img.zst")),
    ]
});
static SMALL: LazyLock<[BaseImage; 4]> = LazyLock::new(|| small_images().expect("a device in memory"));

fuzz_target!(init: { LazyLock::force(&KERNELS); LazyLock::force(&SMALL); }, |data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let (steps, plan) = rest.split_at(rest.len().min(STEPS));
    let number = usize::from(choice / 16);
    let base = if choice % 16 == 0 { &KERNELS[number % 3] } else { &SMALL[number % 4] };
    exercise_changes(mutate(base, plan), steps);
});
