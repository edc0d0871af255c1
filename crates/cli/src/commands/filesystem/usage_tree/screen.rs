//! The picture of the interactive tree.
//!
//! Owns [`draw`], which puts a [`Browser`] and a [`Tally`] on a frame.

use super::browser::{Browser, Sort};
use super::tally::Tally;
use crate::output::escaped;
use crate::units::Units;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{List, ListItem, ListState, Paragraph};

/// Columns of a bar.
const BAR: usize = 10;
const KEYS: &str = "enter: open  left: up  s: by size  n: by name  r: reverse  p: pause  ?: help  q: quit";
const HELP: [&str; 12] = [
    "up, k / down, j      select an entry; page up, page down, home (g), end (G) as well",
    "enter, right, l      show what is in it",
    "left, backspace, h   show the directory above",
    "s, n, r              sort by size, by name, the other way round",
    "p, space             take no more samples, or go on",
    "q, escape            quit",
    "",
    "A sample is a random byte of the data. A byte counts once, for the shortest of the",
    "paths that contain it, however many snapshots share it. With more samples, the sizes",
    "become more exact: 95 of 100 are within the error that is shown.",
    "",
    "Any key goes back.",
];

/// Draws everything.
pub fn draw(frame: &mut Frame<'_>, browser: &mut Browser, tally: &Tally, name: &str, units: Units) {
    let parts = [Constraint::Length(2), Constraint::Fill(1), Constraint::Length(1)];
    let [head, body, foot] = Layout::vertical(parts).areas(frame.area());
    frame.render_widget(Paragraph::new(headline(browser, tally, name, units)), head);
    if browser.help {
        frame.render_widget(Paragraph::new(HELP.map(Line::from).to_vec()), body);
    } else {
        rows(frame, body, browser, tally, units);
    }
    frame.render_widget(Paragraph::new(KEYS).style(Style::new().add_modifier(Modifier::REVERSED)), foot);
}

fn headline(browser: &Browser, tally: &Tally, name: &str, units: Units) -> Vec<Line<'static>> {
    let mut path = vec![b'/'];
    path.extend(browser.path.join(&b'/'));
    let state = if browser.paused { ", paused" } else { "" };
    let order = match browser.sort {
        Sort::Size => "size",
        Sort::Name => "name",
    };
    let (data, metadata, samples) = (units.text(tally.data), units.text(tally.metadata), tally.all);
    let mut first = format!("{name}: data {data}, metadata {metadata}; {samples} samples{state}");
    if tally.unreachable > 0 {
        let (bytes, _) = tally.bytes(tally.unreachable);
        first += &format!("; {} in parts of extents that no file uses", units.text(bytes));
    }
    let (bytes, error) = tally.bytes(browser.directory(tally).weight);
    let (bytes, error) = (units.text(bytes), units.text(error));
    let second = format!("{}  {bytes} ±{error}, by {order}", shown(&path));
    let bold = Style::new().add_modifier(Modifier::BOLD);
    vec![Line::from(first), Line::from(second).style(bold)]
}

fn rows(frame: &mut Frame<'_>, area: Rect, browser: &mut Browser, tally: &Tally, units: Units) {
    browser.page = usize::from(area.height);
    let rows = browser.rows(tally);
    if rows.is_empty() {
        let text = if tally.all == 0 { "no samples yet" } else { "nothing was found here" };
        frame.render_widget(Paragraph::new(text), area);
        return;
    }
    let largest = rows.iter().map(|(_, entry)| entry.weight).max().unwrap_or(1).max(1);
    let items = rows.iter().map(|(name, entry)| {
        let (bytes, error) = tally.bytes(entry.weight);
        let (bytes, error) = (units.text(bytes), format!("±{}", units.text(error)));
        let share = tally.share(entry.weight) * 100.0;
        let filled = (entry.weight as f64 / largest as f64 * BAR as f64).round() as usize;
        let bar = format!("{:<BAR$}", "#".repeat(filled));
        let slash = if entry.below.is_empty() { "" } else { "/" };
        ListItem::new(format!("{bytes:>12} {error:>12} {share:>5.1}% [{bar}] {}{slash}", shown(name)))
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
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

    fn picture(browser: &mut Browser, tally: &Tally) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(90, 9)).unwrap();
        terminal.draw(|frame| draw(frame, browser, tally, "image", Units::HUMAN)).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..90).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..9).map(line).collect()
    }

    #[test]
    fn rows_show_size_share_and_name() {
        let mut browser = Browser::new();
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

        browser.key(KeyEvent::new(KeyCode::Enter, KeyModifiers::NONE), &tally);
        let shown = picture(&mut browser, &tally);
        assert!(shown[1].starts_with("/large  75.00MiB"), "{shown:#?}");
        // A line break in a name breaks no line.
        assert!(shown[3].ends_with(r"b\n"), "{shown:#?}");
        browser.key(KeyEvent::new(KeyCode::Char('p'), KeyModifiers::NONE), &tally);
        assert!(picture(&mut browser, &tally)[0].contains("100 samples, paused"));
        browser.key(KeyEvent::new(KeyCode::Char('?'), KeyModifiers::NONE), &tally);
        assert!(picture(&mut browser, &tally)[3].contains("show what is in it"));
    }
}
