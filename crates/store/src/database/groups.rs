//! `Groups`: the writes that are not in the database yet.
//!
//! A *group* is the writes between two seals. Writes go to the open group, in memory. A seal closes
//! it and passes it to the committer, which writes it to the store: all of it or nothing.
//!
//! **Invariants**
//! - Groups are committed in the order of their numbers. So a crash leaves a prefix of the writes.
//! - A write is found here until its group is in the database and its map is up to date.
//! - The bytes of all groups are at most [`MOST_UNWRITTEN`], exceeded by the last write of each
//!   writer.
//! - After a fault nothing more is committed. Every later write and flush is an error.
//!
//! **Locks**: `state`, held for changes in memory only. `room` and `committed` notify the writers
//! that wait.

use super::extents::{Content, Extents};
use crate::remote::blocks::Fault;
use papilio_locks::Mutex;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Notify, watch};

/// The most bytes of data that wait in memory.
const MOST_UNWRITTEN: u64 = 256 << 20;
/// Bytes of data that seal a group.
const GROUP: u64 = 16 << 20;
/// The longest time that a group stays open.
pub(super) const OPEN_FOR: Duration = Duration::from_secs(1);
/// Blocks of zeros that seal a group: they take long to enter the map.
const LONG_ZEROS: u64 = (4 << 30) / super::layout::BLOCK;

/// A sealed group.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) number: u64,
    pub(super) extents: Extents,
}

#[derive(Default)]
struct State {
    open: Extents,
    /// When the first write of the open group came.
    since: Option<Instant>,
    sealed: VecDeque<Arc<Group>>,
    last: u64,
    /// Bytes of the sealed groups.
    sealed_bytes: u64,
    fault: Option<Fault>,
}

/// The writes that are not in the database yet. `submit` passes sealed groups on, in order.
pub(super) struct Groups {
    state: Mutex<State>,
    submit: Box<dyn Fn(Arc<Group>) + Send + Sync>,
    room: Notify,
    committed: watch::Sender<u64>,
}

impl Groups {
    pub(super) fn new(submit: impl Fn(Arc<Group>) + Send + Sync + 'static) -> Self {
        Self {
            state: Mutex::default(),
            submit: Box::new(submit),
            room: Notify::new(),
            committed: watch::Sender::new(0),
        }
    }

    /// Writes a range of blocks. Waits while too many bytes are unwritten.
    pub(super) async fn write(&self, range: Range<u64>, content: Content) -> io::Result<()> {
        loop {
            let room = self.room.notified();
            {
                let mut state = self.state.lock();
                if let Some(fault) = &state.fault {
                    return Err(fault.to_error());
                }
                if state.sealed_bytes < MOST_UNWRITTEN - GROUP {
                    let is_long = content == Content::Zeros && range.end - range.start > LONG_ZEROS;
                    if is_long {
                        self.seal_locked(&mut state);
                    }
                    state.since.get_or_insert_with(Instant::now);
                    state.open.insert(range, content);
                    if is_long || state.open.bytes() >= GROUP {
                        self.seal_locked(&mut state);
                    }
                    return Ok(());
                }
            }
            room.await;
        }
    }

    fn seal_locked(&self, state: &mut State) {
        state.since = None;
        if state.open.is_empty() {
            return;
        }
        state.last += 1;
        let group = Arc::new(Group { number: state.last, extents: std::mem::take(&mut state.open) });
        state.sealed_bytes += group.extents.bytes();
        state.sealed.push_back(Arc::clone(&group));
        // Under the lock, so that groups are passed on in order.
        (self.submit)(group);
    }

    /// Closes the open group if it has been open for long.
    pub(super) fn seal_old(&self) {
        let mut state = self.state.lock();
        if state.since.is_some_and(|since| since.elapsed() >= OPEN_FOR) {
            self.seal_locked(&mut state);
        }
    }

    /// Closes the open group, and returns when all groups are in the database.
    pub(super) async fn settle(&self) -> io::Result<()> {
        let mut committed = self.committed.subscribe();
        let last = {
            let mut state = self.state.lock();
            if let Some(fault) = &state.fault {
                return Err(fault.to_error());
            }
            self.seal_locked(&mut state);
            state.last
        };
        // The sender lives as long as `self`.
        let _ = committed.wait_for(|number| *number >= last).await;
        match &self.state.lock().fault {
            Some(fault) => Err(fault.to_error()),
            None => Ok(()),
        }
    }

