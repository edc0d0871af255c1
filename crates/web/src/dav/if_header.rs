//! The header `If` of WebDAV: lists of lock tokens and ETags that must hold.
//!
//! Source: RFC 4918, 10.4.

use crate::target::Target;

/// The most conditions of a header.
const CONDITIONS_MOST: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Test {
    Token(String),
    Etag(String),
}

/// Tests that must all hold for one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct List {
    /// The resource; `None` for that of the request.
    pub(crate) target: Option<Target>,
    /// Each test, and whether it must not hold.
    pub(crate) tests: Vec<(bool, Test)>,
}

/// The header. One list must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IfHeader {
    pub(crate) lists: Vec<List>,
}

impl IfHeader {
    /// Parses the value of the header; `None` if it is malformed.
    pub(crate) fn parse(value: &str) -> Option<Self> {
        let mut lists = Vec::new();
        let (mut rest, mut target, mut count) = (value.trim(), None, 0);
        while !rest.is_empty() {
            if let Some(after) = rest.strip_prefix('<') {
                let (url, after) = after.split_once('>')?;
                target = Some(Target::parse(url).ok()?);
                rest = after.trim_start();
                if !rest.starts_with('(') {
                    return None;
                }
                continue;
            }
            rest = rest.strip_prefix('(')?.trim_start();
            let mut tests = Vec::new();
            while !rest.starts_with(')') {
                count += 1;
                if count > CONDITIONS_MOST {
                    return None;
                }
                let is_not = rest.get(..3).is_some_and(|word| word.eq_ignore_ascii_case("not"));
                if is_not {
                    rest = rest[3..].trim_start();
                }
                let (test, after) = if let Some(after) = rest.strip_prefix('<') {
                    let (token, after) = after.split_once('>')?;
                    (Test::Token(token.to_owned()), after)
                } else {
                    let (etag, after) = rest.strip_prefix('[')?.split_once(']')?;
                    (Test::Etag(etag.trim().to_owned()), after)
                };
                tests.push((is_not, test));
                rest = after.trim_start();
            }
            if tests.is_empty() {
                return None;
            }
            rest = rest[1..].trim_start();
            lists.push(List { target: target.clone(), tests });
        }
        (!lists.is_empty()).then_some(Self { lists })
    }

    /// Returns all tokens that the client shows.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = &str> {
        self.lists.iter().flat_map(|list| &list.tests).filter_map(|(_, test)| match test {
            Test::Token(token) => Some(token.as_str()),
            Test::Etag(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_with_their_resources() {
        let header = IfHeader::parse("(<urn:a> [\"e\"]) (Not <DAV:no-lock>)").unwrap();
        assert_eq!(header.lists.len(), 2);
        assert_eq!(header.lists[0].tests[1], (false, Test::Etag("\"e\"".to_owned())));
        assert_eq!(header.lists[1].tests[0], (true, Test::Token("DAV:no-lock".to_owned())));
        assert_eq!(header.tokens().collect::<Vec<_>>(), ["urn:a", "DAV:no-lock"]);
        let tagged = IfHeader::parse("<http://h/a%20b> (<urn:a>)(<urn:b>)</c/> ([W/\"x\"])").unwrap();
        let places: Vec<_> = tagged.lists.iter().map(|list| list.target.clone().unwrap().names).collect();
        assert_eq!(places, [vec![b"a b".to_vec()], vec![b"a b".to_vec()], vec![b"c".to_vec()]]);
    }

    #[test]
    fn malformed_headers_are_refused() {
        for bad in [
            "",
            "()",
            "(",
            "(<a>",
            "<a>",
            "</a>",
            "</a> x",
            "x",
            "(<a>) x",
            "(x)",
            "([\"e\")",
            "</../a> (<b>)",
            "(Not)",
        ] {
            assert_eq!(IfHeader::parse(bad), None, "{bad}");
        }
        assert_eq!(IfHeader::parse(&format!("({})", "<a>".repeat(101))), None);
    }
}
