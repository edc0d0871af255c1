//! `StillClock`: a clock whose tickers never tick.
//!
//! A SlateDB reader that names no checkpoint follows the writer at the ticks of its clock. The
//! first tick comes at once. A file system in use must not change below its reader.

use chrono::{DateTime, Utc};
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use std::pin::Pin;
use std::time::{Duration, SystemTime};

/// The time of the system, without ticks.
#[derive(Debug)]
pub(super) struct StillClock;

/// A clock that stands still.
#[derive(Debug)]
struct Stopped;

static STOPPED: Stopped = Stopped;

type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl SystemClock for StillClock {
    fn now(&self) -> DateTime<Utc> {
        SystemTime::now().into()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(&STOPPED, duration)
    }
}

impl SystemClock for Stopped {
    fn now(&self) -> DateTime<Utc> {
        DateTime::<Utc>::MIN_UTC
    }

    fn sleep<'a>(&'a self, _: Duration) -> Sleep<'a> {
        Box::pin(std::future::pending())
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
