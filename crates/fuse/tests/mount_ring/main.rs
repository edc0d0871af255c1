//! The tests of `mount` over io_uring, and tests of the rings themselves.

#[path = "../mount/access_times.rs"]
mod access_times;
#[path = "../mount/cached.rs"]
mod cached;
#[path = "../mount/calls/mod.rs"]
mod calls;
#[path = "../mount/compared.rs"]
mod compared;
#[path = "../mount/ioctls.rs"]
mod ioctls;
#[path = "../mount/limits.rs"]
mod limits;
#[path = "../mount/listings.rs"]
mod listings;
#[path = "../mount/parallel.rs"]
mod parallel;
#[path = "../mount/random.rs"]
mod random;
mod rings;
#[path = "../mount/scarce.rs"]
mod scarce;
#[path = "../mount/script.rs"]
#[expect(dead_code, reason = "two scripts are joined by other tests")]
mod script;
#[path = "../mount/server.rs"]
mod server;
#[path = "../mount/smoke.rs"]
mod smoke;
#[path = "../mount/steps/mod.rs"]
mod steps;
#[path = "../mount/subvolumes.rs"]
mod subvolumes;
mod switched;
mod transport;
