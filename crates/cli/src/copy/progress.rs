//! The progress bar of a copy: bytes written, of bytes that a second walk counts ahead.
//!
//! Shown only where a person watches; a copy without it costs nothing more.

use super::event::Event;
use super::source::{Source, SourceOptions};
use indicatif::{ProgressBar, ProgressStyle};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How far a copy is.
pub struct Progress {
    bar: Option<ProgressBar>,
}

/// Ends the counting walk when the copy is over.
pub struct Counting(Arc<AtomicBool>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    /// A bar on standard error where `shown`.
    pub fn new(shown: bool) -> Self {
        if !shown {
            return Self { bar: None };
        }
        let form = "{elapsed_precise} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} eta {eta}";
        let bar = ProgressBar::new(0);
        if let Ok(style) = ProgressStyle::with_template(form) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self { bar: Some(bar) }
    }

    /// The bar, if there is one.
    pub fn bar(&self) -> Option<ProgressBar> {
        self.bar.clone()
    }

    /// Bytes of a file were written.
    pub fn add_bytes(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Whatever else was done: a link counts as the bytes that it shares, as in the total.
    pub fn add_file(&self, event: &Event) {
        if let (Some(bar), Event::Link { size, .. }) = (&self.bar, event) {
            bar.inc(*size);
        }
    }

    /// Counts the bytes to copy on another thread, for the bar's length.
    pub fn count_ahead(&self, sources: &[Source], options: SourceOptions) -> Option<Counting> {
        let bar = self.bar.clone()?;
        let sources = sources.to_vec();
        let over = Arc::new(AtomicBool::new(false));
        let counting = Counting(Arc::clone(&over));
        // It ends by itself soon after `over` is set, and holds nothing that matters.
        std::thread::spawn(move || {
            for source in sources {
                count(source, options, &bar, &over);
            }
        });
        Some(counting)
    }
}

/// Adds what `source` holds to the bar's length. What cannot be read is left to the copy to report.
fn count(source: Source, options: SourceOptions, bar: &ProgressBar, over: &AtomicBool) {
    let home = source.inode.tree();
    let mut entered = HashSet::new();
    let mut pending = vec![source.inode];
    while let Some(inode) = pending.pop() {
        if inode.metadata().kind() == papilio::FileKind::Regular {
            let metadata = inode.metadata();
            // The copy skips holes; a compressed file's bytes are counted before compression.
            bar.inc_length(metadata.size().min(metadata.allocated_bytes()));
            continue;
        }
        let foreign = options.one_subvolume && inode.tree() != home;
        if inode.metadata().kind() != papilio::FileKind::Directory
            || foreign
            || !entered.insert((inode.tree(), inode.number()))
        {
            continue;
        }
        for entry in inode.entries().into_iter().flatten() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let Ok(entry) = entry else { break };
            pending.extend(entry.inode());
        }
    }
}
