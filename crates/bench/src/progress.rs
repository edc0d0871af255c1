//! Progress messages on standard error: a bar on a terminal, otherwise a line for each step.

use indicatif::{ProgressBar, ProgressStyle};
use std::fmt;
use std::io::{IsTerminal, Write};
use std::time::Duration;

/// Progress of a run with a known number of steps.
#[derive(Debug)]
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    done: usize,
    steps: usize,
}

impl Progress {
    /// Starts with no step done. `quiet` suppresses all messages.
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

    /// Starts a step.
    pub fn begin(&mut self, what: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.set_message(what.to_string()),
            None => self.line(format_args!("[{}/{}] {what}", self.done + 1, self.steps)),
        }
    }

    /// Finishes the current step.
    pub fn end(&mut self) {
        self.done += 1;
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Counts skipped steps as done.
    pub fn skip(&mut self, steps: usize) {
        self.done += steps;
        if let Some(bar) = &self.bar {
            bar.inc(steps as u64);
        }
    }

    /// Prints a message on a line of its own.
    pub fn say(&self, what: impl fmt::Display) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.line(format_args!("{what}"))),
            None => self.line(format_args!("{what}")),
        }
    }

    fn line(&self, text: fmt::Arguments<'_>) {
        if !self.quiet {
            // A closed standard error must not stop the run.
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
