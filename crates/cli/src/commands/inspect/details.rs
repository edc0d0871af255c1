//! The description of a structure: lines of fields, and lists of other structures.
//!
//! Owns [`Details`]. Both the text and the JSON of an item come from it, so that they have the same
//! content.

use crate::output::{OutputError, escaped, json_bytes};
use papilio::format::Key;
use serde_json::{Map, Value};
use std::fmt::{Display, Write};

/// One field: a name in JSON, a label in text, and its value in both.
#[derive(Clone, Debug)]
struct Field {
    key: &'static str,
    label: &'static str,
    text: String,
    json: Value,
}

/// The description of one structure.
#[derive(Clone, Debug, Default)]
pub struct Details {
    lines: Vec<Line>,
    lists: Vec<(&'static str, Vec<Details>)>,
}

/// Fields on one line of text.
#[derive(Clone, Debug, Default)]
pub struct Line {
    fields: Vec<Field>,
}

impl Line {
    /// Adds a number with the same name in text and JSON.
    pub fn number(&mut self, key: &'static str, value: impl Into<u64>) -> &mut Self {
        self.labelled(key, key, value)
    }

    /// Adds a number with a different name in text.
    pub fn labelled(&mut self, key: &'static str, label: &'static str, value: impl Into<u64>) -> &mut Self {
        let value = value.into();
        self.field(key, label, value.to_string(), value.into())
    }

    /// Adds a word or phrase.
    pub fn words(&mut self, key: &'static str, label: &'static str, value: impl Display) -> &mut Self {
        let text = value.to_string();
        let json = text.clone().into();
        self.field(key, label, text, json)
    }

    /// Adds a value with different forms in text and JSON.
    pub fn field(&mut self, key: &'static str, label: &'static str, text: String, json: Value) -> &mut Self {
        self.fields.push(Field { key, label, text, json });
        self
    }

    /// Adds the bytes of a name or a value.
    pub fn bytes(&mut self, key: &'static str, label: &'static str, bytes: &[u8]) -> &mut Self {
        let mut object = Map::new();
        json_bytes(&mut object, key, bytes);
        let text = String::from_utf8_lossy(&escaped(bytes)).into_owned();
        for (index, (name, json)) in object.into_iter().enumerate() {
            // Bytes that are not UTF-8 have a second JSON field, which the text omits.
            match index {
                0 => self.fields.push(Field { key, label, text: text.clone(), json }),
                _ => self.fields.push(Field { key: hex_key(&name), label: "", text: String::new(), json }),
            }
        }
        self
    }

    /// Adds a key.
    pub fn key(&mut self, key: &'static str, label: &'static str, value: &Key) -> &mut Self {
        let text = super::key_text::key_text(value);
        self.field(key, label, text, super::key_text::key_json(value))
    }
}

/// Returns the static name of a field with hexadecimal bytes.
fn hex_key(name: &str) -> &'static str {
    match name {
        "name_hex" => "name_hex",
        "value_hex" => "value_hex",
        _ => "bytes_hex",
    }
}

impl Details {
    /// Begins a line.
    pub fn line(&mut self) -> &mut Line {
        self.lines.push(Line::default());
        self.lines.last_mut().expect("a line was just pushed")
    }

    /// Adds a list of structures, which is shown below the lines.
    pub fn list(&mut self, key: &'static str, entries: impl Iterator<Item = Details>) {
        self.lists.push((key, entries.collect()));
    }

    /// Returns the text, with each line indented by `indent` tabs.
    pub fn to_text(&self, indent: usize) -> String {
        let mut text = String::new();
        self.append_text(&mut text, indent);
        text
    }

    fn append_text(&self, text: &mut String, indent: usize) {
        let tabs = "\t".repeat(indent);
        for line in &self.lines {
            let shown = line.fields.iter().filter(|field| !field.label.is_empty() || !field.text.is_empty());
            let words = shown.map(|field| match (field.label, field.text.as_str()) {
                ("", text) => text.to_owned(),
                (label, "") => label.to_owned(),
                (label, text) => format!("{label} {text}"),
            });
            let words: Vec<String> = words.collect();
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{tabs}{}", words.join(" "));
        }
        for (_, entries) in &self.lists {
            for entry in entries {
                entry.append_text(text, indent);
            }
        }
    }

    /// Returns the JSON object.
    pub fn to_json(&self) -> Map<String, Value> {
        let mut object = Map::new();
        for field in self.lines.iter().flat_map(|line| &line.fields) {
            object.insert(field.key.into(), field.json.clone());
        }
        for (key, entries) in &self.lists {
            let entries = entries.iter().map(|entry| Value::Object(entry.to_json()));
            object.insert((*key).into(), entries.collect());
        }
        object
    }
}

/// Writes the text of `details`.
pub fn write_text(
    output: &mut crate::output::Output,
    details: &Details,
    indent: usize,
) -> Result<(), OutputError> {
    output.bytes(details.to_text(indent).as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_json_have_the_same_content() {
        let mut details = Details::default();
        details.line().number("generation", 7_u64).labelled("size", "of bytes", 9_u64);
        let mut entry = Details::default();
        entry.line().bytes("name", "name:", b"a\xff");
        details.list("entries", std::iter::once(entry));
        assert_eq!(details.to_text(1), "\tgeneration 7 of bytes 9\n\tname: a\\377\n");
        let json = Value::Object(details.to_json());
        assert_eq!(json["size"], 9);
        assert_eq!(json["entries"][0]["name"], "a\\377");
        assert_eq!(json["entries"][0]["name_hex"], "61ff");
    }
}
