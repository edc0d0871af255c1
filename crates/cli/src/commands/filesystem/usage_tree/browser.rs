//! The state of the interactive tree: the directory that is shown, the selected entry, the order.
//!
//! Owns [`Browser`]. Keys change it, and weights arrive meanwhile. It knows no terminal.
//!
//! **Invariant:** the selection is a name, not a number, so that it stays where entries change
//! their order. Without one, or if the name is gone, the first row is selected.

use super::tally::{Entry, Tally};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// The largest first.
    Size,
    /// By name.
    Name,
}

/// Whether the tree stays on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// It does.
    Stay,
    /// The user has seen enough.
    Quit,
}

/// The directory that is shown, and how.
#[derive(Debug)]
pub struct Browser {
    /// The names of the directories from the top down to the one that is shown.
    pub path: Vec<Vec<u8>>,
    selected: Option<Vec<u8>>,
    /// The order.
    pub sort: Sort,
    reversed: bool,
    /// Whether no samples are taken.
    pub paused: bool,
    /// Whether the keys are explained.
    pub help: bool,
    /// Rows that were on the screen last time, for paging.
    pub page: usize,
}

/// A row: an entry's name and the entry.
pub type Row<'t> = (&'t [u8], &'t Entry);

impl Browser {
    /// Shows the top directory.
    pub fn new() -> Self {
        Self {
            path: Vec::new(),
            selected: None,
            sort: Sort::Size,
            reversed: false,
            paused: false,
            help: false,
            page: 10,
        }
    }

