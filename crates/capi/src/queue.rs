//! Queues of requests: each is submitted with a token, and its completion is collected later.
//!
//! The buffer of a request belongs to the program, and is not copied. It must stay where it is, and
//! nothing else may use it, from the submission until the completion was collected or the queue is
//! closed. Requests run in any order, also on one file: wait for a write before a read of its data.
//! Each accepted request is carried out and completes exactly once.
//!
//! A queue without threads runs requests while completions are collected. Where devices bypass the
//! host's page cache (`papilio_options_set_direct_io()`), reads and writes of whole sectors are in
//! flight together without a thread for each.

use crate::arguments::{check_array, check_result, store};
use crate::failure::{Failure, Result, guard, guard_unit};
use crate::file::{file_of, papilio_file};
use crate::file_system::{User, fs_of, papilio_fs};
use crate::handles::{self, handle};
use libc::{c_int, c_void, size_t};
use papilio::{IoCompletion, IoOperation, IoQueue, IoRequest, StableBuffer};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::IntoRawFd;
use std::sync::Arc;

/// The most requests that a queue may have in flight.
pub const PAPILIO_QUEUE_DEPTH_MAX: usize = 65536;

/// Memory of the program.
struct Lent {
    first: *mut u8,
    length: usize,
}

// SAFETY: the program promises that only the request uses the bytes, in whatever thread.
unsafe impl Send for Lent {}

// SAFETY: the bytes are not a part of the value, and the program promises that they stay where they
// are.
unsafe impl StableBuffer for Lent {
    fn stable(&self) -> &[u8] {
        // SAFETY: the pointer was checked when the request was submitted, and the program promises
        // the bytes until the completion.
        unsafe { std::slice::from_raw_parts(self.first, self.length) }
    }

    fn stable_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.first, self.length) }
    }
}

/// A completed request.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct papilio_completion {
    /// The token of the request.
    pub token: u64,
    /// Bytes read, written, punched or allocated; 0 for syncs; or a negative errno. Only a read at
    /// the end of the file gives fewer bytes than requested.
    pub result: i64,
}

/// A queue.
pub(crate) struct Queue {
    // Fields drop in this order: the queue goes before the right to close the file system.
    state: Mutex<QueueState>,
    user: User,
}

struct QueueState {
    queue: IoQueue<Lent>,
    /// Completions that the program has not collected.
    ready: VecDeque<IoCompletion<Lent>>,
}

/// A queue of requests. Made by papilio_queue_new(), closed by papilio_queue_close().
#[allow(non_camel_case_types)]
pub struct papilio_queue {
    _incomplete: (),
}

handle!(papilio_queue for Queue);

/// Makes a queue for files of the file system `fs` with up to `depth` requests in flight, 1 to
/// PAPILIO_QUEUE_DEPTH_MAX, and with `threads` threads of its own, which may be 0. It goes to
/// `*queue`. Several threads may use a queue; one that waits for completions holds up the others.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_queue_new(
    fs: *mut papilio_fs,
    depth: size_t,
    threads: size_t,
    queue: *mut *mut papilio_queue,
) -> c_int {
    guard_unit(|| {
        check_result(queue, "queue")?;
        if depth == 0 || depth > PAPILIO_QUEUE_DEPTH_MAX || threads > depth {
            let limits =
                format!("1 to {PAPILIO_QUEUE_DEPTH_MAX} requests, and no more threads than requests");
            let message = format!("{depth} requests and {threads} threads: a queue has {limits}");
            return Err(Failure::invalid(message));
        }
        let user = User::new(&fs_of(fs)?)?;
        let made = IoQueue::for_file_system(user.fs(), depth, threads)?;
        let state = QueueState { queue: made, ready: VecDeque::new() };
        // SAFETY: the pointer was checked, and the caller promises memory for a handle.
        unsafe { store(queue, handles::insert(Queue { state: Mutex::new(state), user })) };
        Ok(())
    })
}

