//! The real fio: running it on a job file, and reading what it says.

pub mod output;
pub mod run;
