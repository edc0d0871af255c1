//! The syntax of LVM's metadata: names with values, and sections in braces.

/// The deepest nesting of sections.
const DEEPEST: usize = 16;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    Number(u64),
    Text(String),
    List(Vec<Value>),
    Section(Section),
}

/// Names with values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section(pub(super) Vec<(String, Value)>);

impl Section {
    fn get(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    pub(super) fn number(&self, name: &str) -> Result<u64, String> {
        match self.get(name) {
            Some(Value::Number(number)) => Ok(*number),
            _ => Err(format!("no number {name:?}")),
        }
    }

    pub(super) fn text(&self, name: &str) -> Result<&str, String> {
        match self.get(name) {
            Some(Value::Text(text)) => Ok(text),
            _ => Err(format!("no text {name:?}")),
        }
    }

    pub(super) fn list(&self, name: &str) -> Result<&[Value], String> {
        match self.get(name) {
            Some(Value::List(list)) => Ok(list),
            _ => Err(format!("no list {name:?}")),
        }
    }

    /// Returns the sections in a section; none if it is missing.
    pub(super) fn sections(&self, name: &str) -> Vec<(&str, &Section)> {
        match self.get(name) {
            Some(Value::Section(section)) => section.all_sections(),
            _ => Vec::new(),
        }
    }

    pub(super) fn all_sections(&self) -> Vec<(&str, &Section)> {
        let section = |(name, value): &'_ (String, Value)| match value {
            Value::Section(_) => Some(name.clone()),
            _ => None,
        };
        let names: Vec<String> = self.0.iter().filter_map(section).collect();
        names
            .iter()
            .filter_map(|name| {
                self.0.iter().find_map(|(own, value)| match value {
                    Value::Section(section) if own == name => Some((own.as_str(), section)),
                    _ => None,
                })
            })
            .collect()
    }
}

/// Parses metadata.
///
/// # Errors
/// The fault and its line.
pub(super) fn parse(text: &str) -> Result<Section, String> {
    let mut parser = Parser { rest: text.trim_end_matches('\0'), line: 1 };
    let section = parser.section(0)?;
    match parser.next_char() {
        None => Ok(section),
        Some(_) => Err(parser.fault("an unexpected brace")),
    }
}

struct Parser<'a> {
    rest: &'a str,
    line: usize,
}

impl Parser<'_> {
    fn fault(&self, text: &str) -> String {
        format!("line {}: {text}", self.line)
    }

    /// Skips blanks and comments, and returns the next character without taking it.
    fn next_char(&mut self) -> Option<char> {
        loop {
            let next = self.rest.chars().next()?;
            match next {
                '#' => {
                    let end = self.rest.find('\n').unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                _ if next.is_whitespace() => self.take(next),
                _ => return Some(next),
            }
        }
    }

    fn take(&mut self, character: char) {
        self.line += usize::from(character == '\n');
        self.rest = &self.rest[character.len_utf8()..];
    }

    fn word(&mut self) -> String {
        let is_part = |character: char| !character.is_whitespace() && !"{}[]=,#\"".contains(character);
        let end = self.rest.find(|character| !is_part(character)).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word.to_owned()
    }

    fn section(&mut self, depth: usize) -> Result<Section, String> {
        if depth > DEEPEST {
            return Err(self.fault("too many braces"));
        }
        let mut section = Section::default();
        while let Some(next) = self.next_char() {
            if next == '}' {
                break;
            }
            let name = self.word();
            match self.next_char() {
                _ if name.is_empty() => return Err(self.fault("a name is missing")),
                Some('=') => {
                    self.take('=');
                    let value = self.value(depth)?;
                    section.0.push((name, value));
                }
                Some('{') => {
                    self.take('{');
                    let inner = self.section(depth + 1)?;
                    if self.next_char() != Some('}') {
                        return Err(self.fault("a brace is missing"));
                    }
                    self.take('}');
                    section.0.push((name, Value::Section(inner)));
                }
                _ => return Err(self.fault("a name without a value")),
            }
        }
        Ok(section)
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err(self.fault("too many brackets"));
        }
        match self.next_char() {
            Some('"') => self.quoted().map(Value::Text),
            Some('[') => {
                self.take('[');
                let mut list = Vec::new();
                loop {
                    match self.next_char() {
                        Some(']') => break self.take(']'),
                        Some(',') => self.take(','),
                        Some(_) => list.push(self.value(depth + 1)?),
                        None => return Err(self.fault("a bracket is missing")),
                    }
                }
                Ok(Value::List(list))
            }
            _ => {
                let word = self.word();
                // Times may be negative, and there are fractions; neither is read.
                match word.parse() {
                    Ok(number) => Ok(Value::Number(number)),
                    Err(_) if word.is_empty() => Err(self.fault("a value is missing")),
                    Err(_) => Ok(Value::Text(word)),
                }
            }
        }
    }

    fn quoted(&mut self) -> Result<String, String> {
        self.take('"');
        let mut text = String::new();
        while let Some(next) = self.rest.chars().next() {
            self.take(next);
            match next {
                '"' => return Ok(text),
                '\\' => {
                    let Some(escaped) = self.rest.chars().next() else { break };
                    self.take(escaped);
                    text.push(escaped);
                }
                _ => text.push(next),
            }
        }
        Err(self.fault("a quote is missing"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = "vg { # a comment\n id = \"a-b\"\n flags = [\"X\", 2]\n in { n = 7 } }\nt = -1\n";

    #[test]
    fn values_are_parsed() {
        let root = parse(SAMPLE).unwrap();
        let all = root.all_sections();
        let (name, group) = all[0];
        assert_eq!((name, group.text("id").unwrap()), ("vg", "a-b"));
        assert_eq!(group.list("flags").unwrap(), [Value::Text("X".to_owned()), Value::Number(2)]);
        assert_eq!(group.sections("in"), []);
        assert_eq!(root.text("t").unwrap(), "-1");
        for bad in ["a {", "a = [", "a = \"x", "{", "}", "a", "a ="] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert!(parse(&"a {".repeat(100_000)).is_err());
        assert!(parse(&format!("a = {}", "[".repeat(100_000))).is_err());
    }

    #[test]
    fn random_text_never_panics() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..20_000 {
            let mut bytes = SAMPLE.as_bytes().to_vec();
            for _ in 0..random.usize(1..6) {
                let at = random.usize(..bytes.len());
                bytes[at] = b"{}[]=,#\"\\ax9 \n"[random.usize(..14)];
            }
            if let Ok(text) = std::str::from_utf8(&bytes) {
                let _ = parse(text).map(|section| super::super::group::VolumeGroup::of(&section));
            }
        }
    }
}