fn submit(
    queue: *const papilio_queue,
    file: *const papilio_file,
    operation: IoOperation<Lent>,
    token: u64,
) -> Result<()> {
    let queue = handles::get::<Queue>(queue)?;
    let file = file_of(file)?;
    if !Arc::ptr_eq(file.user().fs(), queue.user.fs()) {
        return Err(Failure::new(libc::EXDEV, "the file is not on the file system of the queue"));
    }
    let mut state = queue.state.lock();
    if state.queue.in_flight() + state.ready.len() >= state.queue.depth() {
        return Err(full(state.queue.depth()));
    }
    let request = IoRequest { file: Arc::clone(&file), operation, token };
    let depth = state.queue.depth();
    state.queue.submit(request).map_err(|_| full(depth))
}

fn full(depth: usize) -> Failure {
    Failure::new(libc::EAGAIN, format!("{depth} requests are in flight: collect completions first"))
}

/// Returns the memory that a request uses.
fn lent(buffer: *mut c_void, size: size_t) -> Result<Lent> {
    check_array(buffer.cast_const().cast::<u8>(), size, "buffer")?;
    let first = if size == 0 { std::ptr::NonNull::dangling().as_ptr() } else { buffer.cast::<u8>() };
    Ok(Lent { first, length: size })
}

/// Submits a read of up to `size` bytes at byte `offset` of the file into `buffer`, as
/// papilio_pread(). The buffer is in use until the completion with `token` was collected. Tokens
/// need not be unique.
///
/// Returns 0 or a negative errno, and the buffer is not in use then: -EAGAIN if the queue is full,
/// -EXDEV for a file of another file system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_queue_read(
    queue: *mut papilio_queue,
    file: *mut papilio_file,
    buffer: *mut c_void,
    size: size_t,
    offset: u64,
    token: u64,
) -> c_int {
    guard_unit(|| submit(queue, file, IoOperation::Read { buffer: lent(buffer, size)?, offset }, token))
}

/// Submits a write of the `size` bytes at `buffer` at byte `offset` of the file, as
/// papilio_pwrite(). The buffer is in use, and must not change, until the completion with `token`
/// was collected.
///
/// Returns 0 or a negative errno, and the buffer is not in use then: -EAGAIN if the queue is full,
/// -EXDEV for a file of another file system.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_queue_write(
    queue: *mut papilio_queue,
    file: *mut papilio_file,
    buffer: *const c_void,
    size: size_t,
    offset: u64,
    token: u64,
) -> c_int {
    guard_unit(|| {
        let buffer = lent(buffer.cast_mut(), size)?;
        submit(queue, file, IoOperation::Write { buffer, offset }, token)
    })
}

/// Submits a papilio_fsync(), or a papilio_fdatasync() if `data_only` is set. It covers the
/// requests that had completed when it was submitted.
///
/// Returns 0 or a negative errno: -EAGAIN if the queue is full, -EXDEV for a file of another file
/// system.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_queue_fsync(
    queue: *mut papilio_queue,
    file: *mut papilio_file,
    data_only: bool,
    token: u64,
) -> c_int {
    let operation = if data_only { IoOperation::Fdatasync } else { IoOperation::Fsync };
    guard_unit(|| submit(queue, file, operation, token))
}

/// Submits an allocation of `length` bytes at `offset`, or the making of a hole there: `mode` is 0,
/// PAPILIO_KEEP_SIZE, or PAPILIO_PUNCH_HOLE with PAPILIO_KEEP_SIZE, as for papilio_fallocate().
///
/// Returns 0 or a negative errno: -EAGAIN if the queue is full, -EXDEV for a file of another file
/// system, -EOPNOTSUPP for another mode.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_queue_fallocate(
    queue: *mut papilio_queue,
    file: *mut papilio_file,
    mode: u32,
    offset: u64,
    length: u64,
    token: u64,
) -> c_int {
    use crate::file_space::{PAPILIO_KEEP_SIZE, PAPILIO_PUNCH_HOLE};
    const PUNCH: u32 = PAPILIO_PUNCH_HOLE | PAPILIO_KEEP_SIZE;
    guard_unit(|| {
        let operation = match mode {
            0 | PAPILIO_KEEP_SIZE => {
                IoOperation::Allocate { offset, length, keep_size: mode == PAPILIO_KEEP_SIZE }
            }
            PUNCH => IoOperation::PunchHole { offset, length },
            _ => return Err(Failure::new(libc::EOPNOTSUPP, format!("mode {mode:#x} is not supported"))),
        };
        submit(queue, file, operation, token)
    })
}

