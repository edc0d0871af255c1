//! `BlockMap`: where the blocks of a device are.
//!
//! It owns a cache of windows, and reads those that it lacks from the database.
//!
//! **Invariants**
//! - A cached window is the latest that was committed: [`BlockMap::commit`] replaces it after its
//!   batch is in the database. A reader that loads a window meanwhile does not cache it.
//!
//! **Locks**: `cache`, held for lookups and insertions, never across a request.

use super::layout::{number_in, window_key};
use super::source::Source;
use super::window::{Place, WINDOW, Window};
use lru::LruCache;
use papilio_locks::Mutex;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Windows that are cached: those of 16 GiB, which take some 2 MiB where runs are long.
const CACHED: NonZeroUsize = NonZeroUsize::new(16 << 10).unwrap();

struct Cache {
    windows: LruCache<u64, Arc<Window>>,
    commits: u64,
}

/// Where the blocks of a device are.
pub(super) struct BlockMap {
    source: Arc<Source>,
    /// Whether a window without a key has its blocks under their own keys.
    has_earlier_blocks: AtomicBool,
    cache: Mutex<Cache>,
}

/// A stretch of blocks and its place.
pub(super) type Stretch = (Range<u64>, Place);

impl BlockMap {
    pub(super) fn new(source: Arc<Source>, has_earlier_blocks: bool) -> Self {
        let cache = Mutex::new(Cache { windows: LruCache::new(CACHED), commits: 0 });
        Self { source, has_earlier_blocks: AtomicBool::new(has_earlier_blocks), cache }
    }

    /// Returns whether a block may be under its own key although the map has no window for it.
    pub(super) fn has_earlier_blocks(&self) -> bool {
        self.has_earlier_blocks.load(Ordering::Relaxed)
    }

    /// Returns a window.
    pub(super) async fn window(&self, number: u64) -> io::Result<Arc<Window>> {
        let commits = {
            let mut cache = self.cache.lock();
            if let Some(window) = cache.windows.get(&number) {
                return Ok(Arc::clone(window));
            }
            cache.commits
        };
        let window = match self.source.get(&window_key(number)).await? {
            Some(bytes) => self.parse(number, &bytes)?,
            None if self.has_earlier_blocks() => Window::earlier(),
            None => Window::default(),
        };
        let window = Arc::new(window);
        let mut cache = self.cache.lock();
        if cache.commits == commits {
            cache.windows.put(number, Arc::clone(&window));
        }
        Ok(window)
    }

    fn parse(&self, number: u64, bytes: &[u8]) -> io::Result<Window> {
        Window::parse(bytes).ok_or_else(|| {
            let reason = format!("{}: window {number} of the map is not valid", self.source.name());
            io::Error::new(io::ErrorKind::InvalidData, reason)
        })
    }

    /// Returns the windows of a range that have a key, in order, up to `most`.
    pub(super) async fn windows_in(
        &self,
        numbers: Range<u64>,
        most: usize,
    ) -> io::Result<Vec<(u64, Arc<Window>)>> {
        let keys = window_key(numbers.start).to_vec()..window_key(numbers.end).to_vec();
        let mut scan = self.source.scan(keys).await?;
        let mut windows = Vec::new();
        while windows.len() < most
            && let Some((key, value)) = scan.next().await?
        {
            let number = number_in(b'w', &key).ok_or(io::ErrorKind::InvalidData)?;
            windows.push((number, Arc::new(self.parse(number, &value)?)));
        }
        Ok(windows)
    }

    /// Returns the places of a range, in order.
    pub(super) async fn places(&self, range: &Range<u64>) -> io::Result<Vec<Stretch>> {
        let mut places: Vec<Stretch> = Vec::new();
        for number in range.start / WINDOW..range.end.div_ceil(WINDOW) {
            let base = number * WINDOW;
            let part = range.start.max(base) - base..range.end.min(base + WINDOW) - base;
            let window = self.window(number).await?;
            window.for_each(part.start as u16..part.end as u16, |stretch, place| {
                places.push((base + u64::from(stretch.start)..base + u64::from(stretch.end), place));
            });
        }
        Ok(places)
    }

    /// Takes windows whose batch is in the database.
    pub(super) fn commit(&self, windows: impl IntoIterator<Item = (u64, Arc<Window>)>) {
        let mut cache = self.cache.lock();
        cache.commits += 1;
        for (number, window) in windows {
            cache.windows.put(number, window);
        }
    }
}
