//! Copies trees out of a file system, with messages, JSON and a progress bar.
//!
//! Owns [`CopyReport`], the command's observer of [`papilio::export`], and [`run`].

pub mod progress;

use crate::context::Context;
use crate::output::{escaped, kind_words};
use papilio::{ExportError, ExportObserver, ExportProblem, ImagePath, Sink, Source, SourceOptions};
use progress::Progress;
use std::io::Write;

/// Reports a copy: problems as messages, missing ranges as JSON if wanted, names under -v.
pub struct CopyReport<'a> {
    /// Takes the messages.
    pub context: &'a Context,
    /// Shows the bytes.
    pub progress: &'a Progress,
    /// Whether to list missing ranges as JSON on standard output.
    pub json: bool,
}

impl CopyReport<'_> {
    /// Prints a missing range as a line of JSON.
    fn print(&self, missing: &papilio::Missing) {
        let papilio::Missing { path, offset, length, reason, is_unverified } = missing;
        let mut line =
            serde_json::json!({ "path": path, "offset": offset, "length": length, "reason": reason });
        if *is_unverified {
            line["unverified"] = true.into();
        }
        if let Err(error) = writeln!(std::io::stdout().lock(), "{line}") {
            self.context.error(format_args!("standard output: {error}"));
        }
    }
}

impl ExportObserver for CopyReport<'_> {
    fn problem(&self, problem: ExportProblem) {
        match problem {
            ExportProblem::SubvolumeSkipped { .. } => {
                self.context.warning(format_args!("{problem}; -s includes it"));
            }
            ExportProblem::AttributesUnsupported { .. } | ExportProblem::Socket { .. } => {
                self.context.warning(problem);
            }
            ExportProblem::NotRecursive { path, kind } => {
                self.context.error(format_args!("{path}: {}; copied only with -r or -a", kind_words(kind)));
            }
            ExportProblem::Range(missing) => {
                self.context.error(&missing);
                if self.json {
                    self.print(&missing);
                }
            }
            problem => self.context.error(problem),
        }
    }

    fn bytes(&self, count: u64) {
        self.progress.add_bytes(count);
    }

    fn wants_names(&self) -> bool {
        self.context.verbosity > 0
    }

    fn created(&self, from: &ImagePath, to: &str) -> std::io::Result<()> {
        writeln!(std::io::stdout().lock(), "'{from}' -> '{}'", to.escape_debug())
    }

    fn member(&self, path: &[u8]) -> std::io::Result<()> {
        let line = [&escaped(path)[..], b"\n"].concat();
        // Standard output may receive the archive.
        std::io::stderr().lock().write_all(&line)
    }
}

/// Copies all `sources` into `sink`, and shows the progress.
pub fn run(
    sources: Vec<Source>,
    options: SourceOptions,
    sink: &mut dyn Sink,
    report: &CopyReport<'_>,
) -> anyhow::Result<()> {
    let counting = report.progress.count_ahead(&sources, &options);
    let copied = papilio::export(sources, options, sink, report);
    drop(counting);
    copied.map_err(explain)
}

/// Turns an error that ended a copy into one of the command.
pub fn explain(error: ExportError) -> anyhow::Error {
    match error {
        // So that a closed pipe is found.
        ExportError::Stopped(error) => error.into(),
        other => other.into(),
    }
}
