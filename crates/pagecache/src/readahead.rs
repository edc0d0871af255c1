//! Readahead: which pages to read before a reader requests them.
//!
//! Owns the readahead window of one open file.
//! - A reader that continues where it stopped, or starts at the beginning of the file, is taken to
//!   be sequential. Its first window is four times its request, and each next window doubles up to
//!   the maximum.
//! - When the reader reaches the marker in the last part of the window, it requests the next
//!   window, which is then ready in time.
//! - A reader that jumps gets only the pages it requested.
//! - Folios grow with the window.
//!
//! Pure logic: knows no cache. Kernel counterpart: mm/readahead.c.

use crate::MAX_ORDER;
use std::ops::Range;

/// A range of pages to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadaheadRequest {
    /// The pages, cut at the end of the file. Pages that are already cached need not be read.
    pub pages: Range<u64>,
    /// Order of the new folios, a hint for [`crate::Mapping::insert_range`].
    pub order: u8,
    /// Whether no reader waits for these pages yet.
    pub asynchronous: bool,
}

/// The readahead state of an open file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Readahead {
    /// The last window requested.
    window: Range<u64>,
    /// Page of the window at which the reader requests the next window.
    marker: u64,
    /// End of the last access.
    position: u64,
    maximum: u64,
    order: u8,
}

impl Readahead {
    /// Default maximum in pages: 2 MiB.
    pub const DEFAULT_MAXIMUM: u64 = 512;

    /// Creates the state of a newly opened file. `maximum` (pages) bounds the window; 0 turns
    /// readahead off.
    pub fn new(maximum: u64) -> Self {
        Self { window: 0..0, marker: u64::MAX, position: 0, maximum, order: 0 }
    }

    /// Notes a read of `pages` from a file of `file_pages` pages. `missing` says that some of them
    /// are not cached. Returns the pages to read. A request with `asynchronous` false contains the
    /// missing pages, up to the end of the file.
    pub fn access(&mut self, pages: Range<u64>, missing: bool, file_pages: u64) -> Option<ReadaheadRequest> {
        let pages = pages.start..pages.end.min(file_pages);
        if pages.is_empty() {
            return None;
        }
        let asked = pages.end - pages.start;
        // Starts within the last page of the previous access, or right after it.
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
            // Random access: give up the window.
            *self = Self { position: self.position, ..Self::new(self.maximum) };
            return Some(ReadaheadRequest { pages, order: 0, asynchronous: false });
        }
        if self.window.contains(&pages.start) || self.window.end == pages.start && !self.window.is_empty() {
            // Sequential, but the pages read ahead were evicted or never filled: continue from here
            // with the next size.
            let size = self.next_size().max(asked);
            return self.ask(pages.start..pages.start.saturating_add(size), pages.end, file_pages, false);
        }
        let size = (asked.next_power_of_two().saturating_mul(4)).min(self.maximum).max(asked);
        self.order = 0;
        self.ask(pages.start..pages.start.saturating_add(size), pages.end, file_pages, false)
    }

    /// Requests the window that follows the last one.
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
            // The whole window is ahead of the reader: request the next one when the reader reaches
            // it.
            (true, true) => window.start,
            // Half of the pages ahead of the reader.
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
    fn sequential_reads_double_the_window() {
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
    fn random_reads_cause_no_readahead() {
        let mut readahead = Readahead::new(512);
        for page in [7, 1000, 3, 500_000, 12, 999_999] {
            assert_eq!(readahead.access(page..page + 1, true, 1 << 20), request(page..page + 1, 0, false));
        }
        assert_eq!(readahead.access(77..78, false, 1 << 20), None, "a hit requests nothing");
    }

    #[test]
    fn a_jump_resets_the_window() {
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
    fn readahead_stops_at_the_end_of_the_file() {
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
    fn a_read_above_the_maximum_is_requested_whole() {
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
    fn evicted_pages_are_requested_again() {
        let mut readahead = Readahead::new(64);
        assert_eq!(readahead.access(0..4, true, 1000), request(0..16, 0, false));
        assert_eq!(readahead.access(4..8, true, 1000), request(4..36, 2, false));
    }

    #[test]
    fn disabled_readahead_requests_only_missing_pages() {
        let mut readahead = Readahead::new(0);
        assert_eq!(readahead.access(0..3, true, 1000), request(0..3, 0, false));
        assert_eq!(readahead.access(3..4, false, 1000), None);
    }
}
