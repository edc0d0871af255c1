//! Writes that go past the trees: in place where a file is not copied on write, and into ordered extents.

mod chunks;
mod nocow;
mod ordered;
mod steps;
mod support;
