//! Fuzzes what backups are read from: changes bytes of a repository, of its manifests, parts and
//! description, or of a chain of disk archives, and reads all of them. Checksums and names match
//! again in most inputs. That must not panic, and a restore that fails leaves no file system.
#![no_main]

use libfuzzer_sys::fuzz_target;
use papilio_fuzz::backups::{Archives, Repositories};
use std::sync::LazyLock;

static SOURCES: LazyLock<(Repositories, Archives)> =
    LazyLock::new(|| (Repositories::new(), Archives::new()));

fuzz_target!(init: { LazyLock::force(&SOURCES); }, |data: &[u8]| {
    if let [choice, data @ ..] = data {
        match choice & 1 {
            0 => SOURCES.0.read(data),
            _ => SOURCES.1.read(data),
        };
    }
});
