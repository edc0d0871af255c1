//! `Streams`: finds sequential reads, and says which blocks to fetch ahead of them.
//!
//! It owns the place of the last few streams. A stream's window doubles while it goes on, so that a
//! single read fetches nothing more, and a long one has [`64`] blocks on their way.

use std::ops::Range;

/// Streams that are followed at once.
const STREAMS: usize = 8;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The block after the last one that was read.
    next: u64,
    /// The block after the last one that was asked for.
    ahead: u64,
    window: u64,
    used: u64,
}

/// The streams of an object.
#[derive(Debug)]
pub(crate) struct Streams {
    streams: [Stream; STREAMS],
    clock: u64,
    /// Blocks that are fetched ahead when a stream is found.
    first_window: u64,
    /// The most blocks that are fetched ahead.
    max_window: u64,
}

impl Streams {
    pub(crate) fn new(first_window: u64, max_window: u64) -> Self {
        Self { streams: Default::default(), clock: 0, first_window, max_window }
    }

    /// Notes a read of the blocks `first..end`, and returns those to fetch ahead, which may reach
    /// past the end of the object.
    pub(crate) fn read(&mut self, first: u64, end: u64) -> Range<u64> {
        self.clock += 1;
        let clock = self.clock;
        let found = self.streams.iter_mut().find(|stream| {
            // Several reads may lie in one block.
            stream.used > 0 && (first == stream.next || first + 1 == stream.next)
        });
        let Some(stream) = found else {
            let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used).expect("there are streams");
            *oldest = Stream { next: end, ahead: end, window: 0, used: clock };
            return 0..0;
        };
        stream.used = clock;
        if end <= stream.next {
            return 0..0;
        }
        stream.next = end;
        stream.window = (stream.window * 2).clamp(self.first_window, self.max_window);
        let from = stream.ahead.max(end);
        // In pieces of half a window, so that requests stay large.
        if from > end + stream.window / 2 {
            return 0..0;
        }
        stream.ahead = end + stream.window;
        from..stream.ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_grow_with_a_stream() {
        let mut streams = Streams::new(4, 64);
        assert_eq!(streams.read(10, 11), 0..0);
        assert_eq!(streams.read(10, 11), 0..0, "the same block");
        assert_eq!(streams.read(11, 12), 12..16);
        assert_eq!(streams.read(500, 501), 0..0, "another place");
        let mut end = 16;
        for block in 12..300 {
            let ahead = streams.read(block, block + 1);
            if !ahead.is_empty() {
                assert_eq!(ahead.start, end, "no gap and nothing twice");
                end = ahead.end;
            }
            assert!(end <= block + 1 + 64);
            assert!(end > block + 1, "a stream is never caught up with");
        }
    }

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut streams = Streams::new(4, 64);
        for index in 0..1000u64 {
            let block = index * 7919 % 10_007;
            assert!(streams.read(block, block + 1).is_empty(), "{index}");
        }
    }
}
