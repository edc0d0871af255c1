//! `Duplicates`: replies to recent calls that must not be carried out twice.
//!
//! A client that gets no reply sends its call again, after it has connected anew from the same
//! port. A REMOVE, for example, would then fail, because it was carried out.
//!
//! **Locks**: one, a leaf. Kernel counterpart: `fs/nfsd/nfscache.c`.

use papilio_locks::Mutex;
use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasher;
use std::net::SocketAddr;

/// The calls that are remembered.
const KEPT: usize = 512;
/// The longest reply that is remembered. None of these calls has a longer one.
const LONGEST: usize = 1024;

/// A call: its client, its number, and a hash of its bytes.
type CallKey = (SocketAddr, u32, u64);

/// The replies to recent calls.
#[derive(Debug, Default)]
pub(crate) struct Duplicates {
    state: Mutex<State>,
    hasher: RandomState,
}

#[derive(Debug, Default)]
struct State {
    /// The reply to each call; `None` while it is being carried out.
    replies: HashMap<CallKey, Option<Vec<u8>>>,
    /// The calls that were carried out, the oldest first.
    order: VecDeque<CallKey>,
}

/// A call as far as it is known.
pub(crate) enum Seen<'a> {
    New(Running<'a>),
    Running,
    Done(Vec<u8>),
}

/// A call that is being carried out. Dropped without a reply, it is forgotten.
pub(crate) struct Running<'a> {
    duplicates: &'a Duplicates,
    key: CallKey,
}

impl Duplicates {
    /// Notes the beginning of a call, unless it is known.
    pub(crate) fn begin(&self, client: SocketAddr, xid: u32, message: &[u8]) -> Seen<'_> {
        let key = (client, xid, self.hasher.hash_one(message));
        match self.state.lock().replies.entry(key) {
            Entry::Occupied(known) => known.get().clone().map_or(Seen::Running, Seen::Done),
            Entry::Vacant(free) => {
                free.insert(None);
                Seen::New(Running { duplicates: self, key })
            }
        }
    }
}

impl Running<'_> {
    /// Keeps the reply.
    pub(crate) fn finish(self, reply: &[u8]) {
        if reply.len() > LONGEST {
            return;
        }
        let mut state = self.duplicates.state.lock();
        state.replies.insert(self.key, Some(reply.to_vec()));
        state.order.push_back(self.key);
        if state.order.len() > KEPT
            && let Some(oldest) = state.order.pop_front()
        {
            state.replies.remove(&oldest);
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut state = self.duplicates.state.lock();
        if state.replies.get(&self.key).is_some_and(Option::is_none) {
            state.replies.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_call_gets_the_first_reply() {
        let (duplicates, client) = (Duplicates::default(), SocketAddr::from(([127, 0, 0, 1], 700)));
        let begin = |xid, message: &[u8]| match duplicates.begin(client, xid, message) {
            Seen::New(running) => Ok(running),
            Seen::Running => Err(None),
            Seen::Done(reply) => Err(Some(reply)),
        };
        let first = begin(1, b"call").ok().unwrap();
        assert!(begin(1, b"call").is_err_and(|reply| reply.is_none()));
        first.finish(b"reply");
        assert!(begin(1, b"call").is_err_and(|reply| reply.as_deref() == Some(b"reply")));
        assert!(begin(1, b"other").is_ok() && begin(2, b"call").is_ok());
        for xid in 10..10 + KEPT as u32 {
            begin(xid, b"call").ok().unwrap().finish(b"reply");
        }
        assert!(begin(1, b"call").is_ok());
        assert_eq!(duplicates.state.lock().replies.len(), KEPT);
    }
}
