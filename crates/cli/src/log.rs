//! The log of a mount's server on standard error.
//!
//! Owns [`Log`], a minimal subscriber of `tracing`. Until the mount is usable, a line looks like
//! the command's own messages. Afterwards each line has the time, the level and the text.
//! mount(8) prints nothing where a mount succeeds, and the kernel logs. So a script sees no
//! warnings of opening a file system, unless it asks for them; the mount's log has them.

use crate::time;
use papilio::Timespec;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Whether the mount is usable.
static SERVING: AtomicBool = AtomicBool::new(false);

/// The lines written before the mount was usable, each of them once.
static WRITTEN: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// The log of the mount that is being made for a script, which sees no warnings.
static FOR_SCRIPT: Mutex<Option<ScriptLog>> = Mutex::new(None);

/// Where warnings go instead of standard error; `None` drops them.
type ScriptLog = Option<File>;

/// A `tracing` subscriber that writes lines to standard error.
#[derive(Debug)]
pub struct Log;

/// The number of the least level that is written, as in [`LEVELS`].
static LEAST: AtomicUsize = AtomicUsize::new(1);
const LEVELS: [Level; 5] = [Level::ERROR, Level::WARN, Level::INFO, Level::DEBUG, Level::TRACE];

impl Log {
    /// Installs the subscriber, or changes its level. It writes warnings and errors, and more or
    /// less with `verbosity`.
    pub fn start(verbosity: i16) {
        let least = usize::try_from(verbosity + 1).unwrap_or(0).min(LEVELS.len() - 1);
        LEAST.store(least, Ordering::Relaxed);
        // Fails only if this function was called before.
        let _ = tracing::subscriber::set_global_default(Self);
        tracing::callsite::rebuild_interest_cache();
    }

    /// Writes warnings to the log only, if there is one, until the mount is usable.
    #[cfg(target_os = "linux")]
    pub fn for_script(log: Option<File>) {
        *FOR_SCRIPT.lock().unwrap_or_else(PoisonError::into_inner) = Some(log);
    }

    /// Adds the time to lines from now on, since nobody waits for them any more.
    #[cfg(target_os = "linux")]
    pub fn serving() {
        SERVING.store(true, Ordering::Relaxed);
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= LEVELS[LEAST.load(Ordering::Relaxed)] && metadata.target().starts_with("papilio")
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = *event.metadata().level();
        if !SERVING.load(Ordering::Relaxed) {
            let word = if level == Level::ERROR { "error" } else { "warning" };
            let line = format!("papilio: {word}: {}\n", text.0);
            // A command may open a file system several times.
            if WRITTEN.lock().is_ok_and(|mut written| written.insert(line.clone())) {
                match (&*FOR_SCRIPT.lock().unwrap_or_else(PoisonError::into_inner), level) {
                    (Some(Some(file)), _) => write(&mut &*file, &dated(level, &text)),
                    (Some(None), Level::WARN | Level::INFO | Level::DEBUG | Level::TRACE) => {}
                    (Some(None) | None, _) => write(&mut std::io::stderr(), &line),
                }
            }
            return;
        }
        write(&mut std::io::stderr(), &dated(level, &text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn write(log: &mut dyn std::io::Write, line: &str) {
    // A failure to write the log cannot be reported.
    let _ = log.write_all(line.as_bytes());
}

fn dated(level: Level, text: &Text) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Timespec { seconds: now.as_secs() as i64, nanoseconds: now.subsec_nanos() };
    format!("{} papilio: {level}: {}\n", time::to_second(now), text.0)
}

/// The message, followed by the other fields.
struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let result = match field.name() {
            "message" => {
                self.0 = format!("{value:?}{}", self.0);
                Ok(())
            }
            name => write!(self.0, " {name}={value:?}"),
        };
        debug_assert!(result.is_ok(), "writing to a string cannot fail");
    }
}
