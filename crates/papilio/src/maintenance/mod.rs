//! Jobs on a whole file system.

pub(crate) mod check;
