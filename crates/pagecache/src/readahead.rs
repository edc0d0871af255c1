//! Readahead: what to read before it is asked for.
//!
//! Owns the window of one open file. A reader that goes on where it stopped, or begins at the start of the file, is taken
//! for sequential: the window begins at four times what it asked for and doubles to the maximum. When the reader comes
//! into the last part of the window (the marker), the next window is asked for, so that it is there in time. A
//! reader that jumps gets what it asked for and nothing more. Folios grow with the window.
//!
//! Pure logic: it knows of no cache. The kernel's counterpart is mm/readahead.c.

use crate::MAX_ORDER;
use std::ops::Range;

/// What to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadaheadRequest {
    /// Pages, cut at the end of the file; what of them is in the cache already need not be read.
    pub pages: Range<u64>,
    /// Order for the new folios, a hint for [`crate::Mapping::insert_range`].
    pub order: u8,
    /// Whether nobody waits for these pages yet.
    pub asynchronous: bool,
}

/// The readahead state of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readahead {
    /// The window that was asked for last.
    window: Range<u64>,
    /// From this page of the window on, the next window is asked for.
    marker: u64,
    /// Where the last access ended.
    position: u64,
    maximum: u64,
    order: u8,
}

impl Readahead {
    /// Pages of the default maximum: 2 MiB.
    pub const DEFAULT_MAXIMUM: u64 = 512;

    /// The state of a file just opened. `maximum` (pages) bounds the window; 0 turns readahead off.
    pub fn new(maximum: u64) -> Self {
        Self { window: 0..0, marker: u64::MAX, position: 0, maximum, order: 0 }
    }

    /// Notes that `pages` are being read, of a file of `file_pages` pages; `missing` says that not all of them are in the
    /// cache. Gives what to read: with `asynchronous` false it contains the missing pages, as far as the file has them.
    pub fn access(&mut self, pages: Range<u64>, missing: bool, file_pages: u64) -> Option<ReadaheadRequest> {
        let pages = pages.start..pages.end.min(file_pages);
        if pages.is_empty() {
            return None;
        }
        let asked = pages.end - pages.start;
        // Within the last page of the access before, or right after it.
        let sequential = pages.start == self.position || pages.start + 1 == self.position;
        self.position = pages.end;
        if self.maximum == 0 {
            return missing.then_some(ReadaheadRequest { pages, order: 0, asynchronous: false });
        }
        let at_marker = self.marker >= pages.start.saturating_sub(1) && self.marker < pages.end;
        if sequential && at_marker && !missing {
            return self.advance(pages.end, file_pages, true);
        }
        if !missing {
            return None;
        }
        if !sequential {
            // Random: the window is given up.
            *self = Self { position: self.position, ..Self::new(self.maximum) };
            return Some(ReadaheadRequest { pages, order: 0, asynchronous: false });
        }
        if self.window.contains(&pages.start) || self.window.end == pages.start && !self.window.is_empty() {
            // Sequential, but what was read ahead is gone or was never filled: go on from here with the next size.
            let size = self.next_size().max(asked);
            return self.ask(pages.start..pages.start.saturating_add(size), pages.end, file_pages, false);
        }
        let size = (asked.next_power_of_two().saturating_mul(4)).min(self.maximum).max(asked);
        self.order = 0;
        self.ask(pages.start..pages.start.saturating_add(size), pages.end, file_pages, false)
    }

    /// The next window follows the last.
    fn advance(&mut self, read_to: u64, file_pages: u64, asynchronous: bool) -> Option<ReadaheadRequest> {
        let start = self.window.end;
        let size = self.next_size();
        if start >= file_pages {
            self.marker = u64::MAX;
            return None;
        }
        self.ask(start..start.saturating_add(size), read_to, file_pages, asynchronous)
    }

    fn next_size(&mut self) -> u64 {
        self.order = (self.order + 2).min(MAX_ORDER);
        ((self.window.end - self.window.start) * 2).clamp(1, self.maximum)
    }

