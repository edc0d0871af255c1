//! The interactive tree on a terminal.
//!
//! Owns [`Interactive`]: one thread takes samples, and the caller's thread draws, waits for keys,
//! deletes and exports.
//!
//! **Locks**, in this order:
//! 1. the turn: the sampler holds it for a sample, the caller while it deletes;
//! 2. the tally's, which the sampler holds while it adds a sample, and the caller while it draws or
//!    applies a key.
//!
//! **Invariant:** a tally has samples of one state of the file system. A deletion begins a new one,
//! since data that was shared counts for another path afterwards.

use super::browser::{Browser, Next};
use super::deletion::{self, Deleted};
use super::growth::View;
use super::run::{Origin, Run, time_of_now, write_run};
use super::sampler::{Sampler, empty_tally};
use super::screen::draw;
use super::tally::Tally;
use crate::tree_source::{TreeSource, UsedChunk};
use crate::units::Units;
use anyhow::Context as _;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long to wait for a key before the picture is drawn anew.
const REDRAW: Duration = Duration::from_millis(100);

/// An interactive tree, before it is shown.
pub struct Interactive<'s> {
    /// The file system.
    pub source: &'s TreeSource,
    /// Its chunks, as of the start.
    pub chunks: Vec<UsedChunk>,
    /// Where the run comes from.
    pub origin: Origin,
    /// The run to compare with.
    pub then: Option<Run>,
    /// The image or path, as text.
    pub name: String,
    /// How sizes are shown.
    pub units: Units,
    /// Whether the user may delete.
    pub can_delete: bool,
    /// The file that is suggested for an export.
    pub export: String,
}

