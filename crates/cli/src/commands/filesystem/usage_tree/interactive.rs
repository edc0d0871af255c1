//! The interactive tree on a terminal.
//!
//! Owns [`browse`]: one thread takes samples, and the caller's thread draws and waits for keys.
//!
//! **Locks:** the tally's, which the sampler holds while it adds a sample, and the caller while it
//! draws or applies a key.

use super::browser::{Browser, Next};
use super::sampler::Sampler;
use super::screen::draw;
use super::tally::Tally;
use crate::tree_source::{TreeSource, UsedChunk};
use crate::units::Units;
use anyhow::Context as _;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait for a key before the picture is drawn anew.
const REDRAW: Duration = Duration::from_millis(100);

/// The state that the two threads share.
struct Shared {
    tally: Mutex<Tally>,
    paused: AtomicBool,
    ended: AtomicBool,
}

impl Shared {
    fn tally(&self) -> MutexGuard<'_, Tally> {
        // A tally is whole after every change of it.
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Shows the tree until the user quits, and takes samples meanwhile.
///
/// # Errors
/// The terminal cannot be set up, or fails; a sample that cannot be looked up.
pub fn browse(
    source: &TreeSource,
    chunks: &[UsedChunk],
    seed: u64,
    tally: Tally,
    name: &str,
    units: Units,
) -> anyhow::Result<()> {
    let shared =
        Shared { tally: Mutex::new(tally), paused: AtomicBool::new(false), ended: AtomicBool::new(false) };
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let result = sample(source, chunks, seed, &shared);
            // A failure ends the picture, too, so that it is seen.
            shared.ended.fetch_or(result.is_err(), Ordering::Relaxed);
            result
        });
        let shown = show(&shared, name, units);
        shared.ended.store(true, Ordering::Relaxed);
        let sampled = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        shown.context("the terminal").and(sampled)
    })
}

fn sample(source: &TreeSource, chunks: &[UsedChunk], seed: u64, shared: &Shared) -> anyhow::Result<()> {
    let mut sampler = Sampler::new(source, chunks, seed);
    while !shared.ended.load(Ordering::Relaxed) {
        if shared.paused.load(Ordering::Relaxed) {
            std::thread::sleep(REDRAW);
            continue;
        }
        match sampler.next()? {
            Some(path) => shared.tally().add(path.as_deref(), 1),
            // There is next to no data.
            None => std::thread::sleep(REDRAW),
        }
    }
    Ok(())
}

fn show(shared: &Shared, name: &str, units: Units) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    let mut browser = Browser::new();
    let result = loop {
        let drawn = terminal.draw(|frame| draw(frame, &mut browser, &shared.tally(), name, units));
        let next = drawn.map(drop).and_then(|()| wait(shared, &mut browser));
        shared.paused.store(browser.paused, Ordering::Relaxed);
        match next {
            Ok(Next::Stay) if !shared.ended.load(Ordering::Relaxed) => {}
            Ok(_) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    ratatui::try_restore().and(result)
}

/// Waits for a key, until it is time to draw anew.
fn wait(shared: &Shared, browser: &mut Browser) -> std::io::Result<Next> {
    if !event::poll(REDRAW)? {
        return Ok(Next::Stay);
    }
    Ok(match event::read()? {
        Event::Key(key) if key.kind != KeyEventKind::Release => browser.key(key, &shared.tally()),
        _ => Next::Stay,
    })
}
