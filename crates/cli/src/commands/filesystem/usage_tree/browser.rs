//! The state of the interactive tree: the directory that is shown, the selected entry, the order.
//!
//! Owns [`Browser`]. Keys change it, and weights arrive meanwhile. It knows no terminal.
//! Changes of more than the picture are left to the caller: [`Next`] asks for them.
//!
//! **Invariants**
//! - The selection is a name, not a number, so that it stays where entries change their order.
//!   Without one, or if the name is gone, the first row is selected.
//! - Nothing is deleted without a question, whose answer is `y` in the state that asked.

use super::growth::{Row, View};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use std::cmp::Ordering;

/// The order of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    /// The largest first.
    Size,
    /// By name.
    Name,
    /// By how much they grew or shrank, the most first.
    Change,
}

/// The next step of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// It shows the tree.
    Stay,
    /// It ends: the user has seen enough.
    Quit,
    /// It deletes what is at a path.
    Delete(Vec<Vec<u8>>),
    /// It exports the run to a file of this name.
    Export(String),
}

/// The meaning of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyMeaning {
    /// They walk through the tree.
    Walk,
    /// The keys are explained; any key goes back.
    Help,
    /// Whether to delete what is at a path: `y`, or any other key.
    Question(Vec<Vec<u8>>),
    /// They write the name of a file.
    Name(String),
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
    /// The meaning of keys.
    pub mode: KeyMeaning,
    /// A message about the last key, until the next one.
    pub message: Option<String>,
    /// Rows that were on the screen last time, for paging.
    pub page: usize,
    /// The file that is suggested for an export.
    export: String,
    /// Whether the user may delete.
    can_delete: bool,
}

impl Browser {
    /// Shows the top directory. `export` is the file that is suggested for an export.
    pub fn new(export: String, can_delete: bool) -> Self {
        Self {
            path: Vec::new(),
            selected: None,
            sort: Sort::Size,
            reversed: false,
            paused: false,
            mode: KeyMeaning::Walk,
            message: None,
            page: 10,
            export,
            can_delete,
        }
    }

