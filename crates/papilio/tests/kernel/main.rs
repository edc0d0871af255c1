//! File systems that the kernel wrote, read by Papilio and compared with a kernel mount: every
//! path, mode, owner, time, attribute, byte, hole and extent, for each preset.
//!
//! Small by default. `PAPILIO_ORACLE_FILES`, `PAPILIO_ORACLE_BYTES` and `PAPILIO_ORACLE_PRESETS`
//! (comma-separated names) make the long run: see `make longtest`.

mod archived;
#[path = "../support/bridge.rs"]
mod bridge;
mod changed;
#[path = "../support/images.rs"]
mod images;
mod limits;
mod made;
mod matrix;
mod moved;
mod permitted;
mod profiles;
mod unnamed;
