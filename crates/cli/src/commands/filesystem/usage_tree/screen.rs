//! The picture of the interactive tree.
//!
//! Owns [`draw`], which puts a [`Browser`] and a [`Tally`] on a frame.

use super::browser::{Browser, KeyMeaning, Sort};
use super::growth::{Change, View};
use crate::output::escaped;
use crate::units::Units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{List, ListItem, ListState, Paragraph};

/// Columns of a bar.
const BAR: usize = 10;
const KEYS: &str = "enter: open  left: up  s, n, c: order  p: pause  d: delete  e: export  ?: help  q: quit";
const HELP: [&str; 16] = [
    "up, k / down, j      select an entry; page up, page down, home (g), end (G) as well",
    "enter, right, l      show what is in it",
    "left, backspace, h   show the directory above",
    "s, n, c, r           sort by size, by name, by change, the other way round",
    "p, space             take no more samples, or go on",
    "d, delete            delete the file, directory or subvolume, after a question (--delete)",
    "e                    export the samples to a file, for --compare",
    "q, escape            quit",
    "",
    "A sample is a random byte of the data. A byte counts once, for the shortest of the",
    "paths that contain it, however many snapshots share it. With more samples, the sizes",
    "become more exact: 95 of 100 are within the error that is shown. After a deletion the",
    "samples begin anew: data that was shared counts for another path then.",
    "With --compare, a change in brackets is smaller than its error.",
    "",
    "Any key goes back.",
];

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, browser: &mut Browser, view: View<'_>, name: &str, units: Units) {
    let parts = [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(headline(browser, view, name, units)), head);
    if browser.mode == KeyMeaning::Help {
        frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), body);
    } else {
        rows(frame, body, browser, view, units);
    }
    let text = Paragraph::new(footline(browser, view, units, usize::from(foot.width)));
    frame.render_widget(text.style(Style::new().add_modifier(Modifier::REVERSED)), foot);
}

/// Returns the question, the message or the keys.
fn footline(browser: &Browser, view: View<'_>, units: Units, width: usize) -> String {
    match (&browser.mode, &browser.message) {
        (KeyMeaning::Question(path), _) => {
            let (bytes, _) = view.now.bytes(view.weights(path).0);
            let size = units.text(bytes);
            let asked = format!("Delete this with everything in it (about {size})? y/n: ");
            let path = shown(&joined(path));
            // The end of a long path tells more than its beginning.
            let room = width.saturating_sub(asked.chars().count());
            let hidden = path.chars().count().saturating_sub(room);
            match hidden {
                0 => asked + &path,
                _ => asked + "…" + &path.chars().skip(hidden + 1).collect::<String>(),
            }
        }
        (KeyMeaning::Name(name), _) => format!("Export to, enter or escape: {}_", shown(name.as_bytes())),
        (_, Some(message)) => shown(message.as_bytes()),
        (_, None) => KEYS.to_owned(),
    }
}

fn joined(path: &[Vec<u8>]) -> Vec<u8> {
    let mut joined = vec![b'/'];
    joined.extend(path.join(&b'/'));
    joined
}

