//! Writes that change no tree at once: overwrites in place, and ordered extents.

mod chunks;
mod growing;
mod nocow;
mod ordered;
mod steps;
pub mod support;