    /// Returns the directory that is shown; the top if samples have found nothing there.
    pub fn directory<'t>(&self, tally: &'t Tally) -> &'t Entry {
        tally.root.at(&self.path).unwrap_or(&tally.root)
    }

    /// Returns the rows in their order.
    pub fn rows<'t>(&self, tally: &'t Tally) -> Vec<Row<'t>> {
        let entries = self.directory(tally).below.iter();
        let mut rows: Vec<Row<'t>> = entries.map(|(name, entry)| (&name[..], entry)).collect();
        rows.sort_by(|(a, one), (b, other)| {
            let order = match self.sort {
                Sort::Size => other.weight.cmp(&one.weight),
                Sort::Name => Ordering::Equal,
            };
            let order = order.then_with(|| a.cmp(b));
            if self.reversed { order.reverse() } else { order }
        });
        rows
    }

    /// Returns the number of the selected row.
    pub fn selection(&self, rows: &[Row<'_>]) -> usize {
        let selected = self.selected.as_deref();
        rows.iter().position(|(name, _)| Some(*name) == selected).unwrap_or(0)
    }

    /// Applies a key.
    pub fn key(&mut self, key: KeyEvent, tally: &Tally) -> Next {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        if self.help {
            // Any key ends the explanation; those that end the program do so as well.
            self.help = false;
            return if matches!(key.code, KeyCode::Char('q')) || ctrl { Next::Quit } else { Next::Stay };
        }
        match key.code {
            KeyCode::Char('c' | 'd') if ctrl => return Next::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.step(tally, -1),
            KeyCode::Down | KeyCode::Char('j') => self.step(tally, 1),
            KeyCode::PageUp => self.step(tally, -(self.page.max(1) as isize)),
            KeyCode::PageDown => self.step(tally, self.page.max(1) as isize),
            KeyCode::Home | KeyCode::Char('g') => self.step(tally, isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(tally, isize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.descend(tally),
            KeyCode::Left | KeyCode::Backspace | KeyCode::Char('h' | '-') => {
                // The directory that the user leaves is selected.
                if let Some(name) = self.path.pop() {
                    self.selected = Some(name);
                }
            }
            KeyCode::Char('s') => (self.sort, self.reversed) = (Sort::Size, false),
            KeyCode::Char('n') => (self.sort, self.reversed) = (Sort::Name, false),
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('?') | KeyCode::F(1) => self.help = true,
            _ => {}
        }
        Next::Stay
    }

    fn step(&mut self, tally: &Tally, by: isize) {
        let rows = self.rows(tally);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = self.selection(&rows).saturating_add_signed(by).min(last);
        self.selected = Some(rows[at].0.to_vec());
    }

    /// Shows the selected entry, if there is anything in it.
    fn descend(&mut self, tally: &Tally) {
        let rows = self.rows(tally);
        let Some((name, entry)) = rows.get(self.selection(&rows)) else { return };
        if !entry.below.is_empty() {
            self.path.push(name.to_vec());
            self.selected = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally() -> Tally {
        let mut tally = Tally { data: 100, ..Tally::default() };
        for (path, weight) in [("/a/x", 2), ("/a/y", 1), ("/b/deep/z", 6), ("/c", 1)] {
            tally.add(Some(path.as_bytes()), weight);
        }
        tally
    }

    fn names(browser: &Browser, tally: &Tally) -> Vec<String> {
        browser.rows(tally).iter().map(|(name, _)| String::from_utf8_lossy(name).into_owned()).collect()
    }

    fn selected(browser: &Browser, tally: &Tally) -> String {
        let rows = browser.rows(tally);
        String::from_utf8_lossy(rows[browser.selection(&rows)].0).into_owned()
    }

    fn press(browser: &mut Browser, tally: &Tally, keys: &[KeyCode]) -> Next {
        let mut next = Next::Stay;
        for key in keys {
            next = browser.key(KeyEvent::new(*key, KeyModifiers::NONE), tally);
        }
        next
    }

    #[test]
    fn keys_walk_the_tree() {
        let (tally, mut browser) = (tally(), Browser::new());
        assert_eq!(names(&browser, &tally), ["b", "a", "c"]);
        press(&mut browser, &tally, &[KeyCode::Down, KeyCode::Enter]);
        assert_eq!(
            (browser.path.clone(), names(&browser, &tally)),
            (vec![b"a".to_vec()], vec!["x".to_owned(), "y".to_owned()])
        );
        // A file has nothing in it.
        press(&mut browser, &tally, &[KeyCode::Enter]);
        assert_eq!(browser.path.len(), 1);
        press(&mut browser, &tally, &[KeyCode::Left]);
        assert_eq!(selected(&browser, &tally), "a");
        press(&mut browser, &tally, &[KeyCode::Left, KeyCode::Backspace, KeyCode::End]);
        assert!(browser.path.is_empty());
        assert_eq!(selected(&browser, &tally), "c");
        press(&mut browser, &tally, &[KeyCode::Down, KeyCode::PageDown]);
        assert_eq!(selected(&browser, &tally), "c");
        press(&mut browser, &tally, &[KeyCode::Home, KeyCode::Up, KeyCode::Char('l'), KeyCode::Char('l')]);
        assert_eq!(browser.path, [b"b".to_vec(), b"deep".to_vec()]);
    }

    #[test]
    fn the_selection_stays_with_its_name() {
        let (mut tally, mut browser) = (tally(), Browser::new());
        press(&mut browser, &tally, &[KeyCode::Char('G')]);
        tally.add(Some(b"/c"), 20);
        assert_eq!(names(&browser, &tally), ["c", "b", "a"]);
        assert_eq!(selected(&browser, &tally), "c");
        press(&mut browser, &tally, &[KeyCode::Char('n')]);
        assert_eq!(names(&browser, &tally), ["a", "b", "c"]);
        press(&mut browser, &tally, &[KeyCode::Char('r')]);
        assert_eq!(names(&browser, &tally), ["c", "b", "a"]);
        press(&mut browser, &tally, &[KeyCode::Char('s'), KeyCode::Char('r')]);
        assert_eq!(names(&browser, &tally), ["a", "b", "c"]);
    }

    #[test]
    fn keys_end_pause_and_explain() {
        let (tally, mut browser) = (tally(), Browser::new());
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('p')]), Next::Stay);
        assert!(browser.paused);
        press(&mut browser, &tally, &[KeyCode::Char(' '), KeyCode::Char('?')]);
        assert!(!browser.paused && browser.help);
        // The key that ends the explanation does nothing else.
        press(&mut browser, &tally, &[KeyCode::Enter]);
        assert!(!browser.help && browser.path.is_empty());
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('q')]), Next::Quit);
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Esc]), Next::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(browser.key(interrupt, &tally), Next::Quit);
        // An empty tree has nothing to select.
        let empty = Tally::default();
        let keys = [KeyCode::Down, KeyCode::Enter, KeyCode::End, KeyCode::Left];
        assert_eq!(press(&mut browser, &empty, &keys), Next::Stay);
        assert!(names(&browser, &empty).is_empty());
    }
}