    fn ask(
        &mut self,
        window: Range<u64>,
        read_to: u64,
        file_pages: u64,
        asynchronous: bool,
    ) -> Option<ReadaheadRequest> {
        let window = window.start..window.end.min(file_pages);
        // A folio is at most a quarter of the window.
        let largest = ((window.end - window.start) / 4).max(1).ilog2() as u8;
        let order = self.order.min(largest);
        self.marker = match (window.end < file_pages, asynchronous) {
            (false, _) => u64::MAX,
            // The whole window is ahead of the reader: ask for the next one when it is reached.
            (true, true) => window.start,
            // Half of what is ahead of the reader.
            (true, false) => {
                read_to.max(window.start) + (window.end - read_to.max(window.start).min(window.end)) / 2
            }
        };
        self.window = window.clone();
        Some(ReadaheadRequest { pages: window, order, asynchronous })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pages: Range<u64>, order: u8, asynchronous: bool) -> Option<ReadaheadRequest> {
        Some(ReadaheadRequest { pages, order, asynchronous })
    }

    #[test]
    fn a_sequential_reader_gets_windows_that_double() {
        let mut readahead = Readahead::new(64);
        let steps = [
            (0..1, true, request(0..4, 0, false)),
            (1..2, false, None),
            (2..3, false, request(4..12, 1, true)),
            (3..4, false, None),
            (4..5, false, request(12..28, 2, true)),
            (5..12, false, None),
            (12..13, false, request(28..60, 3, true)),
            (13..28, false, None),
            (28..29, false, request(60..124, 4, true)),
            (29..60, false, None),
            (60..61, false, request(124..188, 4, true)),
        ];
        for (pages, missing, expected) in steps {
            assert_eq!(readahead.access(pages.clone(), missing, 1 << 20), expected, "{pages:?}");
        }
    }

    #[test]
    fn random_accesses_read_nothing_ahead() {
        let mut readahead = Readahead::new(512);
        for page in [7, 1000, 3, 500_000, 12, 999_999] {
            assert_eq!(readahead.access(page..page + 1, true, 1 << 20), request(page..page + 1, 0, false));
        }
        assert_eq!(readahead.access(77..78, false, 1 << 20), None, "a hit asks for nothing");
    }

    #[test]
    fn a_jump_gives_up_the_window() {
        let mut readahead = Readahead::new(64);
        assert_eq!(readahead.access(0..4, true, 1000), request(0..16, 0, false));
        assert_eq!(readahead.access(900..901, true, 1000), request(900..901, 0, false));
        assert_eq!(
            readahead.access(901..902, true, 1000),
            request(901..905, 0, false),
            "sequential again from here"
        );
    }

    #[test]
    fn the_end_of_the_file_cuts_and_ends_it() {
        let mut readahead = Readahead::new(64);
        assert_eq!(readahead.access(0..2, true, 5), request(0..5, 0, false));
        assert_eq!(readahead.access(2..5, false, 5), None);
        assert_eq!(readahead.access(5..6, true, 5), None, "beyond the end");
        let mut readahead = Readahead::new(64);
        assert_eq!(readahead.access(0..8, true, 40), request(0..32, 0, false));
        assert_eq!(readahead.access(8..24, false, 40), request(32..40, 1, true));
        assert_eq!(readahead.access(24..40, false, 40), None);
    }

    #[test]
    fn a_large_read_is_read_whole() {
        let mut readahead = Readahead::new(16);
        assert_eq!(readahead.access(0..100, true, 1000), request(0..100, 0, false));
        assert_eq!(readahead.access(100..200, true, 1000), request(100..200, 2, false));
    }

    #[test]
    fn small_reads_within_a_page_are_sequential() {
        let mut readahead = Readahead::new(32);
        assert_eq!(readahead.access(0..1, true, 1000), request(0..4, 0, false));
        assert_eq!(readahead.access(0..1, false, 1000), None);
        assert_eq!(readahead.access(1..2, false, 1000), None);
        assert_eq!(readahead.access(1..2, false, 1000), None);
        assert_eq!(readahead.access(2..3, false, 1000), request(4..12, 1, true));
        assert_eq!(readahead.access(2..3, false, 1000), None);
    }

    #[test]
    fn what_was_evicted_meanwhile_is_asked_for_again() {
        let mut readahead = Readahead::new(64);
        assert_eq!(readahead.access(0..4, true, 1000), request(0..16, 0, false));
        assert_eq!(readahead.access(4..8, true, 1000), request(4..36, 2, false));
    }

    #[test]
    fn turned_off_it_asks_for_what_is_missing() {
        let mut readahead = Readahead::new(0);
        assert_eq!(readahead.access(0..3, true, 1000), request(0..3, 0, false));
        assert_eq!(readahead.access(3..4, false, 1000), None);
    }
}
