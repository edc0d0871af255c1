//! Queues of requests on files: each is submitted, and its completion is collected later.
//!
//! Owns [`Queue`] and [`Completion`].
//!
//! **Invariants**
//! - A request owns a view of its Python buffer until its completion is collected.
//! - Each accepted request has an entry in `State::pending` until then, under the number that it
//!   has as its token in the library.
//!
//! **Locks**: the state, without the GIL: a thread that waits for completions holds it.

use crate::buffer::Buffer;
use crate::errors::Raise;
use crate::file::File;
use crate::file_system::FileSystem;
use crate::paths::PathArg;
use crate::slot::Slot;
use papilio::{IoCompletion, IoOperation, IoQueue, IoRequest, StableBuffer};
use parking_lot::Mutex;
use pyo3::exceptions::{PyBlockingIOError, PyValueError};
use pyo3::prelude::*;
use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

/// The most requests that a queue may have in flight.
const DEPTH_MAX: usize = 65536;

// SAFETY: the exporter neither moves nor resizes its bytes while the view exists, and a `Buffer`
// holds the view until it is dropped.
unsafe impl StableBuffer for Buffer {
    fn stable(&self) -> &[u8] {
        self.bytes()
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        self.bytes_mut()
    }
}

/// A request whose completion was not collected.
struct Pending {
    token: Py<PyAny>,
    path: PathArg,
}

struct State {
    // Requests in flight use buffers of `pending`'s callers: the queue goes first.
    queue: IoQueue<Buffer>,
    pending: HashMap<u64, Pending>,
    next: u64,
}

/// A queue of requests on files of one file system. Any thread may use it.
#[pyclass(name = "Queue", module = "papilio._papilio", frozen)]
pub struct Queue {
    slot: Arc<Slot<Mutex<State>>>,
    /// Readable when completions may wait.
    event: OwnedFd,
    depth: usize,
}

/// A completed request.
#[pyclass(module = "papilio._papilio", frozen, get_all)]
pub struct Completion {
    /// The token of the request.
    token: Py<PyAny>,
    /// Bytes read or written; 0 for syncs and for a request that failed.
    count: usize,
    /// The exception of a request that failed.
    error: Option<Py<PyAny>>,
}

#[pymethods]
impl Completion {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let token = self.token.bind(py).repr()?;
        match &self.error {
            None => Ok(format!("<papilio.Completion token={token} count={}>", self.count)),
            Some(error) => Ok(format!("<papilio.Completion token={token} error={}>", error.bind(py).repr()?)),
        }
    }
}

impl Queue {
    fn submit(
        &self,
        py: Python<'_>,
        file: &File,
        operation: IoOperation<Buffer>,
        token: Py<PyAny>,
    ) -> PyResult<()> {
        let state = self.slot.get()?;
        let (opened, path) = file.opened()?;
        let refused = py.detach(|| {
            let mut state = state.lock();
            let number = state.next;
            let request = IoRequest { file: opened, operation, token: number };
            if state.queue.submit(request).is_err() {
                return Some(token);
            }
            state.next += 1;
            state.pending.insert(number, Pending { token, path });
            None
        });
        match refused {
            None => Ok(()),
            Some(_) => Err(PyBlockingIOError::new_err((
                rustix::io::Errno::AGAIN.raw_os_error(),
                format!("{} requests are in flight: collect completions first", self.depth),
            ))),
        }
    }

    fn completion(
        py: Python<'_>,
        (pending, completed): (Pending, IoCompletion<Buffer>),
    ) -> PyResult<Completion> {
        let (count, error) = match completed.result.raise_at(&pending.path) {
            Ok(count) => (count, None),
            Err(error) => (0, Some(error.into_value(py).into_any())),
        };
        Ok(Completion { token: pending.token, count, error })
    }
}

#[pymethods]
impl Queue {
    #[new]
    #[pyo3(signature = (fs, depth = 32, threads = 0))]
    fn new(py: Python<'_>, fs: &FileSystem, depth: usize, threads: usize) -> PyResult<Self> {
        if depth == 0 || depth > DEPTH_MAX || threads > depth {
            return Err(PyValueError::new_err(format!(
                "depth {depth}, threads {threads}: a queue has 1 to {DEPTH_MAX} requests in flight, \
                 and no more threads than requests"
            )));
        }
        let handle = fs.handle.fs()?;
        let queue = py.detach(|| IoQueue::for_file_system(&handle, depth, threads))?;
        let event = queue.completion_fd()?;
        let state = State { queue, pending: HashMap::new(), next: 0 };
        Ok(Self { slot: fs.handle.give("queue", Mutex::new(state)), event, depth })
    }

    /// Submits a read into a writable buffer at an offset of the file.
    fn read(
        &self,
        py: Python<'_>,
        file: &File,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        token: Py<PyAny>,
    ) -> PyResult<()> {
        self.submit(py, file, IoOperation::Read { buffer: Buffer::writable(buffer)?, offset }, token)
    }

    /// Submits a write of a whole buffer at an offset of the file.
    fn write(
        &self,
        py: Python<'_>,
        file: &File,
        buffer: &Bound<'_, PyAny>,
        offset: u64,
        token: Py<PyAny>,
    ) -> PyResult<()> {
        self.submit(py, file, IoOperation::Write { buffer: Buffer::readable(buffer)?, offset }, token)
    }

    /// Submits a sync of the file. It covers the requests that had completed when it was submitted.
    fn fsync(&self, py: Python<'_>, file: &File, data_only: bool, token: Py<PyAny>) -> PyResult<()> {
        let operation = if data_only { IoOperation::Fdatasync } else { IoOperation::Fsync };
        self.submit(py, file, operation, token)
    }

    /// Waits until at least min requests have completed, or all if fewer are in flight, and returns
    /// the completions so far.
    #[pyo3(signature = (min = 1))]
    fn wait(&self, py: Python<'_>, min: usize) -> PyResult<Vec<Completion>> {
        let state = self.slot.get()?;
        let found = py.detach(|| {
            // Reset first, so that a completion that comes meanwhile sets it again.
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            let mut state = state.lock();
            let mut completed = Vec::new();
            state.queue.wait(min, &mut completed);
            completed
                .into_iter()
                .map(|completion| {
                    let pending = state.pending.remove(&completion.token);
                    (pending.expect("each request in flight is pending"), completion)
                })
                .collect::<Vec<_>>()
        });
        found.into_iter().map(|pair| Self::completion(py, pair)).collect()
    }

    /// The requests whose completions were not collected.
    fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
        let state = self.slot.get()?;
        Ok(py.detach(|| state.lock().queue.in_flight()))
    }

    /// A queue is true, also an empty one.
    fn __bool__(&self) -> bool {
        true
    }

    /// The limit of requests in flight.
    #[getter]
    fn depth(&self) -> usize {
        self.depth
    }

    /// The descriptor of an eventfd that is readable when completions may wait.
    fn fileno(&self) -> PyResult<i32> {
        self.slot.get()?;
        Ok(self.event.as_raw_fd())
    }

    /// Carries out all requests and closes the queue; raises the error of the first request that
    /// failed and was not collected. Closing twice does nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.slot.is_closed() {
            return Ok(());
        }
        let rest = self.wait(py, usize::MAX)?;
        let state = self.slot.take();
        py.detach(move || drop(state));
        match rest.into_iter().find_map(|completion| completion.error) {
            Some(error) => Err(PyErr::from_value(error.into_bound(py))),
            None => Ok(()),
        }
    }

    /// Whether the queue is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.slot.is_closed()
    }
}
