//! The owner of new inodes ([`Caller`]), and the progress of commands that fill a file system
//! ([`Report`]).

use crate::context::Context;
use crate::output::escaped;
use indicatif::{ProgressBar, ProgressStyle};
use papilio::{Error, NewInode, NewKind, PopulateObserver};
use std::io::IsTerminal;
use std::time::Duration;

/// The user who runs the command, and owns new inodes, as on a mounted file system.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permission bits that new files do not get.
    pub umask: u32,
}

impl Caller {
    /// Returns the ids and the umask of this process.
    // The umask has another type on other hosts.
    #[allow(clippy::useless_conversion)]
    pub fn new() -> Self {
        // The umask can only be read by setting it. No other thread creates files now.
        let umask = rustix::process::umask(rustix::fs::Mode::empty());
        rustix::process::umask(umask);
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: umask.bits().into(),
        }
    }

    /// Returns a new inode that this user owns.
    pub fn inode<'a>(&self, kind: NewKind<'a>, mode: u32) -> NewInode<'a> {
        NewInode::new(kind, mode).owner(self.uid, self.gid).umask(self.umask)
    }
}

/// Reports the progress of filling a file system: names under -v, problems, and a bar on a
/// terminal.
pub struct Report<'a> {
    context: &'a Context,
    bar: Option<ProgressBar>,
    /// Whether a problem with one file ends the command.
    strict: bool,
    prefix: Vec<u8>,
}

impl<'a> Report<'a> {
    /// Creates a report without a bar if `silent`. Names are shown after `prefix`.
    pub fn new(context: &'a Context, silent: bool, strict: bool, prefix: &[u8]) -> Self {
        let shown = !silent && context.verbosity == 0 && std::io::stderr().is_terminal();
        let bar = shown.then(|| {
            let bar = ProgressBar::new_spinner();
            let form = "{elapsed_precise} {spinner} {bytes} {bytes_per_sec} {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(form) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        context.set_progress(bar.clone());
        Self { context, bar, strict, prefix: prefix.to_vec() }
    }
}

impl Drop for Report<'_> {
    fn drop(&mut self) {
        self.context.set_progress(None);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl PopulateObserver for Report<'_> {
    fn entry(&mut self, path: &[u8]) {
        if self.context.verbosity <= 0 && self.bar.is_none() {
            return;
        }
        let shown = escaped(path);
        if let Some(bar) = &self.bar {
            bar.set_message(String::from_utf8_lossy(&shown).into_owned());
        }
        if self.context.verbosity > 0 {
            let prefix = escaped(&self.prefix);
            let line = [&prefix[..], &shown[..]].concat();
            self.context.note(String::from_utf8_lossy(&line));
        }
    }

    fn bytes(&mut self, count: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(count);
        }
    }

    fn problem(&mut self, problem: Error) -> papilio::Result<()> {
        if self.strict {
            return Err(problem);
        }
        let prefix = String::from_utf8_lossy(&self.prefix);
        match problem {
            Error::Path { .. } => self.context.error(format_args!("{prefix}{problem}")),
            problem => self.context.error(problem),
        }
        Ok(())
    }
}