fn headline(browser: &Browser, view: View<'_>, name: &str, units: Units) -> Vec<Line<'static>> {
    let tally = view.now;
    let state = if browser.paused { ", paused" } else { "" };
    let order = match browser.sort {
        Sort::Size => "size",
        Sort::Name => "name",
        Sort::Change => "change",
    };
    let (data, metadata, samples) = (units.text(tally.data), units.text(tally.metadata), tally.all);
    let mut first = format!("{name}: data {data}, metadata {metadata}; {samples} samples{state}");
    if tally.unreachable > 0 {
        let (bytes, _) = tally.bytes(tally.unreachable);
        first += &format!("; {} in parts of extents that no file uses", units.text(bytes));
    }
    if tally.unread > 0 {
        let (bytes, _) = tally.bytes(tally.unread);
        first += &format!("; {} in files that cannot be read", units.text(bytes));
    }
    let (weight, before) = view.weights(&browser.path);
    let (bytes, error) = tally.bytes(weight);
    let (bytes, error) = (units.text(bytes), units.text(error));
    let change = view.change(weight, before).map(|change| format!(", {}", change_text(change, units)));
    let change = change.unwrap_or_default();
    let second = format!("{}  {bytes} ±{error}{change}, by {order}", shown(&joined(&browser.path)));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![Line::from(first), Line::from(second).style(bold)]
}

/// Returns a change as text: in brackets if it may be none at all.
pub fn change_text(change: Change, units: Units) -> String {
    let sign = if change.bytes < 0 { '-' } else { '+' };
    let bytes = format!("{sign}{}", units.text(change.bytes.unsigned_abs()));
    match (change.error, change.is_certain()) {
        (0, _) => bytes,
        (error, true) => format!("{bytes} ±{}", units.text(error)),
        (error, false) => format!("({bytes} ±{})", units.text(error)),
    }
}

fn rows(frame: &mut Frame<'_>, area: Rect, browser: &mut Browser, view: View<'_>, units: Units) {
    browser.page = usize::from(area.height);
    let tally = view.now;
    let rows = browser.rows(view);
    if rows.is_empty() {
        let text = if tally.all == 0 { "no samples yet" } else { "nothing was found here" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let largest = rows.iter().map(|row| row.weight).max().unwrap_or(1).max(1);
    let items = rows.iter().map(|row| {
        let (bytes, error) = tally.bytes(row.weight);
        let (bytes, error) = (units.text(bytes), format!("±{}", units.text(error)));
        let share = tally.share(row.weight) * 100.0;
        let filled = (row.weight as f64 / largest as f64 * BAR as f64).round() as usize;
        let bar = format!("{:<BAR$}", "#".repeat(filled));
        let slash = if row.is_directory { "/" } else { "" };
        let change = view.change_of(row).map(|change| format!("{:>24} ", change_text(change, units)));
        let change = change.unwrap_or_default();
        ListItem::new(format!(
            "{bytes:>12} {error:>12} {change}{share:>5.1}% [{bar}] {}{slash}",
            shown(row.name)
        ))
    });
    let list = List::new(items.collect::<Vec<_>>())
        .highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ");
    let mut state = ListState::default().with_selected(Some(browser.selection(&rows)));
    frame.render_stateful_widget(list, area, &mut state);
}

/// Returns a name as text that a terminal cannot mistake for control characters.
fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&escaped(name)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tally::Tally;
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn picture(browser: &mut Browser, tally: &Tally) -> Vec<String> {
        picture_of(browser, View::of(tally))
    }

    fn picture_of(browser: &mut Browser, view: View<'_>) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(110, 9)).unwrap();
        terminal.draw(|frame| draw(frame, browser, view, "image", Units::HUMAN)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..110).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..9).map(line).collect()
    }

    #[test]
    fn rows_show_size_share_and_name() {
        let mut browser = Browser::new("run.json".into(), true);
        let mut tally = Tally { data: 100 << 20, metadata: 1 << 20, ..Tally::default() };
        assert_eq!(picture(&mut browser, &tally)[2], "no samples yet");
        for (path, weight) in [("/large/a", 50), ("/large/b\n", 25), ("/small", 5)] {
            tally.add(Some(path.as_bytes()), weight);
        }
        tally.add(None, 20);
        let shown = picture(&mut browser, &tally);
        assert!(
            shown[0].starts_with("image: data 100.00MiB, metadata 1.00MiB; 100 samples; 20.00MiB in parts")
        );
        assert!(shown[1].starts_with("/  80.00MiB ±"), "{shown:#?}");
        assert!(shown[2].starts_with(">     75.00MiB"), "{shown:#?}");
        assert!(shown[2].ends_with(" 75.0% [##########] large/"), "{shown:#?}");
        assert!(shown[3].starts_with("       5.00MiB") && shown[3].ends_with("5.0% [#         ] small"));
        assert!(shown[8].starts_with("enter: open"));
        assert_eq!(browser.page, 6);

        browser.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE), View::of(&tally));
        let shown = picture(&mut browser, &tally);
        assert!(shown[1].starts_with("/large  75.00MiB"), "{shown:#?}");
        // A line break in a name breaks no line.
        assert!(shown[3].ends_with(r"b\n"), "{shown:#?}");
        browser.key(KeyEvent::new(KeyCode::Char('p'), KeyModifiers::NONE), View::of(&tally));
        assert!(picture(&mut browser, &tally)[0].contains("100 samples, paused"));
        browser.key(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE), View::of(&tally));
        assert!(picture(&mut browser, &tally)[3].contains("show what is in it"));
    }

    #[test]
    fn questions_names_and_changes_are_shown() {
        let mut browser = Browser::new("run.json".into(), true);
        let mut tally = Tally { data: 100 << 20, ..Tally::default() };
        tally.add(Some(b"/large/a\x1b"), 75);
        tally.add(Some(b"/small"), 25);
        let press = |browser: &mut Browser, code| {
            browser.key(KeyEvent::new(code, KeyModifiers::NONE), View::of(&tally));
        };
        press(&mut browser, KeyCode::Enter);
        press(&mut browser, KeyCode::Char('d'));
        let asked = picture(&mut browser, &tally)[8].clone();
        assert_eq!(asked, r"Delete this with everything in it (about 75.00MiB)? y/n: /large/a\033");
        let narrow = footline(&browser, View::of(&tally), Units::HUMAN, 64);
        assert!(narrow.ends_with(r"y/n: …/a\033") && narrow.chars().count() == 64, "{narrow}");
        press(&mut browser, KeyCode::Char('n'));
        assert_eq!(picture(&mut browser, &tally)[8], "nothing was deleted");
        press(&mut browser, KeyCode::Char('e'));
        assert_eq!(picture(&mut browser, &tally)[8], "Export to, enter or escape: run.json_");
        press(&mut browser, KeyCode::Esc);
        press(&mut browser, KeyCode::Left);

        let mut then = Tally { data: 60 << 20, exact: true, ..Tally::default() };
        then.add(Some(b"/large/a"), 35 << 20);
        then.add(Some(b"/small"), 24 << 20);
        then.add(Some(b"/gone"), 1 << 20);
        let shown = picture_of(&mut browser, View { now: &tally, then: Some(&then) });
        assert!(shown[1].contains(", +40.00MiB ±"), "{shown:#?}");
        assert!(shown[2].contains(" +40.00MiB ±") && shown[2].ends_with("large/"), "{shown:#?}");
        assert!(shown[3].contains("(+1.00MiB ±") && shown[3].ends_with("small"), "{shown:#?}");
        assert!(shown[4].contains("(-1.00MiB ±") && shown[4].ends_with("gone"), "{shown:#?}");
    }
}
