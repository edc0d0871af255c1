//! A stream that becomes objects.
//!
//! Owns [`BackupWriter`]. It cuts the stream and its outline into parts, by default of [`PART`]
//! bytes. Workers compress, encrypt and store them. A part that the repository has is not stored
//! again, so a backup that was interrupted goes on where it stopped.

use crate::error::{BackupError, Result};
use crate::manifest::{StoredObject, data_name};
use crate::outline::{Outliner, StreamHead};
use crate::shared::Shared;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The bytes of a part, unless the caller chooses others.
pub const PART: usize = 8 << 20;
/// The folder of objects with data.
pub const FOLDER: &str = "data/";

/// The half of a backup that a part belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Stream,
    Outline,
}

type Job = (Kind, usize, Vec<u8>);

/// The state that the workers share.
#[derive(Debug)]
struct Work {
    shared: Arc<Shared>,
    level: i32,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The objects that the repository has, by name, with their stored bytes.
    known: HashMap<String, u64>,
    done: Vec<(Kind, usize, StoredObject)>,
    error: Option<BackupError>,
    new_objects: u64,
    new_bytes: u64,
}

impl Work {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, jobs: &Mutex<Receiver<Job>>) {
        loop {
            let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((kind, index, content)) = job else { return };
            // After an error the rest is only taken, so that the writer does not wait for ever.
            if self.state().error.is_some() {
                continue;
            }
            match self.store(&content) {
                Ok(object) => self.state().done.push((kind, index, object)),
                Err(error) => {
                    self.state().error.get_or_insert(error);
                }
            }
        }
    }

    fn store(&self, content: &[u8]) -> Result<StoredObject> {
        let name = self.shared.sealer.name_of(content);
        let length = content.len() as u32;
        if let Some(stored) = self.state().known.get(&name) {
            return Ok(StoredObject(name, length, *stored));
        }
        let place = data_name(&name);
        let stored = self.shared.sealer.seal(&place, content, self.level)?;
        self.shared.put(&place, &stored)?;
        let bytes = stored.len() as u64;
        let mut state = self.state();
        state.known.insert(name.clone(), bytes);
        state.new_objects += 1;
        state.new_bytes += bytes;
        Ok(StoredObject(name, length, bytes))
    }
}

/// A stream that was stored.
#[derive(Debug)]
pub struct Written {
    pub head: StreamHead,
    pub stream: Vec<StoredObject>,
    pub stream_bytes: u64,
    pub outline: Vec<StoredObject>,
    pub outline_bytes: u64,
    /// Objects that the repository did not have.
    pub new_objects: u64,
    /// Bytes of these.
    pub new_bytes: u64,
}

/// Stores a stream that is written to it.
#[derive(Debug)]
pub struct BackupWriter {
    work: Arc<Work>,
    jobs: Option<SyncSender<Job>>,
    threads: Vec<JoinHandle<()>>,
    outliner: Outliner,
    part: usize,
    /// The bytes that are not cut yet, the parts that were, and all bytes: stream, outline.
    buffers: [Vec<u8>; 2],
    cut: [usize; 2],
    bytes: [u64; 2],
    error: Option<BackupError>,
}

impl BackupWriter {
    /// Begins a stream that is cut into parts of `part` bytes. `known` are the objects that the
    /// repository has.
    pub fn new(shared: &Arc<Shared>, known: HashMap<String, u64>, level: i32, part: usize) -> Self {
        let state = Mutex::new(State { known, ..State::default() });
        let work = Arc::new(Work { shared: Arc::clone(shared), level, state });
        let workers = std::thread::available_parallelism().map_or(1, |count| count.get().clamp(1, 4));
        let (sender, receiver) = sync_channel(1);
        let receiver = Arc::new(Mutex::new(receiver));
        let threads = (0..workers)
            .map(|_| {
                let (work, receiver) = (Arc::clone(&work), Arc::clone(&receiver));
                std::thread::spawn(move || work.run(&receiver))
            })
            .collect();
        Self {
            work,
            jobs: Some(sender),
            threads,
            outliner: Outliner::default(),
            part,
            buffers: Default::default(),
            cut: [0; 2],
            bytes: [0; 2],
            error: None,
        }
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let before = self.buffers[1].len();
        self.outliner.take(bytes, &mut self.buffers[1])?;
        self.bytes[1] += (self.buffers[1].len() - before) as u64;
        self.buffers[0].extend_from_slice(bytes);
        self.bytes[0] += bytes.len() as u64;
        for kind in [Kind::Stream, Kind::Outline] {
            while self.buffers[kind as usize].len() >= self.part {
                self.cut(kind, self.part)?;
            }
        }
        Ok(())
    }

    /// Hands the first bytes of a buffer to the workers.
    fn cut(&mut self, kind: Kind, length: usize) -> Result<()> {
        if let Some(error) = self.work.state().error.take() {
            return Err(error);
        }
        let buffer = &mut self.buffers[kind as usize];
        let rest = buffer.split_off(length);
        let content = std::mem::replace(buffer, rest);
        let index = self.cut[kind as usize];
        self.cut[kind as usize] += 1;
        let jobs = self.jobs.as_ref().expect("the stream has not ended");
        jobs.send((kind, index, content)).map_err(|_| BackupError::Invalid("the workers have ended".into()))
    }

    /// Takes the error that ended the writing. The error of the writer's `io::Write` only says that
    /// there is one.
    pub fn take_error(&mut self) -> Option<BackupError> {
        self.error.take()
    }

    /// Stores the rest, and waits for the workers.
    ///
    /// # Errors
    /// The first error; the stream is not complete.
    pub fn finish(mut self) -> Result<Written> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        let head = std::mem::take(&mut self.outliner).finish()?;
        for kind in [Kind::Stream, Kind::Outline] {
            let length = self.buffers[kind as usize].len();
            if length > 0 {
                self.cut(kind, length)?;
            }
        }
        self.end();
        let mut state = self.work.state();
        if let Some(error) = state.error.take() {
            return Err(error);
        }
        let mut done = std::mem::take(&mut state.done);
        done.sort_by_key(|(kind, index, _)| (*kind, *index));
        if done.len() != self.cut[0] + self.cut[1] {
            return Err(BackupError::Invalid("a worker has ended before its work was done".into()));
        }
        let of = |wanted: Kind| {
            let parts = done.iter().filter(|(kind, ..)| *kind == wanted);
            parts.map(|(.., object)| object.clone()).collect()
        };
        let [stream_bytes, outline_bytes] = self.bytes;
        let (new_objects, new_bytes) = (state.new_objects, state.new_bytes);
        let (stream, outline) = (of(Kind::Stream), of(Kind::Outline));
        Ok(Written { head, stream, stream_bytes, outline, outline_bytes, new_objects, new_bytes })
    }

    fn end(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            // A worker that panicked left its part undone, which the caller notices.
            let _ = thread.join();
        }
    }
}

impl Drop for BackupWriter {
    fn drop(&mut self) {
        self.end();
    }
}

impl Write for BackupWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.error.is_some() {
            return Err(io::Error::other("the backup has failed"));
        }
        match self.add(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                let text = error.to_string();
                self.error = Some(error);
                Err(io::Error::other(text))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