/// The state that the two threads share.
struct Shared {
    tally: Mutex<Tally>,
    /// The chunks to take samples of, which the turn guards.
    turn: Mutex<Vec<UsedChunk>>,
    /// How often the file system was changed.
    changes: AtomicU64,
    /// Whether the caller waits for its turn.
    waiting: AtomicBool,
    paused: AtomicBool,
    ended: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Both are whole after every change of them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Interactive<'_> {
    /// Shows the tree until the user quits, and takes samples meanwhile.
    ///
    /// Returns the messages about what was left out.
    ///
    /// # Errors
    /// The terminal cannot be set up, or fails; a sample that cannot be looked up.
    pub fn browse(mut self) -> anyhow::Result<Vec<String>> {
        let shared = Shared {
            tally: Mutex::new(empty_tally(&self.chunks, false)),
            turn: Mutex::new(std::mem::take(&mut self.chunks)),
            changes: AtomicU64::new(0),
            waiting: AtomicBool::new(false),
            paused: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        };
        let (source, seed) = (self.source, self.origin.seed.unwrap_or_default());
        std::thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let result = sample(source, seed, &shared);
                // A failure ends the picture, too, so that it is seen.
                shared.ended.fetch_or(result.is_err(), Ordering::Relaxed);
                result
            });
            let shown = self.show(&shared);
            shared.ended.store(true, Ordering::Relaxed);
            let sampled = sampler.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            shown.context("the terminal").and(sampled)
        })
    }

    fn show(&mut self, shared: &Shared) -> std::io::Result<()> {
        let mut terminal = ratatui::try_init()?;
        let mut browser = Browser::new(self.export.clone(), self.can_delete);
        let result = self.show_on(&mut terminal, &mut browser, shared);
        ratatui::try_restore().and(result)
    }

    fn show_on(
        &mut self,
        terminal: &mut DefaultTerminal,
        browser: &mut Browser,
        shared: &Shared,
    ) -> std::io::Result<()> {
        while !shared.ended.load(Ordering::Relaxed) {
            self.draw(terminal, browser, shared)?;
            let next = self.wait(shared, browser)?;
            shared.paused.store(browser.paused, Ordering::Relaxed);
            match next {
                Next::Stay => {}
                Next::Quit => break,
                Next::Export(file) => {
                    let exported = self.export(shared, &file);
                    browser.message = Some(exported.unwrap_or_else(|error| format!("{error:#}")));
                }
                Next::Delete(path) => {
                    browser.message = Some(format!("deleting {}", deletion::shown(&path)));
                    self.draw(terminal, browser, shared)?;
                    let deleted = self.delete(shared, &path);
                    browser.message = Some(deleted.unwrap_or_else(|error| format!("{error:#}")));
                }
            }
        }
        Ok(())
    }

    fn draw(
        &self,
        terminal: &mut DefaultTerminal,
        browser: &mut Browser,
        shared: &Shared,
    ) -> std::io::Result<()> {
        let tally = lock(&shared.tally);
        terminal.draw(|frame| draw(frame, browser, self.view(&tally), &self.name, self.units)).map(drop)
    }

    fn view<'t>(&'t self, now: &'t Tally) -> View<'t> {
        View { now, then: self.then.as_ref().map(|run| &run.tally) }
    }

    /// Waits for a key, until it is time to draw anew.
    fn wait(&self, shared: &Shared, browser: &mut Browser) -> std::io::Result<Next> {
        if !event::poll(REDRAW)? {
            return Ok(Next::Stay);
        }
        Ok(match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => {
                browser.key(key, self.view(&lock(&shared.tally)))
            }
            _ => Next::Stay,
        })
    }

    /// Deletes the entry at a path, and returns a message. Samples begin anew, even if only a part
    /// could be deleted.
    fn delete(&self, shared: &Shared, path: &[Vec<u8>]) -> anyhow::Result<String> {
        shared.waiting.store(true, Ordering::Relaxed);
        let mut chunks = lock(&shared.turn);
        shared.waiting.store(false, Ordering::Relaxed);
        let deleted = deletion::delete(self.source, path);
        let mut tally = lock(&shared.tally);
        *chunks = self.source.chunks()?;
        *tally = empty_tally(&chunks, false);
        shared.changes.fetch_add(1, Ordering::Relaxed);
        let later = match deleted? {
            Deleted::Files | Deleted::Subvolume => "",
            Deleted::SubvolumeOfMount => "; its space becomes free in the background",
        };
        Ok(format!("deleted {}{later}", deletion::shown(path)))
    }

    /// Exports the samples so far to a new file, and returns a message.
    fn export(&mut self, shared: &Shared, file: &str) -> anyhow::Result<String> {
        let create = File::options().write(true).create_new(true).open(file);
        let mut out = BufWriter::new(create.with_context(|| file.to_owned())?);
        self.origin.time = time_of_now();
        let tally = lock(&shared.tally);
        let written = write_run(&mut out, &self.origin, &tally).and_then(|()| out.flush());
        written.with_context(|| file.to_owned())?;
        Ok(format!("exported {} samples to {file}", tally.all))
    }
}

/// Takes samples until the user quits. Returns the messages about what was left out.
fn sample(source: &TreeSource, seed: u64, shared: &Shared) -> anyhow::Result<Vec<String>> {
    let mut sampler = Sampler::new(source, &lock(&shared.turn), seed);
    let mut left_out = BTreeSet::new();
    let mut seen = shared.changes.load(Ordering::Relaxed);
    while !shared.ended.load(Ordering::Relaxed) {
        if shared.paused.load(Ordering::Relaxed) || shared.waiting.load(Ordering::Relaxed) {
            std::thread::sleep(REDRAW / 10);
            continue;
        }
        let chunks = lock(&shared.turn);
        let changes = shared.changes.load(Ordering::Relaxed);
        if changes != seen {
            left_out.extend(sampler.left_out());
            (sampler, seen) = (Sampler::new(source, &chunks, seed), changes);
        }
        match sampler.next()? {
            Some(found) => lock(&shared.tally).count(&found, 1),
            // There is next to no data.
            None => {
                drop(chunks);
                std::thread::sleep(REDRAW);
            }
        }
    }
    left_out.extend(sampler.left_out());
    Ok(left_out.into_iter().collect())
}
