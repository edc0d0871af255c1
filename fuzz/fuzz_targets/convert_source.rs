//! Fuzzes what a conversion reads: changes bytes of an ext or XFS image, makes checksums match
//! again in one of two inputs, and prepares its conversion. That must neither panic nor write.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::sources::{Sources, load};
use std::sync::LazyLock;

static SOURCES: LazyLock<Sources> = LazyLock::new(load);

fuzz_target!(init: { LazyLock::force(&SOURCES); }, |data: &[u8]| {
    SOURCES.prepare(data);
});
