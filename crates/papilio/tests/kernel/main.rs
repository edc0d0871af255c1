//! What the kernel wrote, read by Papilio and compared with the kernel's own view: every path, mode,
//! owner, time, attribute, byte, hole and extent, for each shape of file system.
//!
//! Small by default. `PAPILIO_ORACLE_FILES`, `PAPILIO_ORACLE_BYTES` and `PAPILIO_ORACLE_PRESETS`
//! (names with commas between) make the long run: see `make longtest`.

mod bridge;
mod changed;
mod matrix;
mod profiles;
