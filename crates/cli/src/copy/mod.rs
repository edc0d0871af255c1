//! Copying trees out of a file system.
//!
//! Two threads and a bounded queue between them: [`source`] walks the image, reads and verifies, and
//! turns the tree into [`event::Event`]s; a [`Sink`] makes of them files of the host ([`host`]) or
//! members of an archive ([`tar`]). So reading and checking overlap with writing, for one large file
//! as for many small ones. The queue holds at most [`QUEUED_BATCHES`] batches of about 1 MiB.

pub mod event;
pub mod host;
mod host_attributes;
pub mod image;
pub mod progress;
mod sink;
pub mod source;
pub mod tar;

use crate::context::Context;
use event::{BufferPool, Event};
use progress::Progress;
use sink::{Sink, Stop};
use source::{Source, SourceOptions};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// Batches that may wait between the two threads.
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
    let counting = progress.count_ahead(&sources, options);
    let outcome = std::thread::scope(|scope| {
        let (send, batches) = sync_channel(QUEUED_BATCHES);
        let reader_pool = Arc::clone(&pool);
        scope.spawn(move || source::read(sources, options, &send, &reader_pool));
        for batch in batches {
            for event in batch {
                match event {
                    Event::Begin { source } => sink.begin(source)?,
                    Event::Problem { text } => context.error(text),
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
        // Returning early drops the receiving end, which ends the reader.
        Ok(())
    });
    drop(counting);
    outcome.map_err(|Stop(error)| error)
}