/// Collects completions: stores up to `count` in the array `completions`, after waiting until at
/// least `min` are there, or all that are in flight if those are fewer. With `min` 0 it does not
/// wait for requests that are in flight. The layout of papilio_completion is fixed. The message of
/// a request that failed becomes the thread's last message; of several, that of the last.
///
/// Returns the number stored or a negative errno: -EINVAL if `min` is more than `count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn papilio_queue_wait(
    queue: *mut papilio_queue,
    min: size_t,
    completions: *mut papilio_completion,
    count: size_t,
) -> i64 {
    guard(|| {
        check_array(completions.cast_const(), count, "completions")?;
        if min > count {
            return Err(Failure::invalid(format!("{min} completions do not fit an array of {count}")));
        }
        let queue = handles::get::<Queue>(queue)?;
        let mut state = queue.state.lock();
        let state = &mut *state;
        let mut found = Vec::new();
        let missing = min.saturating_sub(state.ready.len());
        state.queue.wait(missing, &mut found);
        state.ready.extend(found);
        let stored = count.min(state.ready.len());
        for (index, completion) in state.ready.drain(..stored).enumerate() {
            let value = papilio_completion { token: completion.token, result: result(&completion) };
            // SAFETY: the array was checked, and the caller promises memory for `count`
            // completions.
            unsafe { store(completions.add(index), value) };
        }
        Ok(stored as i64)
    })
}

/// Returns the result of a request for the program.
fn result(completion: &IoCompletion<Lent>) -> i64 {
    match &completion.result {
        Ok(bytes) => *bytes as i64,
        Err(error) => {
            let failure = Failure::new(error.errno(), error.to_string());
            failure.remember();
            failure.code().into()
        }
    }
}

/// Returns an eventfd for an event loop: it is readable when completions may wait. The program
/// reads its counter, eight bytes, and then calls papilio_queue_wait() with `min` 0, also once
/// after it has submitted. The descriptor does not block, and belongs to the program, which closes
/// it.
///
/// Returns the descriptor or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_queue_eventfd(queue: *mut papilio_queue) -> c_int {
    guard(|| {
        let queue = handles::get::<Queue>(queue)?;
        let state = queue.state.lock();
        Ok(state.queue.completion_fd()?.into_raw_fd())
    })
}

/// Returns the number of requests whose completions were not collected, or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_queue_in_flight(queue: *mut papilio_queue) -> i64 {
    guard(|| {
        let queue = handles::get::<Queue>(queue)?;
        let state = queue.state.lock();
        Ok((state.queue.in_flight() + state.ready.len()) as i64)
    })
}

/// Carries out all requests that were submitted, and closes the queue. No buffer is in use
/// afterwards. The results of requests whose completions were not collected are lost, except that
/// of the first one that failed.
///
/// Returns 0; the errno of that request, and the queue is closed all the same; or a negative errno.
#[unsafe(no_mangle)]
pub extern "C" fn papilio_queue_close(queue: *mut papilio_queue) -> c_int {
    guard_unit(|| {
        let queue = handles::remove::<Queue>(queue)?;
        let mut state = queue.state.lock();
        let mut found = Vec::new();
        state.queue.wait(usize::MAX, &mut found);
        let mut all = state.ready.drain(..).chain(found);
        match all.find_map(|completion| completion.result.err()) {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    })
}
