//! Fuzzes the replay of logs: changes bytes of log trees only, repairs the checksums, and mounts
//! the image for writing, which replays the log. The result must mount, or the mount be refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::images::kernels_log;
use papilio_simulator::{BaseImage, exercise_changes, mutate, small_images};
use std::sync::LazyLock;

/// An image with a log, and one that holds more kinds of changes.
static IMAGES: LazyLock<[BaseImage; 2]> = LazyLock::new(|| {
    let [.., small] = small_images().expect("a device in memory");
    [small.only_logs(), kernels_log().only_logs()]
});

fuzz_target!(init: { LazyLock::force(&IMAGES); }, |data: &[u8]| {
    let Some((choice, plan)) = data.split_first() else { return };
    let summary = exercise_changes(mutate(&IMAGES[usize::from(choice % 2)], plan), &[]);
    assert!(!summary.mounted || summary.mounts_again);
});
