//! Copies trees out of a file system.
//!
//! Two threads share a bounded queue, so that reading overlaps with writing, for one large file as
//! well as for many small ones. The reader ([`source`]) walks the image, verifies checksums and
//! sends [`event::Event`]s. The writer, a [`Sink`], turns them into files of the host ([`host`]) or
//! members of an archive ([`tar`]). Unreadable sectors of a file are left out and listed. The queue
//! holds at most [`QUEUED_BATCHES`] batches of about 1 MiB.
//!
//! [`image`] copies into a file system, on one thread.

pub mod around;
pub mod event;
pub mod host;
mod host_attributes;
pub mod image;
pub mod progress;
pub mod sink;
pub mod source;
pub mod tar;

use crate::context::Context;
use event::{BufferPool, Event, Missing};
use progress::Progress;
use sink::{Sink, Stop};
use source::{Source, SourceOptions};
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// The capacity of the queue between the two threads, in batches.
const QUEUED_BATCHES: usize = 8;

/// Copies all `sources` into `sink`.
pub fn run(
    context: &Context,
    sources: Vec<Source>,
    options: SourceOptions,
    sink: &mut dyn Sink,
    progress: &Progress,
) -> anyhow::Result<()> {
    let pool = Arc::new(BufferPool::default());
    let counting = progress.count_ahead(&sources, &options);
    let outcome = std::thread::scope(|scope| {
        let (send, batches) = sync_channel(QUEUED_BATCHES);
        let reader_pool = Arc::clone(&pool);
        let json = options.json;
        scope.spawn(move || source::read(sources, options, &send, &reader_pool));
        for batch in batches {
            for event in batch {
                match event {
                    Event::Begin { source } => sink.begin(source)?,
                    Event::Problem { text } => context.error(text),
                    Event::Skipped { path } => {
                        context.warning(format_args!("{path}: a subvolume, left out; -s includes it"));
                    }
                    Event::Missing(missing) => report(context, &missing, json),
                    Event::Data { offset, bytes } => {
                        progress.add_bytes(bytes.len() as u64);
                        sink.data(offset, &bytes)?;
                        pool.put(bytes);
                    }
                    event => {
                        progress.add_file(&event);
                        sink.take(event)?;
                    }
                }
            }
        }
        // An early return drops the receiving end, which stops the reader.
        Ok(())
    });
    drop(counting);
    outcome.map_err(|Stop(error)| error)
}

/// Lists a range that could not be read: a message, and as JSON a line on standard output.
fn report(context: &Context, missing: &Missing, json: bool) {
    let Missing { path, offset, length, reason, is_unverified } = missing;
    let end = offset.saturating_add(*length);
    let what = if *is_unverified { "copied without verification" } else { "missing" };
    context.error(format_args!("{path}: bytes {offset} to {end} are {what}: {reason}"));
    if json {
        let mut line =
            serde_json::json!({ "path": path, "offset": offset, "length": length, "reason": reason });
        if *is_unverified {
            line["unverified"] = true.into();
        }
        if let Err(error) = writeln!(std::io::stdout().lock(), "{line}") {
            context.error(format_args!("standard output: {error}"));
        }
    }
}
