//! Writes that change no tree at once: overwrites in place, and ordered extents.

mod chunks;
mod growing;
#[path = "../support/in_memory.rs"]
mod in_memory;
mod nocow;
mod ordered;
mod steps;
mod support;
