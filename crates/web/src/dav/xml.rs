//! The XML of requests: a small tree of elements with their namespaces.
//!
//! **Invariants**
//! - A document is UTF-8, has one root, and no document type: no entity is defined, so none can
//!   grow or read a file.
//! - A tree has at most [`DEPTH_MOST`] levels and [`NODES_MOST`] nodes.
//!
//! Source: RFC 4918, 8.2 and 17; Namespaces in XML 1.0.

use quick_xml::Reader;
use quick_xml::events::{BytesStart, Event};

/// The namespace of WebDAV.
pub(crate) const DAV: &str = "DAV:";
const XML: &str = "http://www.w3.org/XML/1998/namespace";
const XMLNS: &str = "http://www.w3.org/2000/xmlns/";
const DEPTH_MOST: usize = 40;
const NODES_MOST: usize = 10_000;
/// The most prefixes that are in use at one place.
const PREFIXES_MOST: usize = 200;

/// A name with its namespace, which is empty for none.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct QualifiedName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl QualifiedName {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    /// Returns whether this is a name of WebDAV.
    pub(crate) fn is_dav(&self, name: &str) -> bool {
        self.namespace == DAV && self.name == name
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Element(Element),
    Text(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Element {
    pub(crate) name: QualifiedName,
    attributes: Vec<(QualifiedName, String)>,
    pub(crate) children: Vec<Node>,
}

/// A document that is not well-formed, or too large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadXml(pub(crate) &'static str);

impl Element {
    /// Returns the elements in this one.
    pub(crate) fn elements(&self) -> impl Iterator<Item = &Element> {
        self.children.iter().filter_map(|node| match node {
            Node::Element(element) => Some(element),
            Node::Text(_) => None,
        })
    }

    /// Returns the first element of WebDAV with a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Element> {
        self.elements().find(|element| element.name.is_dav(name))
    }

    /// Returns the content as XML that means the same at any place.
    pub(crate) fn content(&self) -> String {
        let mut xml = String::new();
        write_nodes(&self.children, &mut xml);
        xml
    }
}

fn write_nodes(nodes: &[Node], xml: &mut String) {
    for node in nodes {
        match node {
            Node::Text(text) => xml.push_str(&escaped_text(text)),
            Node::Element(element) => {
                xml.push_str(&format!(
                    "<{} xmlns=\"{}\"",
                    element.name.name,
                    escaped_attribute(&element.name.namespace)
                ));
                for (number, (name, value)) in element.attributes.iter().enumerate() {
                    let value = escaped_attribute(value);
                    xml.push_str(&match name.namespace.as_str() {
                        "" => format!(" {}=\"{value}\"", name.name),
                        XML => format!(" xml:{}=\"{value}\"", name.name),
                        other => {
                            format!(
                                " xmlns:a{number}=\"{}\" a{number}:{}=\"{value}\"",
                                escaped_attribute(other),
                                name.name
                            )
                        }
                    });
                }
                xml.push('>');
                write_nodes(&element.children, xml);
                xml.push_str(&format!("</{}>", element.name.name));
            }
        }
    }
}

/// Escapes text, and keeps what XML allows in it.
fn escaped_text(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '\r' => escaped.push_str("&#13;"),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Escapes the value of an attribute, and keeps what XML allows in it.
pub(crate) fn escaped_attribute(text: &str) -> String {
    let escaped = escaped_text(text).replace('"', "&quot;");
    escaped.replace('\t', "&#9;").replace('\n', "&#10;")
}

/// Returns whether a text is the content of an element.
pub(crate) fn is_content(text: &str) -> bool {
    parse(format!("<v>{text}</v>").as_bytes()).is_ok()
}

/// Parses a document.
pub(crate) fn parse(bytes: &[u8]) -> Result<Element, BadXml> {
    let text = std::str::from_utf8(bytes).map_err(|_| BadXml("the document is not UTF-8"))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if !text.chars().all(is_allowed) {
        return Err(BadXml("the document has a control character"));
    }
    let mut reader = Reader::from_str(text);
    let config = reader.config_mut();
    config.expand_empty_elements = true;
    config.check_comments = true;
    let mut builder = Builder::default();
    loop {
        let event = reader.read_event().map_err(|_| BadXml("the document is not well-formed"))?;
        if matches!(event, Event::Eof) {
            return builder.finish();
        }
        builder.take(event)?;
    }
}

/// Whether XML 1.0 allows a character.
fn is_allowed(letter: char) -> bool {
    matches!(letter, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

#[derive(Default)]
struct Builder {
    /// The elements that are open, each with the number of prefixes before it.
    open: Vec<(Element, usize)>,
    prefixes: Vec<(String, String)>,
    root: Option<Element>,
    nodes: usize,
}

impl Builder {
    fn finish(self) -> Result<Element, BadXml> {
        match self.open.is_empty() {
            true => self.root.ok_or(BadXml("the document is empty")),
            false => Err(BadXml("an element is not closed")),
        }
    }

    fn count(&mut self) -> Result<(), BadXml> {
        self.nodes += 1;
        if self.nodes > NODES_MOST { Err(BadXml("the document is too large")) } else { Ok(()) }
    }

    fn take(&mut self, event: Event<'_>) -> Result<(), BadXml> {
        let malformed = BadXml("the document is not well-formed");
        match event {
            Event::Start(start) => self.begin(&start),
            Event::End(_) => self.end(),
            Event::Text(text) => self.text(std::str::from_utf8(&text).map_err(|_| malformed)?),
            Event::CData(text) => self.text(std::str::from_utf8(&text).map_err(|_| malformed)?),
            Event::GeneralRef(name) => {
                let name = std::str::from_utf8(&name).map_err(|_| malformed)?.to_owned();
                let text = unescaped(&format!("&{name};"))?;
                self.text(&text)
            }
            Event::Comment(_) | Event::PI(_) => Ok(()),
            Event::Decl(_) if self.root.is_none() && self.open.is_empty() => Ok(()),
            Event::DocType(_) => Err(BadXml("a document type is not accepted")),
            Event::Decl(_) | Event::Empty(_) | Event::Eof => Err(malformed),
        }
    }

    fn begin(&mut self, start: &BytesStart<'_>) -> Result<(), BadXml> {
        self.count()?;
        if self.open.len() >= DEPTH_MOST {
            return Err(BadXml("the document is nested too deep"));
        }
        if self.root.is_some() {
            return Err(BadXml("the document has two roots"));
        }
        let malformed = BadXml("an attribute is malformed");
        let before = self.prefixes.len();
        let mut plain = Vec::new();
        for attribute in start.attributes() {
            self.count()?;
            let attribute = attribute.map_err(|_| malformed)?;
            let key = std::str::from_utf8(attribute.key.as_ref()).map_err(|_| malformed)?;
            let raw = std::str::from_utf8(&attribute.value).map_err(|_| malformed)?;
            if raw.contains('<') {
                return Err(malformed);
            }
            let value = unescaped(raw)?;
            match key.split_once(':') {
                None if key == "xmlns" => self.declare("", value)?,
                Some(("xmlns", prefix)) => {
                    if value.is_empty() || !is_name(prefix) {
                        return Err(BadXml("a prefix has no namespace"));
                    }
                    self.declare(prefix, value)?;
                }
                _ => plain.push((key.to_owned(), value)),
            }
        }
        let mut attributes: Vec<(QualifiedName, String)> = Vec::with_capacity(plain.len());
        for (key, value) in plain {
            let name = match key.contains(':') {
                true => self.resolve(&key)?,
                false if is_name(&key) => QualifiedName::new("", &key),
                false => return Err(malformed),
            };
            if attributes.iter().any(|(known, _)| *known == name) {
                return Err(BadXml("an attribute is there twice"));
            }
            attributes.push((name, value));
        }
        let name = std::str::from_utf8(start.name().into_inner()).map_err(|_| malformed)?.to_owned();
        let name = self.resolve(&name)?;
        self.open.push((Element { name, attributes, children: Vec::new() }, before));
        Ok(())
    }

    fn declare(&mut self, prefix: &str, namespace: String) -> Result<(), BadXml> {
        let is_reserved = ["xml", "xmlns"].contains(&prefix) || [XML, XMLNS].contains(&namespace.as_str());
        if is_reserved && !(prefix == "xml" && namespace == XML) {
            return Err(BadXml("a reserved prefix is declared"));
        }
        if self.prefixes.len() >= PREFIXES_MOST {
            return Err(BadXml("too many prefixes"));
        }
        self.prefixes.push((prefix.to_owned(), namespace));
        Ok(())
    }

    fn resolve(&self, name: &str) -> Result<QualifiedName, BadXml> {
        let (prefix, local) = name.split_once(':').unwrap_or(("", name));
        let is_prefix = prefix.is_empty() && !name.contains(':') || is_name(prefix);
        if !is_name(local) || !is_prefix {
            return Err(BadXml("a name is malformed"));
        }
        if prefix == "xml" {
            return Ok(QualifiedName::new(XML, local));
        }
        match self.prefixes.iter().rev().find(|(known, _)| known == prefix) {
            Some((_, namespace)) => Ok(QualifiedName::new(namespace, local)),
            None if prefix.is_empty() => Ok(QualifiedName::new("", local)),
            None => Err(BadXml("a prefix is not declared")),
        }
    }

    fn end(&mut self) -> Result<(), BadXml> {
        let Some((element, prefixes)) = self.open.pop() else {
            return Err(BadXml("an element is closed that is not open"));
        };
        self.prefixes.truncate(prefixes);
        match self.open.last_mut() {
            Some((above, _)) => above.children.push(Node::Element(element)),
            None => self.root = Some(element),
        }
        Ok(())
    }

    fn text(&mut self, text: &str) -> Result<(), BadXml> {
        self.count()?;
        let Some((element, _)) = self.open.last_mut() else {
            let is_blank = text.bytes().all(|byte| byte.is_ascii_whitespace());
            return if is_blank { Ok(()) } else { Err(BadXml("text outside of the root")) };
        };
        match element.children.last_mut() {
            Some(Node::Text(before)) => before.push_str(text),
            _ => element.children.push(Node::Text(text.to_owned())),
        }
        Ok(())
    }
}

fn unescaped(text: &str) -> Result<String, BadXml> {
    let text = quick_xml::escape::unescape(text).map_err(|_| BadXml("an entity is not known"))?;
    match text.chars().all(is_allowed) {
        true => Ok(text.into_owned()),
        false => Err(BadXml("the document has a control character")),
    }
}

/// Whether a text is a name without a prefix.
pub(crate) fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    let starts = |letter: char| letter.is_ascii_alphabetic() || letter == '_' || !letter.is_ascii();
    let goes_on = |letter: char| starts(letter) || letter.is_ascii_digit() || matches!(letter, '-' | '.');
    letters.next().is_some_and(starts) && letters.all(goes_on)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_their_namespaces() {
        let root = parse(
            b"<?xml version='1.0'?><a:x xmlns:a='DAV:' xmlns='urn:d' k='&lt;v'><y/><z xmlns=''>t&amp;&#65;<![CDATA[<]]></z></a:x>\n",
        )
        .unwrap();
        assert!(root.name.is_dav("x"));
        let names: Vec<&QualifiedName> = root.elements().map(|element| &element.name).collect();
        assert_eq!(names, [&QualifiedName::new("urn:d", "y"), &QualifiedName::new("", "z")]);
        assert_eq!(root.elements().nth(1).unwrap().content(), "t&amp;A&lt;");
        let again = parse(format!("<r>{}</r>", root.content()).as_bytes()).unwrap();
        assert_eq!(again.children, root.children);
        let root = parse("<r><a b='1\n2\t\"&#13;\u{202e}' xmlns='u\n'>\r</a></r>".as_bytes()).unwrap();
        let again = parse(format!("<r>{}</r>", root.content()).as_bytes()).unwrap();
        assert_eq!(again.children, root.children);
    }

    #[test]
    fn documents_that_could_harm_are_refused() {
        let deep = "<a>".repeat(41) + &"</a>".repeat(41);
        let many = format!("<a>{}</a>", "<b/>".repeat(NODES_MOST));
        let prefixes: String = (0..300).map(|number| format!("xmlns:p{number}='u' ")).collect();
        for bad in [
            "",
            " ",
            "text",
            "<a>",
            "</a>",
            "<a></b>",
            "<a/><b/>",
            "<a/>text",
            "<a b></a>",
            "<a b='1' b='2'/>",
            "<p:a/>",
            "<a p:b='1'/>",
            "<a xmlns:p=''/>",
            "<a xmlns:='u'/>",
            "<a xmlns:xml='u'/>",
            "<a xmlns:p='http://www.w3.org/2000/xmlns/'/>",
            "<:a xmlns:x='u'/>",
            "<x: xmlns:x='u'/>",
            "<1/>",
            "<a>&unknown;</a>",
            "<a>&#0;</a>",
            "<a>&#xffff;</a>",
            "<a>\u{1}</a>",
            "<a b='<'/>",
            "<!DOCTYPE a [<!ENTITY e 'x'>]><a>&e;</a>",
            "<!DOCTYPE a SYSTEM 'file:///etc/passwd'><a/>",
            "<a><?xml version='1.0'?></a>",
            &deep,
            &many,
            &format!("<a {prefixes}/>"),
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{}", &bad[..bad.len().min(200)]);
        }
        assert!(parse(b"<a>\xff</a>").is_err());
        assert!(parse(b"\xff\xfe<\x00a\x00/\x00>\x00").is_err());
    }

    #[test]
    fn random_documents_are_no_panic() {
        let mut random = fastrand::Rng::with_seed(1);
        let parts: &[&str] = &[
            "<",
            ">",
            "/",
            "a",
            ":",
            "=",
            "'",
            "\"",
            "&",
            ";",
            "#",
            "x",
            "!",
            "[",
            "]",
            "-",
            "?",
            " ",
            "xmlns",
            "CDATA",
            "DOCTYPE",
            "D:propfind",
            "\u{0}",
            "\u{ffff}",
            "<a>",
            "</a>",
            "xmlns:D='DAV:'",
        ];
        for _ in 0..20_000 {
            let text: String = (0..random.usize(..24)).map(|_| parts[random.usize(..parts.len())]).collect();
            let _ = parse(text.as_bytes());
        }
    }
}
