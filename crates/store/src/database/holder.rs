//! `Holder`: which program has a device open for writing, for messages.
//!
//! It owns the object `writer` below the device's prefix: the host, the process, the time in
//! seconds since 1970, a random number, and `open` or `closed`, one a line. A writer stores it
//! after it has fenced all others, and when it closes. Fencing does not depend on it: a failed
//! request for it is no error.

use super::url::StoreUrl;
use chrono::{DateTime, Utc};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;
use ulid::Ulid;

const NAME: &str = "writer";
const OPEN: &str = "open";
const CLOSED: &str = "closed";
/// How long a fenced writer waits for the name of the one that fenced it.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(250);

/// A program that has, or had, a device open for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    host: String,
    pid: u32,
    since: i64,
    id: Ulid,
    is_closed: bool,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, pid, since, .. } = self;
        let since = DateTime::<Utc>::from_timestamp(*since, 0).unwrap_or_default();
        write!(f, "process {pid} on {host}, which opened it at {}", since.format("%Y-%m-%d %H:%M:%S UTC"))
    }
}

impl Holder {
    fn of_this_process() -> Self {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
        let host = host.ok().or_else(|| std::env::var("HOSTNAME").ok());
        let host = host.map(|host| host.trim().to_owned()).filter(|host| !host.is_empty());
        Self {
            host: host.unwrap_or_else(|| "a host without a name".to_owned()),
            pid: std::process::id(),
            since: Utc::now().timestamp(),
            id: Ulid::new(),
            is_closed: false,
        }
    }

    fn to_text(&self) -> String {
        let state = if self.is_closed { CLOSED } else { OPEN };
        format!("{}\n{}\n{}\n{}\n{state}\n", self.host, self.pid, self.since, self.id)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut lines = text.lines();
        let host = lines.next().filter(|host| host.len() <= 255 && !host.chars().any(char::is_control))?;
        let holder = Self {
            host: host.to_owned(),
            pid: lines.next()?.parse().ok()?,
            since: lines.next()?.parse().ok()?,
            id: Ulid::from_string(lines.next()?).ok()?,
            is_closed: match lines.next()? {
                CLOSED => true,
                OPEN => false,
                _ => return None,
            },
        };
        lines.next().is_none().then_some(holder)
    }
}

/// The place of the object, and the holder that this writer is.
pub(super) struct Claim {
    store: Arc<dyn ObjectStore>,
    path: Path,
    own: Holder,
    /// The writer that fenced this one, once it was looked for.
    other: OnceCell<Option<Holder>>,
}

impl Claim {
    /// Says that this process has the device open for writing. Returns the program that had it so
    /// before, unless that has closed it.
    pub(super) async fn make(url: &StoreUrl, store: &Arc<dyn ObjectStore>) -> (Self, Option<Holder>) {
        let path = url.path.clone().join(NAME);
        let own = Holder::of_this_process();
        let claim = Self { store: Arc::clone(store), path, own, other: OnceCell::new() };
        let before = claim.read().await.filter(|holder| !holder.is_closed);
        // Messages lack a name if it fails.
        let _ = claim.store.put(&claim.path, claim.own.to_text().into()).await;
        (claim, before)
    }

    /// Returns the holder that this writer is.
    pub(super) fn own(&self) -> &Holder {
        &self.own
    }

    async fn read(&self) -> Option<Holder> {
        let answer = self.store.get(&self.path).await.ok()?;
        if answer.meta.size > 4096 {
            return None;
        }
        Holder::parse(&answer.bytes().await.ok()?)
    }

    /// Adds the names of both writers to the error of one that was fenced.
    pub(super) async fn explain(&self, error: &io::Error) -> io::Error {
        let other = self.other.get_or_init(|| self.look_for_other()).await.as_ref();
        let other = other.map_or_else(String::new, |other| format!("; the other is {other}"));
        io::Error::new(error.kind(), format!("{error}{other}; this one is {}", self.own))
    }

    async fn look_for_other(&self) -> Option<Holder> {
        let mut waited = Duration::ZERO;
        loop {
            match self.read().await.filter(|holder| holder.id != self.own.id) {
                None if waited < PATIENCE => {
                    tokio::time::sleep(STEP).await;
                    waited += STEP;
                }
                other => return other,
            }
        }
    }

    /// Says that this process has closed the device, unless another one has opened it since.
    pub(super) async fn end(&self) {
        if self.read().await.is_some_and(|holder| holder.id == self.own.id) {
            let closed = Holder { is_closed: true, ..self.own.clone() };
            let _ = self.store.put(&self.path, closed.to_text().into()).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holders_are_read_back() {
        let holder = Holder::of_this_process();
        let text = holder.to_text();
        assert_eq!(Holder::parse(text.as_bytes()), Some(holder.clone()));
        assert!(holder.to_string().contains(&format!("process {} on ", std::process::id())));
        let closed = Holder { is_closed: true, ..holder.clone() };
        assert_eq!(Holder::parse(closed.to_text().as_bytes()), Some(closed));
        for wrong in ["", "host\n1\n2\n", &format!("{text}more\n"), &text.replace('\n', " ")] {
            assert_eq!(Holder::parse(wrong.as_bytes()), None, "{wrong}");
        }
        let since = Holder { since: 0, ..holder };
        assert!(since.to_string().ends_with("which opened it at 1970-01-01 00:00:00 UTC"));
    }
}
