//! The real fio: runs it on a job file and parses its output.

pub mod output;
pub mod run;
