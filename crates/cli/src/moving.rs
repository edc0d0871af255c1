//! The progress of commands that move block groups.
//!
//! Owns [`MovingBar`].

use crate::context::Context;
use indicatif::ProgressBar;
use papilio::BalanceReport;

/// A bar on a terminal, with the bytes that moved and an estimate of the time left.
pub struct MovingBar<'c> {
    context: &'c Context,
    bar: Option<ProgressBar>,
}

impl<'c> MovingBar<'c> {
    /// Shows the bar, unless the command is quiet or standard error is no terminal.
    pub fn new(context: &'c Context) -> Self {
        let form = "moving {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} left, {msg}";
        Self { context, bar: context.show_bar(form) }
    }

    /// Shows a report. Returns true: the work goes on.
    pub fn show(&self, report: &BalanceReport) -> bool {
        if let Some(bar) = &self.bar {
            bar.set_length(report.expected_bytes);
            bar.set_position(report.bytes);
            bar.set_message(format!("{} of {} block groups", report.completed, report.expected));
        }
        true
    }
}

impl Drop for MovingBar<'_> {
    fn drop(&mut self) {
        self.context.set_progress(None);
    }
}
