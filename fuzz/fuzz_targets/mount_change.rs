//! Fuzzes writing to damaged file systems: changes bytes of an image, repairs the checksums, mounts
//! it for writing, takes the steps that the input names, commits, and mounts the result. One input
//! in sixteen starts from an image of the kernel's, which takes longer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::Images;
use papilio_simulator::{exercise_changes, mutate};
use std::sync::LazyLock;

/// Bytes of the input that name steps.
const STEPS: usize = 12;

static IMAGES: LazyLock<Images> = LazyLock::new(Images::default);

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    let Some((choice, rest)) = data.split_first() else { return };
    let (steps, plan) = rest.split_at(rest.len().min(STEPS));
    exercise_changes(mutate(IMAGES.choose(*choice, 16, 3), plan), steps);
});
