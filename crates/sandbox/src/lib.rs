//! Takes rights from a process of Papilio before it reads images of others.
//!
//! A fault in a parser may give the author of an image the rights of the process. So a process
//! keeps only the rights that its [`Job`] needs. [`Sandbox`] takes the others away, in two steps:
//!
//! 1. [`Sandbox::enter`], before the first byte of an image is read. From here on the process
//!    starts no program, connects to nothing and changes no other process. A job that only reads
//!    opens files for reading only. It can still search the machine for devices.
//! 2. [`Sandbox::seal`], once all devices are open. From here on the process reaches no path but
//!    those of its job, and has no capability but those of its job.
//!
//! **Invariants**
//! - A step never gives a right back. The kernel sees to it.
//! - Whatever the kernel lacks is left out, and the [`Report`] says so. The job goes on.
//! - A system call that is refused fails with an error. It never seems to have succeeded.
//!
//! **Threads.** The first step comes before threads start. The filters of the second step hold for
//! all threads. Landlock holds for all threads since Linux 7.0, and before that for the calling
//! thread and those that it starts. Capabilities always belong to a thread.

mod job;
mod mode;
mod places;
mod report;
mod sandbox;

pub use job::Job;
pub use mode::Mode;
pub use report::{Part, Report};
pub use sandbox::{Sandbox, kernel_parts};

#[cfg(target_os = "linux")]
mod capabilities;
#[cfg(target_os = "linux")]
mod filter;
#[cfg(target_os = "linux")]
mod limits;
#[cfg(target_os = "linux")]
mod mounts;
#[cfg(target_os = "linux")]
mod paths;
#[cfg(target_os = "linux")]
mod system_calls;

#[cfg(not(target_os = "linux"))]
#[path = "elsewhere.rs"]
mod host;
#[cfg(target_os = "linux")]
#[path = "linux.rs"]
mod host;
