//! The thread of a queue: takes requests from its ring, answers them, and gives the replies back.
//!
//! Owns [`Queue`]: a ring, and a table of entries. An entry is
//!
//! ```text
//! with the kernel --completion--> answered here ------------> committed: with the kernel again
//!        ^                             |
//!        |                             +--> held by another thread --> home --> committed
//!        +--- added, where all others of the queue are held
//! ```
//!
//! and gone when its completion is an error, which is how the kernel ends a connection. The thread ends when all entries are
//! gone. Invariants: a queue has an entry with the kernel, or with a completion that was not looked at yet, whatever is held:
//! what is waited for elsewhere may need requests of its own. The memory of an entry outlives the kernel's use of it: what is
//! still in the table when a ring fails is leaked.
//!
//! The ring has no `IORING_SETUP_DEFER_TASKRUN`: a server that is killed must not leave requests behind that only its own thread
//! could end. Locks: those of [`Home`]. Kernel counterpart: `fs/fuse/dev_uring.c`.

use super::answer::{Lane, Stale};
use super::entry::Entry;
use super::home::{Held, Home};
use super::shared::Shared;
use crate::fuser_transport::{Kernel, MAX_WRITE};
use crate::transport::Operations;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// The completion that says that something came home.
const CAME_HOME: u64 = u64::MAX;
/// Submissions that the ring has room for; more are given in several turns.
const SUBMISSIONS: u32 = 64;
/// A reply of so many bytes does not wait until the requests beside it are answered.
const LARGE: usize = 32 << 10;

/// Bytes of an entry's payload: the longest request or reply.
const PAYLOAD: usize = MAX_WRITE as usize;

/// Who has an entry.
#[derive(Debug)]
enum Place {
    /// The kernel, or it gave it back and nobody has looked yet.
    Kernel(Entry),
    /// Somebody who answers it.
    Taken,
    /// Nobody, for good.
    Gone,
}

/// A ring, before it serves.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    home: Arc<Home>,
}

impl Ring {
    /// A ring of this thread's.
    ///
    /// # Errors
    /// The system has none, or does not let this process have one.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        builder.dontfork().setup_single_issuer().setup_coop_taskrun();
        Ok(Self { ring: builder.build(SUBMISSIONS)?, home: Arc::new(Home::new()?) })
    }
}

/// A ring that serves.
pub(super) struct Queue<O> {
    ring: IoUring<Entry128, cqueue::Entry>,
    home: Arc<Home>,
    shared: Arc<Shared<O>>,
    table: Vec<Place>,
    /// How many entries are not gone.
    entries: usize,
    /// How many are with the kernel, by the queue's number.
    with_kernel: Vec<(u16, usize)>,
    /// Completions that were not looked at yet: what they are of, and how it went.
    completions: Vec<(u64, i32)>,
}

impl<O: Operations> Queue<O> {
    /// Gives the kernel entries for these queues, each with how many.
    ///
    /// # Errors
    /// The kernel does not take them.
    pub(super) fn register(ring: Ring, shared: Arc<Shared<O>>, queues: &[(u16, usize)]) -> io::Result<Self> {
        let Ring { ring, home } = ring;
        let with_kernel = queues.iter().map(|(queue, _)| (*queue, 0)).collect();
        let (table, completions) = (Vec::new(), Vec::new());
        let mut queue = Self { ring, home, shared, table, entries: 0, with_kernel, completions };
        queue.wait_for_home()?;
        for &(number, count) in queues {
            for _ in 0..count {
                queue.add(number)?;
            }
        }
        queue.ring.submit()?;
        queue.complete();
        // What is refused is refused at once; what is taken completes with the first request.
        match queue.completions.iter().find(|(_, result)| *result < 0) {
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
            None => Ok(queue),
        }
    }