    /// Notes that a group is in the database and the map, and forgets it.
    pub(super) fn committed(&self, number: u64) {
        {
            let mut state = self.state.lock();
            if let Some(group) = state.sealed.pop_front_if(|group| group.number == number) {
                state.sealed_bytes -= group.extents.bytes();
            }
        }
        self.committed.send_replace(number);
        self.room.notify_waiters();
    }

    /// Notes that a group could not be written. The first fault stays.
    pub(super) fn failed(&self, error: &io::Error) {
        let last = {
            let mut state = self.state.lock();
            state.fault.get_or_insert_with(|| Fault::new(error));
            state.last
        };
        // Those that wait see the fault.
        self.committed.send_replace(last);
        self.room.notify_waiters();
    }

    /// Returns whether anything was ever written.
    pub(super) fn is_used(&self) -> bool {
        self.state.lock().last > 0
    }

    /// Returns the first fault.
    pub(super) fn fault(&self) -> Option<io::Error> {
        self.state.lock().fault.as_ref().map(Fault::to_error)
    }

    /// Calls `found` with each part of a range that is here, and returns the others in order.
    pub(super) fn read(
        &self,
        range: Range<u64>,
        mut found: impl FnMut(Range<u64>, Content),
    ) -> Vec<Range<u64>> {
        // References to the bytes only, so that the copy runs without the lock.
        let mut parts = Vec::new();
        let gaps = {
            let state = self.state.lock();
            let mut gaps = vec![range];
            let newest_first =
                std::iter::once(&state.open).chain(state.sealed.iter().rev().map(|group| &group.extents));
            for extents in newest_first {
                gaps = gaps
                    .into_iter()
                    .flat_map(|gap| extents.read(gap, |range, content| parts.push((range, content))))
                    .collect();
            }
            gaps
        };
        parts.into_iter().for_each(|(range, content)| found(range, content));
        gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slatedb::bytes::Bytes;

    fn data(byte: u8, blocks: u64) -> Content {
        Content::Data(Bytes::from(vec![byte; (blocks * super::super::layout::BLOCK) as usize]))
    }

    fn first_byte(groups: &Groups, block: u64) -> Option<u8> {
        let mut byte = None;
        let gaps = groups.read(block..block + 1, |_, content| {
            byte = Some(match content {
                Content::Data(bytes) => bytes[0],
                Content::Zeros => 0,
            });
        });
        assert_eq!(gaps.is_empty(), byte.is_some());
        byte
    }

    #[test]
    fn groups_are_read_newest_first_and_passed_on_in_order() {
        let (sender, sealed) = std::sync::mpsc::channel();
        let sender = Mutex::new(sender);
        let groups = Groups::new(move |group| sender.lock().send(group).unwrap());
        let runtime = crate::remote::runtime().unwrap();
        runtime.block_on(async {
            groups.write(0..4096, data(1, 4096)).await.unwrap();
            groups.write(10..20, Content::Zeros).await.unwrap();
            groups.write(12..13, data(3, 1)).await.unwrap();
        });
        assert_eq!(
            [9, 10, 12, 5000].map(|block| first_byte(&groups, block)),
            [Some(1), Some(0), Some(3), None]
        );
        groups.seal_old();
        let first = sealed.try_recv().unwrap();
        assert!(first.number == 1 && sealed.try_recv().is_err(), "16 MiB seal a group, and 1 s does");
        groups.committed(1);
        assert_eq!([9, 12].map(|block| first_byte(&groups, block)), [None, Some(3)]);
        groups.failed(&io::Error::other("lost"));
        groups.failed(&io::Error::other("later"));
        runtime.block_on(async {
            assert_eq!(groups.write(0..1, Content::Zeros).await.unwrap_err().to_string(), "lost");
            assert_eq!(groups.settle().await.unwrap_err().to_string(), "lost");
        });
        assert_eq!(first_byte(&groups, 12), Some(3), "reads go on");
    }
}
