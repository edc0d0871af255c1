//! The thread of a queue: takes requests from its ring, answers them and returns the replies.
//!
//! Owns [`Queue`]: a ring and a table of entries. The states of an entry:
//!
//! ```text
//! with the kernel --completion--> answered here ------------> committed: with the kernel again
//!        ^                             |
//!        |                             +--> held by another thread --> home --> committed
//!        +--- added, when all others of the queue are held
//! ```
//!
//! An entry is gone when its completion is an error, which is how the kernel closes a connection.
//! The thread ends when all entries are gone.
//!
//! **Invariants**
//! - A queue always has an entry with the kernel, or one whose completion waits to be processed.
//!   Held entries may depend on requests that need it.
//! - An entry's memory outlives the kernel's use of it: entries that are in the table when a ring
//!   fails are leaked.
//! - The ring has no `IORING_SETUP_DEFER_TASKRUN`. A killed server must not leave requests behind
//!   that only its own thread could end.
//!
//! **Locks**
//! - Those of [`Home`].
//!
//! Kernel counterpart: `fs/fuse/dev_uring.c`.

use super::entry::RingEntry;
use super::home::{Held, Home};
use super::shared::Shared;
use crate::assistant::{Assistant, Kernel};
use crate::data_queue::Unbegun;
use crate::dispatch::{Aftermath, Dispatcher, Lane};
use crate::protocol::init::MAX_WRITE;
use crate::transport::NodeId;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;

/// User data of the completion that signals a returned entry.
const CAME_HOME: u64 = u64::MAX;
/// Size of the submission queue; more submissions take several system calls.
const SUBMISSIONS: u32 = 64;
/// A reply of at least this many bytes goes to the kernel before the next request is answered.
const LARGE: usize = 32 << 10;

/// Size of an entry's payload in bytes, enough for the longest request or reply.
const PAYLOAD: usize = MAX_WRITE as usize;

/// The owner of an entry.
#[derive(Debug)]
enum EntryOwner {
    /// The kernel, or the entry's completion waits to be processed.
    Kernel(RingEntry),
    /// A thread that answers it.
    Taken,
    /// None: the kernel has ended the entry.
    Gone,
}

/// A ring that does not serve yet.
pub(super) struct Ring {
    ring: IoUring<Entry128, cqueue::Entry>,
    home: Arc<Home>,
}

impl Ring {
    /// Creates a ring for this thread.
    ///
    /// # Errors
    /// The system has no io_uring, or denies it to this process.
    pub(super) fn new() -> io::Result<Self> {
        let mut builder = IoUring::<Entry128, cqueue::Entry>::builder();
        builder.dontfork().setup_single_issuer().setup_coop_taskrun();
        Ok(Self { ring: builder.build(SUBMISSIONS)?, home: Arc::new(Home::new()?) })
    }
}

/// A ring that serves.
pub(super) struct Queue {
    ring: IoUring<Entry128, cqueue::Entry>,
    home: Arc<Home>,
    shared: Arc<Shared>,
    table: Vec<EntryOwner>,
    /// Number of entries that are not gone.
    entries: usize,
    /// Queue numbers, each with its number of entries that are with the kernel.
    with_kernel: Vec<(u16, usize)>,
    /// Completions to process: user data and result.
    completions: Vec<(u64, i32)>,
    /// The memory for entries that have come home.
    returned: Vec<(usize, RingEntry)>,
}

impl Queue {
    /// Hands entries to the kernel: for each queue number the given count.
    ///
    /// # Errors
    /// The kernel refuses an entry.
    pub(super) fn register(ring: Ring, shared: Arc<Shared>, queues: &[(u16, usize)]) -> io::Result<Self> {
        let Ring { ring, home } = ring;
        let with_kernel = queues.iter().map(|(queue, _)| (*queue, 0)).collect();
        let (table, completions, returned) = (Vec::new(), Vec::new(), Vec::new());
        let mut queue = Self { ring, home, shared, table, entries: 0, with_kernel, completions, returned };
        queue.wait_for_home()?;
        for &(number, count) in queues {
            for _ in 0..count {
                queue.add(number)?;
            }
        }
        queue.ring.submit()?;
        queue.complete();
        // A refusal completes at once; an accepted entry completes with its first request.
        match queue.completions.iter().find(|(_, result)| *result < 0) {
            Some((_, result)) => Err(io::Error::from_raw_os_error(-result)),
            None => Ok(queue),
        }
    }

