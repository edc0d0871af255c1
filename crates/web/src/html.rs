//! The frame of every page: title, way back, and what belongs to all.
//!
//! Pages work without scripts and load nothing from elsewhere. A skip link, a landmark for each
//! part, and captions and headers of tables are for screen readers; the order of the text is that
//! of the keyboard.

use crate::dates;
use crate::text::{escaped, href, percent, shown};
use papilio::{FileKind, Metadata, Timespec};

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("style.css");

/// A page that is being written.
pub(crate) struct Page<'p> {
    /// The name of the export.
    pub(crate) title: &'p str,
    /// The place that the page is about.
    pub(crate) names: &'p [Vec<u8>],
    /// The snapshot that it is shown in.
    pub(crate) at: Option<u64>,
    /// The heading, escaped.
    pub(crate) heading: String,
    /// Seconds after which a browser loads the page again.
    pub(crate) refresh: Option<u32>,
}

impl Page<'_> {
    /// Returns everything before the content of `main`.
    pub(crate) fn begin(&self) -> String {
        let heading = &self.heading;
        let title = escaped(self.title);
        let refresh = self
            .refresh
            .map_or_else(String::new, |time| format!("<meta http-equiv=\"refresh\" content=\"{time}\">\n"));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n{refresh}\
             <title>{heading} – {title}</title>\n<link rel=\"stylesheet\" href=\"/?view=style\">\n\
             <link rel=\"icon\" href=\"/?view=icon\">\n</head>\n<body>\n\
             <a class=\"skip\" href=\"#main\">Skip to the content</a>\n<header>\n{}{}</header>\n\
             <main id=\"main\" tabindex=\"-1\">\n<h1>{heading}</h1>\n",
            self.trail(),
            Self::views()
        )
    }

    /// Returns everything behind the content of `main`.
    pub(crate) fn end() -> &'static str {
        "</main>\n<footer><p>Times are in UTC. Papilio serves these files; \
         WebDAV clients use the same address.</p></footer>\n</body>\n</html>\n"
    }

    /// Returns the way from the root to this place.
    fn trail(&self) -> String {
        let mut trail = String::from("<nav aria-label=\"Breadcrumb\">\n<ol>\n");
        for depth in 0..=self.names.len() {
            let name = match depth {
                0 => escaped(self.title),
                _ => shown(&self.names[depth - 1]),
            };
            let current = if depth == self.names.len() { " aria-current=\"page\"" } else { "" };
            let link = href(&self.names[..depth], true) + &at_query(self.at);
            trail.push_str(&format!("<li><a href=\"{link}\"{current}>{name}</a></li>\n"));
        }
        trail + "</ol>\n</nav>\n"
    }

    fn views() -> &'static str {
        "<nav aria-label=\"File system\">\n<ul>\n<li><a href=\"/?view=usage\">Usage</a></li>\n\
         <li><a href=\"/?view=heatmap\">Heatmap</a></li>\n\
         <li><a href=\"/?view=check\">Check</a></li>\n</ul>\n</nav>\n"
    }
}

/// Returns the query that stays in a snapshot.
pub(crate) fn at_query(at: Option<u64>) -> String {
    at.map_or_else(String::new, |id| format!("?at={id}"))
}

/// Returns a query of pairs, with the snapshot.
pub(crate) fn query(pairs: &[(&str, &str)], at: Option<u64>) -> String {
    let at = at.map(|id| id.to_string());
    let all = pairs.iter().copied().chain(at.as_deref().map(|id| ("at", id)));
    let pairs: Vec<String> = all.map(|(key, value)| format!("{key}={}", percent(value.as_bytes()))).collect();
    format!("?{}", pairs.join("&amp;"))
}

/// Returns a time for people and programs.
pub(crate) fn time(time: Timespec) -> String {
    format!("<time datetime=\"{}\">{}</time>", dates::rfc3339(time), dates::shown(time))
}

/// Returns kind and permissions in the letters of `ls`.
pub(crate) fn mode(metadata: &Metadata) -> String {
    let kind = match metadata.file_type() {
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::BlockDevice => 'b',
        FileKind::CharacterDevice => 'c',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        _ => '-',
    };
    let mode = metadata.permissions();
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, true) => letter,
            (false, true) => letter.to_ascii_uppercase(),
            (true, false) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Returns the word for a kind of file.
pub(crate) fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Directory => "folder",
        FileKind::Symlink => "link",
        FileKind::BlockDevice => "block device",
        FileKind::CharacterDevice => "character device",
        FileKind::Fifo => "pipe",
        FileKind::Socket => "socket",
        _ => "file",
    }
}