    /// Serves until the kernel ends the connection.
    ///
    /// # Errors
    /// The ring failed; nobody answers then.
    pub(super) fn run(mut self) -> io::Result<()> {
        while self.entries > 0 {
            if self.completions.is_empty() {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => {}
                    // Interrupted, or short of memory for the moment: what was not submitted still is to be.
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                }
                self.complete();
            }
            for (of, result) in std::mem::take(&mut self.completions) {
                match usize::try_from(of) {
                    _ if of == CAME_HOME => self.come_home()?,
                    Ok(place) => self.completed(place, result)?,
                    Err(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Takes the completions that are there.
    fn complete(&mut self) {
        let found = self.ring.completion().map(|completion| (completion.user_data(), completion.result()));
        self.completions.extend(found);
    }

    /// Submits, at the next entry to the kernel.
    fn submit(&mut self, submission: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: what it points to is an entry's memory, which is with the kernel from now on, in the table or
            // leaked, until the completion was seen; the descriptors stay open as long as the ring.
            if unsafe { self.ring.submission().push(submission) }.is_ok() {
                return Ok(());
            }
            match self.ring.submit() {
                Ok(_) => {}
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn wait_for_home(&mut self) -> io::Result<()> {
        let event = types::Fd(self.home.event().as_raw_fd());
        let wait = opcode::PollAdd::new(event, libc::POLLIN as u32).build().user_data(CAME_HOME);
        self.submit(&Entry128::from(wait))
    }

    fn come_home(&mut self) -> io::Result<()> {
        // Before what came is taken: what comes later is announced to the new wait.
        self.wait_for_home()?;
        for (place, entry) in self.home.take() {
            self.commit(place, entry)?;
        }
        Ok(())
    }

    /// Adds an entry to a queue.
    fn add(&mut self, queue: u16) -> io::Result<()> {
        let mut entry = Entry::new(queue, PAYLOAD)?;
        let submission = entry.registration(self.shared.device.as_fd());
        let place = self.table.len();
        self.table.push(Place::Taken);
        self.entries += 1;
        self.give(place, entry, submission)
    }

    fn commit(&mut self, place: usize, mut entry: Entry) -> io::Result<()> {
        let submission = entry.commit(self.shared.device.as_fd());
        self.give(place, entry, submission)
    }

    fn give(&mut self, place: usize, entry: Entry, submission: Entry128) -> io::Result<()> {
        *self.count(entry.queue()) += 1;
        self.table[place] = Place::Kernel(entry);
        self.submit(&submission.user_data(place as u64))
    }

    /// How many entries of a queue are with the kernel.
    fn count(&mut self, queue: u16) -> &mut usize {
        let found = self.with_kernel.iter().position(|(number, _)| *number == queue);
        &mut self.with_kernel[found.expect("entries are of the queues that the thread has")].1
    }

    /// The kernel gave an entry back.
    fn completed(&mut self, place: usize, result: i32) -> io::Result<()> {
        let Place::Kernel(mut entry) = std::mem::replace(&mut self.table[place], Place::Taken) else {
            unreachable!("what completes was submitted");
        };
        *self.count(entry.queue()) -= 1;
        if result < 0 {
            self.table[place] = Place::Gone;
            self.entries -= 1;
            match -result {
                // The mount is gone, or going.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENOENT | libc::ECANCELED => {}
                _ => tracing::error!("an entry is lost: {}", io::Error::from_raw_os_error(-result)),
            }
            return Ok(());
        }
        entry.received();
        match self.shared.server.lane(&mut entry) {
            Lane::Here => self.answer(place, entry),
            Lane::Aside => {
                let (mut held, shared) = self.hold(place, entry, false)?;
                let task = move || {
                    let stale = held.answer(|entry| shared.server.answer(entry));
                    forget_then_drop(&shared, stale, held);
                };
                self.shared.workers.run(task);
                Ok(())
            }
            Lane::AfterWriteBack(nodes) => {
                let (mut held, shared) = self.hold(place, entry, false)?;
                self.shared.assistant.run(move |kernel| {
                    nodes.iter().for_each(|node| kernel.write_back(*node));
                    let stale = held.answer(|entry| shared.server.answer(entry));
                    forget(kernel, &stale);
                });
                Ok(())
            }
        }
    }

    fn answer(&mut self, place: usize, mut entry: Entry) -> io::Result<()> {
        let stale = self.shared.server.answer(&mut entry);
        if !stale.is_empty() {
            let (held, shared) = self.hold(place, entry, true)?;
            forget_then_drop(&shared, stale, held);
            return Ok(());
        }
        let large = entry.request().0.entry.payload as usize >= LARGE;
        self.commit(place, entry)?;
        if large {
            match self.ring.submit() {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Has an entry be answered elsewhere; sees to it that the queue has another one.
    fn hold(&mut self, place: usize, entry: Entry, answered: bool) -> io::Result<(Held, Arc<Shared<O>>)> {
        let queue = entry.queue();
        let held = Held::new(place, entry, answered, Arc::clone(&self.home));
        if *self.count(queue) == 0 {
            // Without memory the queue waits for what is held.
            match self.add(queue) {
                Ok(()) => {
                    self.ring.submit()?;
                    self.shared.nudge.queue(queue);
                }
                Err(error) => tracing::warn!("queue {queue}: {error}"),
            }
        }
        Ok((held, Arc::clone(&self.shared)))
    }
}

impl<O> Drop for Queue<O> {
    fn drop(&mut self) {
        for place in self.table.drain(..) {
            if let Place::Kernel(entry) = place {
                // Closing the ring does not wait for the kernel to be done with it.
                std::mem::forget(entry);
            }
        }
    }
}

/// Whether trying again may help.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Has the kernel forget what is no longer true, and then have the reply.
fn forget_then_drop<O: Operations>(shared: &Shared<O>, stale: Vec<Stale>, held: Held) {
    if !stale.is_empty() {
        shared.assistant.run(move |kernel| {
            forget(kernel, &stale);
            drop(held);
        });
    }
}

fn forget(kernel: &Kernel, stale: &[Stale]) {
    for stale in stale {
        match stale {
            Stale::Attributes(node) => kernel.forget_attributes(*node),
            Stale::Entry { directory, name } => kernel.forget_entry(*directory, name),
        }
    }
}