    /// Serves until the kernel closes the connection.
    ///
    /// # Errors
    /// The ring failed, and requests in it stay unanswered.
    pub(super) fn run(mut self) -> io::Result<()> {
        while self.entries > 0 {
            if self.completions.is_empty() {
                match self.ring.submit_and_wait(1) {
                    Ok(_) => {}
                    // Interrupted or briefly out of memory: the next call submits the rest.
                    Err(error) if is_passing(&error) => {}
                    Err(error) => return Err(error),
                }
                self.complete();
            }
            let mut completions = std::mem::take(&mut self.completions);
            for (of, result) in completions.drain(..) {
                match usize::try_from(of) {
                    _ if of == CAME_HOME => self.come_home()?,
                    Ok(place) => self.completed(place, result)?,
                    Err(_) => {}
                }
            }
            // Its memory serves the next ones.
            self.completions = completions;
        }
        Ok(())
    }

    /// Collects the completions.
    fn complete(&mut self) {
        let found = self.ring.completion().map(|completion| (completion.user_data(), completion.result()));
        self.completions.extend(found);
    }

    /// Queues a submission for the next system call.
    fn submit(&mut self, submission: &Entry128) -> io::Result<()> {
        loop {
            // SAFETY: a submission points to an entry's memory. From here until its completion is
            // seen, the entry is in the table or leaked. The descriptors stay open as long as the
            // ring.
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
        // Wait anew first: an entry that returns after the take signals the new wait.
        self.wait_for_home()?;
        let mut returned = std::mem::take(&mut self.returned);
        self.home.take(&mut returned);
        for (place, entry) in returned.drain(..) {
            self.commit(place, entry)?;
        }
        self.returned = returned;
        Ok(())
    }

    /// Adds an entry to a queue.
    fn add(&mut self, queue: u16) -> io::Result<()> {
        let mut entry = RingEntry::new(queue, PAYLOAD)?;
        let submission = entry.registration(self.shared.device.as_fd());
        let place = self.table.len();
        self.table.push(EntryOwner::Taken);
        self.entries += 1;
        self.give(place, entry, submission)
    }

    fn commit(&mut self, place: usize, mut entry: RingEntry) -> io::Result<()> {
        let submission = entry.commit(self.shared.device.as_fd());
        self.give(place, entry, submission)
    }

    fn give(&mut self, place: usize, entry: RingEntry, submission: Entry128) -> io::Result<()> {
        *self.count(entry.queue()) += 1;
        self.table[place] = EntryOwner::Kernel(entry);
        self.submit(&submission.user_data(place as u64))
    }

    /// Returns the number of a queue's entries that are with the kernel.
    fn count(&mut self, queue: u16) -> &mut usize {
        let found = self.with_kernel.iter().position(|(number, _)| *number == queue);
        &mut self.with_kernel[found.expect("the thread serves the entry's queue")].1
    }

    /// Handles the completion of an entry.
    fn completed(&mut self, place: usize, result: i32) -> io::Result<()> {
        let EntryOwner::Kernel(mut entry) = std::mem::replace(&mut self.table[place], EntryOwner::Taken)
        else {
            unreachable!("only submitted entries complete");
        };
        *self.count(entry.queue()) -= 1;
        if result < 0 {
            self.table[place] = EntryOwner::Gone;
            self.entries -= 1;
            match -result {
                // The mount is gone or about to go.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ENOENT | libc::ECANCELED => {}
                _ => {
                    tracing::error!("the kernel dropped an entry: {}", io::Error::from_raw_os_error(-result))
                }
            }
            return Ok(());
        }
        entry.received();
        match self.shared.dispatcher.lane(&mut entry) {
            Lane::Here => self.answer(place, entry),
            Lane::Aside => {
                let (held, shared) = self.hold(place, entry, false)?;
                let unbegun = match &shared.data {
                    Some(data) => match data.begin(held) {
                        Ok(()) => return Ok(()),
                        Err(unbegun) => unbegun,
                    },
                    None => Unbegun::new(held),
                };
                let task = move || {
                    let Unbegun { message: mut held, decoded, alone } = unbegun;
                    let aftermath =
                        held.answer(|entry| shared.dispatcher.answer_decoded(entry, decoded.as_ref()));
                    drop(alone);
                    finish(&shared.dispatcher, &shared.assistant, held, aftermath);
                };
                self.shared.workers.run(task);
                Ok(())
            }
            Lane::Alone(dirty) => self.answer_after(place, entry, dirty, true),
            Lane::AfterWriteBack(dirty) => self.answer_after(place, entry, dirty, false),
        }
    }

    /// Answers a request by the assistant, or in a thread of its own, after the kernel has written
    /// back these files. Without a thread the entry returns with EIO.
    fn answer_after(
        &mut self,
        place: usize,
        entry: RingEntry,
        dirty: Vec<NodeId>,
        is_alone: bool,
    ) -> io::Result<()> {
        let (mut held, shared) = self.hold(place, entry, false)?;
        let assistant = shared.assistant.clone();
        let answer = move |kernel: &Kernel| {
            dirty.iter().for_each(|node| kernel.write_back(*node));
            let stale = held.answer(|entry| shared.dispatcher.answer(entry));
            shared.dispatcher.drop_stale(&stale.before_reply, kernel);
        };
        match is_alone {
            true => assistant.run_apart(answer),
            false => assistant.run(answer),
        }
        Ok(())
    }

    fn answer(&mut self, place: usize, mut entry: RingEntry) -> io::Result<()> {
        let aftermath = self.shared.dispatcher.answer(&mut entry);
        if !aftermath.before_reply.is_empty() {
            let (held, shared) = self.hold(place, entry, true)?;
            finish(&shared.dispatcher, &shared.assistant, held, aftermath);
            return Ok(());
        }
        let large = entry.request().0.entry.payload as usize >= LARGE;
        self.commit(place, entry)?;
        let late = !aftermath.after_reply.is_empty();
        self.shared.assistant.forget_later(aftermath.after_reply);
        if large || late {
            match self.ring.submit() {
                Err(error) if !is_passing(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Marks an entry as held by another thread; adds one if the queue has no entry left.
    fn hold(&mut self, place: usize, entry: RingEntry, answered: bool) -> io::Result<(Held, Arc<Shared>)> {
        let queue = entry.queue();
        let held = Held::new(place, entry, answered, Arc::clone(&self.home));
        if *self.count(queue) == 0 {
            // Without memory the queue waits for a held entry.
            match self.add(queue) {
                Ok(()) => {
                    self.ring.submit()?;
                    self.shared.nudge.queue(queue);
                }
                Err(error) => tracing::warn!("adding an entry to queue {queue}: {error}"),
            }
        }
        Ok((held, Arc::clone(&self.shared)))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        for place in self.table.drain(..) {
            if let EntryOwner::Kernel(entry) = place {
                // Closing the ring does not wait until the kernel is done with the memory.
                std::mem::forget(entry);
            }
        }
    }
}

/// Returns whether a retry may succeed.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Releases a reply, after the kernel has dropped what it makes stale.
pub(super) fn finish(dispatcher: &Arc<Dispatcher>, assistant: &Assistant, held: Held, aftermath: Aftermath) {
    if aftermath.before_reply.is_empty() {
        drop(held);
    } else {
        let dispatcher = Arc::clone(dispatcher);
        let task = move |kernel: &Kernel| {
            dispatcher.drop_stale(&aftermath.before_reply, kernel);
            drop(held);
        };
        match aftermath.apart {
            true => assistant.run_apart(task),
            false => assistant.run(task),
        }
    }
    assistant.forget_later(aftermath.after_reply);
}