    /// Returns the rows in their order.
    pub fn rows<'t>(&self, view: View<'t>) -> Vec<Row<'t>> {
        let mut rows = view.rows(&self.path);
        let change = |row: &Row<'_>| view.change_of(row).map_or(0, |change| change.bytes.unsigned_abs());
        rows.sort_by(|one, other| {
            let order = match self.sort {
                Sort::Size => other.weight.cmp(&one.weight),
                Sort::Name => Ordering::Equal,
                Sort::Change => change(other).cmp(&change(one)),
            };
            let order = order.then_with(|| one.name.cmp(other.name));
            if self.reversed { order.reverse() } else { order }
        });
        rows
    }

    /// Returns the number of the selected row.
    pub fn selection(&self, rows: &[Row<'_>]) -> usize {
        let selected = self.selected.as_deref();
        rows.iter().position(|row| Some(row.name) == selected).unwrap_or(0)
    }

    /// Applies a key.
    pub fn key(&mut self, key: KeyEvent, view: View<'_>) -> Next {
        let ctrl = key.modifiers.contains(KeyModifiers::CONTROL);
        self.message = None;
        if ctrl && matches!(key.code, KeyCode::Char('c' | 'd')) {
            return Next::Quit;
        }
        match std::mem::replace(&mut self.mode, KeyMeaning::Walk) {
            KeyMeaning::Walk => self.walk(key.code, view),
            // A key that ends the program does so here as well; any other only goes back.
            KeyMeaning::Help if key.code == KeyCode::Char('q') => Next::Quit,
            KeyMeaning::Help => Next::Stay,
            KeyMeaning::Question(path) if matches!(key.code, KeyCode::Char('y' | 'Y')) => Next::Delete(path),
            KeyMeaning::Question(_) => {
                self.message = Some("nothing was deleted".to_owned());
                Next::Stay
            }
            KeyMeaning::Name(name) => self.write_name(name, key.code),
        }
    }

    fn walk(&mut self, key: KeyCode, view: View<'_>) -> Next {
        match key {
            KeyCode::Char('q') | KeyCode::Esc => return Next::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.step(view, -1),
            KeyCode::Down | KeyCode::Char('j') => self.step(view, 1),
            KeyCode::PageUp => self.step(view, -(self.page.max(1) as isize)),
            KeyCode::PageDown => self.step(view, self.page.max(1) as isize),
            KeyCode::Home | KeyCode::Char('g') => self.step(view, isize::MIN),
            KeyCode::End | KeyCode::Char('G') => self.step(view, isize::MAX),
            KeyCode::Enter | KeyCode::Right | KeyCode::Char('l') => self.descend(view),
            KeyCode::Left | KeyCode::Backspace | KeyCode::Char('h' | '-') => {
                // The directory that the user leaves is selected.
                if let Some(name) = self.path.pop() {
                    self.selected = Some(name);
                }
            }
            KeyCode::Char('s') => (self.sort, self.reversed) = (Sort::Size, false),
            KeyCode::Char('n') => (self.sort, self.reversed) = (Sort::Name, false),
            KeyCode::Char('c') if view.then.is_some() => {
                (self.sort, self.reversed) = (Sort::Change, false);
            }
            KeyCode::Char('c') => {
                self.message = Some("there is no older run; --compare FILE names one".to_owned());
            }
            KeyCode::Char('r') => self.reversed = !self.reversed,
            KeyCode::Char('p' | ' ') => self.paused = !self.paused,
            KeyCode::Char('d') | KeyCode::Delete => self.ask(view),
            KeyCode::Char('e') => self.mode = KeyMeaning::Name(self.export.clone()),
            KeyCode::Char('?') | KeyCode::F(1) => self.mode = KeyMeaning::Help,
            _ => {}
        }
        Next::Stay
    }

    fn step(&mut self, view: View<'_>, by: isize) {
        let rows = self.rows(view);
        let Some(last) = rows.len().checked_sub(1) else { return };
        let at = self.selection(&rows).saturating_add_signed(by).min(last);
        self.selected = Some(rows[at].name.to_vec());
    }

    /// Shows the selected entry, if there is anything in it.
    fn descend(&mut self, view: View<'_>) {
        let rows = self.rows(view);
        let Some(row) = rows.get(self.selection(&rows)) else { return };
        if row.is_directory {
            self.path.push(row.name.to_vec());
            self.selected = None;
        }
    }

    /// Asks whether to delete the selected entry.
    fn ask(&mut self, view: View<'_>) {
        let rows = self.rows(view);
        let Some(row) = rows.get(self.selection(&rows)) else { return };
        if !self.can_delete {
            let text = "opened for reading only: the option --delete allows to delete";
            self.message = Some(text.to_owned());
            return;
        }
        let mut path = self.path.clone();
        path.push(row.name.to_vec());
        self.mode = KeyMeaning::Question(path);
    }

    fn write_name(&mut self, mut name: String, key: KeyCode) -> Next {
        match key {
            KeyCode::Esc => return Next::Stay,
            KeyCode::Enter if name.is_empty() => return Next::Stay,
            KeyCode::Enter => return Next::Export(name),
            KeyCode::Backspace => drop(name.pop()),
            KeyCode::Char(letter) if !letter.is_control() => name.push(letter),
            _ => {}
        }
        self.mode = KeyMeaning::Name(name);
        Next::Stay
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;

    fn browser() -> Browser {
        Browser::new("run.json".into(), true)
    }

    fn tally() -> Tally {
        let mut tally = Tally { data: 100, ..Tally::default() };
        for (path, weight) in [("/a/x", 2), ("/a/y", 1), ("/b/deep/z", 6), ("/c", 1)] {
            tally.add(Some(path.as_bytes()), weight);
        }
        tally
    }

    fn names(browser: &Browser, tally: &Tally) -> Vec<String> {
        let rows = browser.rows(View::of(tally));
        rows.iter().map(|row| String::from_utf8_lossy(row.name).into_owned()).collect()
    }

    fn selected(browser: &Browser, tally: &Tally) -> String {
        let rows = browser.rows(View::of(tally));
        String::from_utf8_lossy(rows[browser.selection(&rows)].name).into_owned()
    }

    fn press(browser: &mut Browser, tally: &Tally, keys: &[KeyCode]) -> Next {
        let mut next = Next::Stay;
        for key in keys {
            next = browser.key(KeyEvent::new(*key, KeyModifiers::NONE), View::of(tally));
        }
        next
    }

    #[test]
    fn keys_walk_the_tree() {
        let (tally, mut browser) = (tally(), browser());
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
        let (mut tally, mut browser) = (tally(), browser());
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
        let (tally, mut browser) = (tally(), browser());
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('p')]), Next::Stay);
        assert!(browser.paused);
        press(&mut browser, &tally, &[KeyCode::Char(' '), KeyCode::Char('?')]);
        assert!(!browser.paused && browser.mode == KeyMeaning::Help);
        // The key that ends the explanation does nothing else.
        press(&mut browser, &tally, &[KeyCode::Enter]);
        assert!(browser.mode == KeyMeaning::Walk && browser.path.is_empty());
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('q')]), Next::Quit);
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Esc]), Next::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(browser.key(interrupt, View::of(&tally)), Next::Quit);
        // An empty tree has nothing to select.
        let empty = Tally::default();
        let keys = [KeyCode::Down, KeyCode::Enter, KeyCode::End, KeyCode::Left];
        assert_eq!(press(&mut browser, &empty, &keys), Next::Stay);
        assert!(names(&browser, &empty).is_empty());
    }

    #[test]
    fn deleting_needs_the_right_and_an_answer() {
        let tally = tally();
        let mut browser = browser();
        press(&mut browser, &tally, &[KeyCode::Down, KeyCode::Enter, KeyCode::Char('d')]);
        let path = vec![b"a".to_vec(), b"x".to_vec()];
        assert_eq!(browser.mode, KeyMeaning::Question(path.clone()));
        // Whatever is no yes is a no.
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Enter]), Next::Stay);
        assert_eq!(browser.message.as_deref(), Some("nothing was deleted"));
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('y')]), Next::Stay);
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Delete, KeyCode::Char('y')]), Next::Delete(path));
        assert_eq!(browser.mode, KeyMeaning::Walk);
        let mut reader = Browser::new(String::new(), false);
        assert_eq!(press(&mut reader, &tally, &[KeyCode::Char('d'), KeyCode::Char('y')]), Next::Stay);
        press(&mut reader, &tally, &[KeyCode::Char('d')]);
        assert!(reader.message.unwrap().contains("--delete"));
    }

    #[test]
    fn a_name_for_the_export_is_written() {
        let (tally, mut browser) = (tally(), browser());
        press(&mut browser, &tally, &[KeyCode::Char('e'), KeyCode::Backspace, KeyCode::Char('q')]);
        assert_eq!(browser.mode, KeyMeaning::Name("run.jsoq".into()));
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Enter]), Next::Export("run.jsoq".into()));
        assert_eq!(press(&mut browser, &tally, &[KeyCode::Char('e'), KeyCode::Esc]), Next::Stay);
        assert_eq!(browser.mode, KeyMeaning::Walk);
    }

    #[test]
    fn rows_are_sorted_by_change() {
        let (now, mut then, mut browser) = (tally(), tally(), browser());
        then.add(Some(b"/c"), 30);
        let view = View { now: &now, then: Some(&then) };
        browser.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::NONE), view);
        assert_eq!((browser.sort, browser.rows(view)[0].name), (Sort::Change, &b"c"[..]));
        press(&mut browser, &now, &[KeyCode::Char('s'), KeyCode::Char('c')]);
        assert!(browser.sort == Sort::Size && browser.message.unwrap().contains("--compare"));
    }
}
