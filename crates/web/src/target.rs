//! `Target`: the path and the query that a request names.
//!
//! **Invariant**: the names of a target are names of a file system: none is empty, `.`, `..`, or
//! contains `/` or NUL. So no target leads above the root of the server.

use crate::text::percent_decoded;

/// The target of a request, or the destination of a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    /// The names of the path, decoded.
    pub(crate) names: Vec<Vec<u8>>,
    /// Whether the path ends in a slash.
    pub(crate) is_directory: bool,
    /// The parameters of the query, decoded.
    query: Vec<(Vec<u8>, Vec<u8>)>,
    /// Host and port, if the request has the absolute form.
    pub(crate) authority: Option<String>,
    /// Whether this is `*`, the server itself.
    pub(crate) is_server: bool,
}

/// A target that names no place on this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadTarget(pub(crate) &'static str);

impl Target {
    /// Parses the target of a request line: an absolute path, a URL, or `*`.
    pub(crate) fn parse(text: &str) -> Result<Self, BadTarget> {
        if text == "*" {
            return Ok(Self { is_server: true, ..Self::default() });
        }
        if text.starts_with('/') {
            return Self::parse_path(text);
        }
        let lower = text.get(..8).unwrap_or(text).to_ascii_lowercase();
        let scheme = ["http://", "https://"].into_iter().find(|scheme| lower.starts_with(scheme));
        let rest = scheme.map(|scheme| &text[scheme.len()..]).ok_or(BadTarget("the target is no path"))?;
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.is_empty() || authority.contains('@') {
            return Err(BadTarget("the target names no host"));
        }
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        Ok(Self { authority: Some(authority.to_owned()), ..Self::parse_path(&path)? })
    }

    fn parse_path(text: &str) -> Result<Self, BadTarget> {
        if text.contains('#') {
            return Err(BadTarget("the target has a fragment"));
        }
        let (path, query) = text.split_once('?').unwrap_or((text, ""));
        let mut names = Vec::new();
        for part in path.split('/') {
            let name = percent_decoded(part.as_bytes()).ok_or(BadTarget("the path has a bad escape"))?;
            match &name[..] {
                b"" | b"." => continue,
                b".." => return Err(BadTarget("the path goes upwards")),
                _ if name.contains(&b'/') || name.contains(&0) => {
                    return Err(BadTarget("the path has a name with a slash or a NUL"));
                }
                _ => names.push(name),
            }
        }
        let is_directory = path.ends_with('/') || path.ends_with("/.");
        let mut pairs = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let decoded = |text: &str| percent_decoded(text.as_bytes());
            let (Some(key), Some(value)) = (decoded(key), decoded(value)) else {
                return Err(BadTarget("the query has a bad escape"));
            };
            pairs.push((key, value));
        }
        Ok(Self { names, is_directory, query: pairs, authority: None, is_server: false })
    }

    /// Returns a parameter of the query, if it is text.
    pub(crate) fn parameter(&self, key: &str) -> Option<&str> {
        let (_, value) = self.query.iter().find(|(found, _)| found == key.as_bytes())?;
        std::str::from_utf8(value).ok()
    }

    /// Returns the last name; `None` for the root.
    pub(crate) fn last(&self) -> Option<&[u8]> {
        self.names.last().map(Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let target = Target::parse(text).unwrap();
        target.names.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
    }

    #[test]
    fn paths_are_decoded_once() {
        assert_eq!(names("/a%20b/%2541"), ["a b", "%41"]);
        assert_eq!(names("//a///b/./c/"), ["a", "b", "c"]);
        assert_eq!(names("http://h:1/a?b"), ["a"]);
        assert_eq!(names("HTTPS://h"), [""; 0]);
        assert_eq!(Target::parse("/%ff").unwrap().names, [b"\xff".to_vec()]);
        let target = Target::parse("/a/?view=us%61ge&at=7&x").unwrap();
        assert!(target.is_directory);
        assert_eq!([target.parameter("view"), target.parameter("at")], [Some("usage"), Some("7")]);
        assert_eq!([target.parameter("x"), target.parameter("y")], [Some(""), None]);
    }

    #[test]
    fn nothing_leads_upwards_or_elsewhere() {
        for bad in [
            "/..",
            "/a/../b",
            "/%2e%2e",
            "/.%2E/",
            "/a%2fb",
            "/a%2F..%2Fb",
            "/%00",
            "/a%00.txt",
            "/%",
            "/%2",
            "/%gg",
            "/a#b",
            "a/b",
            "",
            "ftp://h/",
            "http://",
            "http:///x",
            "http://user@h/",
            "/?a=%0",
        ] {
            assert!(Target::parse(bad).is_err(), "{bad}");
        }
        assert_eq!(names("/.../..a/a.."), ["...", "..a", "a.."]);
    }
}
