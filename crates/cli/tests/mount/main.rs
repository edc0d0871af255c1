//! `papilio mount` from end to end, with the real binary: mounting in the background and in the foreground,
//! commands on mounted paths, mount(8) and its helpers, ends of all kinds, and what cannot be mounted.

mod bad_input;
mod commands;
mod ends;
mod helpers;
mod kernel;
mod world;
