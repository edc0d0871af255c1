//! What is being done, on standard error: a bar on a terminal, a line a step elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// The progress of a run of so many steps.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    done: usize,
    steps: usize,
}

impl Progress {
    /// Nothing done yet; `quiet` says nothing at all.
    pub fn new(steps: usize, quiet: bool) -> Self {
        let bar = (!quiet && std::io::stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(steps as u64);
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed_precise} {msg}");
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, quiet, done: 0, steps }
    }

    /// A step begins.
    pub fn begin(&mut self, what: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_string()),
            None => self.line(format_args!("[{}/{}] {what}", self.done + 1, self.steps)),
        }
    }

    /// The step is done.
    pub fn end(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Steps that will not be taken.
    pub fn skip(&mut self, steps: usize) {
        self.done += steps;
        if let Some(bar) = &self.bar {
            bar.inc(steps as u64);
        }
    }

    /// Something worth a line of its own.
    pub fn say(&self, what: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.line(format_args!("{what}"))),
            None => self.line(format_args!("{what}")),
        }
    }

    fn line(&self, text: fmt::Arguments<'_>) {
        if !self.quiet {
            // Standard error being closed is no reason to stop.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
