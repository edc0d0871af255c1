//! `Activity`: when a device was last used, and the clock by which SlateDB rests meanwhile.
//!
//! SlateDB looks for new manifests every second, for compactions every five, and for garbage every
//! few minutes. Each look costs requests. [`RestingClock`] is the clock of a writer's database. Its
//! tickers stop once the device has not been used for [`REST_AFTER`], and go on with the next use.
//! So an idle device costs no request.
//!
//! **Invariants**
//! - A use is one of the device's own calls that writes, or an object that the database writes. A
//!   compaction under way is a use.
//! - Sleeps that are no ticks, such as waits before a request is repeated, take their time only.
//!
//! **Locks**: `last`, held for a copy.

use chrono::{DateTime, Utc};
use papilio_locks::Mutex;
use slatedb_common::clock::{SystemClock, SystemClockTicker};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use tokio::sync::Notify;

/// How long a device must not be used until it rests.
pub(super) const REST_AFTER: Duration = Duration::from_secs(if cfg!(test) { 2 } else { 20 });

/// When a device was last used.
#[derive(Debug)]
pub(super) struct Activity {
    last: Mutex<Instant>,
    used: Notify,
}

impl Default for Activity {
    fn default() -> Self {
        Self { last: Mutex::new(Instant::now()), used: Notify::new() }
    }
}

impl Activity {
    /// Notes a use.
    pub(super) fn note(&self) {
        *self.last.lock() = Instant::now();
        self.used.notify_waiters();
    }

    /// Returns whether the device rests.
    pub(super) fn is_resting(&self) -> bool {
        self.last.lock().elapsed() > REST_AFTER
    }

    async fn wait(&self) {
        loop {
            let used = self.used.notified();
            tokio::pin!(used);
            // From here on a use is not missed.
            used.as_mut().enable();
            if !self.is_resting() {
                return;
            }
            used.await;
        }
    }
}

type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A clock whose tickers rest with the device.
#[derive(Debug)]
pub(super) struct RestingClock {
    ticks: Ticks,
}

/// The clock of the tickers.
#[derive(Debug)]
struct Ticks {
    activity: Arc<Activity>,
}

impl RestingClock {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        Self { ticks: Ticks { activity } }
    }
}

impl SystemClock for RestingClock {
    fn now(&self) -> DateTime<Utc> {
        SystemTime::now().into()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(&self.ticks, duration)
    }
}

impl SystemClock for Ticks {
    fn now(&self) -> DateTime<Utc> {
        SystemTime::now().into()
    }

    fn sleep<'a>(&'a self, duration: Duration) -> Sleep<'a> {
        Box::pin(async move {
            tokio::time::sleep(duration).await;
            self.activity.wait().await;
        })
    }

    fn ticker<'a>(&'a self, duration: Duration) -> SystemClockTicker<'a> {
        SystemClockTicker::new(self, duration)
    }
}
