//! Answers system calls of programs that do without the C library.
//!
//! A seccomp filter stops the calls in question; the kernel tells a supervisor of each, which
//! answers it or lets the kernel carry it out (seccomp_unotify(2)). All programs that the program
//! starts are under the same filter.
//!
//! - [`filter`] has the calls, and the program that picks them.
//! - [`start`] starts a program under the filter, [`serve`] answers until it ends.
//! - [`Supervisor`] answers.
//!
//! The supervisor decides on no permission, so it does not matter that a thread can change the
//! memory that the supervisor has read.

mod answers;
pub mod filter;
mod serve;
mod start;
mod supervisor;
mod told;

pub use serve::serve;
pub use start::{Started, start};
pub use supervisor::Supervisor;
