//! The progress bar of a copy. A second walk of the sources counts the total bytes ahead.
//!
//! The bar is shown only on a terminal. Without it there is no second walk.

use indicatif::{ProgressBar, ProgressStyle};
use papilio::{Source, SourceOptions};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The progress of a copy.
pub struct Progress {
    bar: Option<ProgressBar>,
}

/// Stops the counting walk when dropped.
pub struct Counting(Arc<AtomicBool>);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Progress {
    /// Creates a bar on standard error if `shown`.
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

    /// Returns the bar, if there is one.
    pub fn bar(&self) -> Option<ProgressBar> {
        self.bar.clone()
    }

    /// Adds bytes of a file, or the size of a link, which the total includes too.
    pub fn add_bytes(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Counts the bytes to copy on another thread, for the bar's length.
    pub fn count_ahead(&self, sources: &[Source], options: &SourceOptions) -> Option<Counting> {
        let bar = self.bar.clone()?;
        let (sources, one_subvolume) = (sources.to_vec(), options.one_subvolume || options.skip_subvolumes);
        let over = Arc::new(AtomicBool::new(false));
        let counting = Counting(Arc::clone(&over));
        // The thread is not joined: it ends soon after `over` is set.
        std::thread::spawn(move || {
            for source in sources {
                count(source, one_subvolume, &bar, &over);
            }
        });
        Some(counting)
    }
}

/// Adds the bytes of `source` to the bar's length. Ignores read errors, which the copy reports.
fn count(source: Source, one_subvolume: bool, bar: &ProgressBar, over: &AtomicBool) {
    let home = source.inode.tree();
    let mut entered = HashSet::new();
    let mut pending = vec![source.inode];
    while let Some(inode) = pending.pop() {
        if inode.metadata().file_type() == papilio::FileKind::Regular {
            let metadata = inode.metadata();
            // The copy skips holes; a compressed file's bytes are counted before compression.
            bar.inc_length(metadata.size().min(metadata.allocated_bytes()));
            continue;
        }
        let foreign = one_subvolume && inode.tree() != home;
        if inode.metadata().file_type() != papilio::FileKind::Directory
            || foreign
            || !entered.insert((inode.tree(), inode.number()))
        {
            continue;
        }
        for entry in inode.read_dir().into_iter().flatten() {
            if over.load(Ordering::Relaxed) {
                return;
            }
            let Ok(entry) = entry else { break };
            pending.extend(entry.inode());
        }
    }
}
