//! The properties of a place: those that the server computes, and those that clients set.
//!
//! A property that a client sets is an extended attribute `user.webdav.NAMESPACE#NAME`, with the
//! namespace percent-encoded. Its value is XML, so that text is escaped and markup is kept.

use crate::conditions::Validators;
use crate::dates;
use crate::dav::locks::{ActiveLock, LockTable, Names};
use crate::dav::xml::{DAV, QualifiedName, escaped_attribute, is_content, is_name};
use crate::export::Export;
use crate::text::{escaped, href, media_type, percent, percent_decoded};
use papilio::{FileKind, Inode};

const PREFIX: &[u8] = b"user.webdav.";
/// The longest name of an extended attribute.
const ATTRIBUTE_NAME_MOST: usize = 255;

/// The properties that the server computes, in the order in which `allprop` lists them.
const LIVE: [&str; 8] = [
    "creationdate",
    "getcontentlength",
    "getcontenttype",
    "getetag",
    "getlastmodified",
    "resourcetype",
    "supportedlock",
    "lockdiscovery",
];
/// As [`LIVE`], for clients that ask for them by name (RFC 4331).
const QUOTA: [&str; 2] = ["quota-available-bytes", "quota-used-bytes"];

/// A place with its inode.
pub(crate) struct Resource<'r> {
    pub(crate) export: &'r Export,
    pub(crate) locks: &'r LockTable,
    /// The names by which the client knows it.
    pub(crate) names: Names,
    pub(crate) inode: Inode,
}

/// Returns whether a property is one that the server computes.
pub(crate) fn is_live(name: &QualifiedName) -> bool {
    name.namespace == DAV && LIVE.iter().chain(&QUOTA).any(|live| *live == name.name)
}

/// Returns the extended attribute of a property; `None` if its name would be too long.
pub(crate) fn attribute_of(name: &QualifiedName) -> Option<Vec<u8>> {
    let space = percent(name.namespace.as_bytes());
    let attribute = [PREFIX, space.as_bytes(), b"#", name.name.as_bytes()].concat();
    (attribute.len() <= ATTRIBUTE_NAME_MOST).then_some(attribute)
}

/// Returns the property that an extended attribute holds.
fn property_of(attribute: &[u8]) -> Option<QualifiedName> {
    let text = std::str::from_utf8(attribute.strip_prefix(PREFIX)?).ok()?;
    let (space, name) = text.split_once('#')?;
    let namespace = String::from_utf8(percent_decoded(space.as_bytes())?).ok()?;
    is_name(name).then(|| QualifiedName { namespace, name: name.to_owned() })
}

impl Resource<'_> {
    pub(crate) fn is_directory(&self) -> bool {
        self.inode.file_type() == FileKind::Directory
    }

    pub(crate) fn href(&self) -> String {
        href(&self.names, self.is_directory())
    }

    /// Returns all properties that the client need not name.
    pub(crate) fn all(&self) -> papilio::Result<Vec<(QualifiedName, String)>> {
        let live = LIVE.iter().filter_map(|name| {
            let name = QualifiedName::new(DAV, name);
            let value = self.live(&name)?;
            Some((name, value))
        });
        let mut all: Vec<_> = live.collect();
        all.extend(self.dead()?);
        Ok(all)
    }

    /// Returns the value of a property as XML.
    pub(crate) fn value(&self, name: &QualifiedName) -> papilio::Result<Option<String>> {
        if is_live(name) {
            return Ok(self.live(name));
        }
        let Some(attribute) = attribute_of(name) else { return Ok(None) };
        let value = self.inode.xattr(&attribute)?;
        Ok(value.and_then(as_xml))
    }

    /// Returns the properties that clients set.
    fn dead(&self) -> papilio::Result<Vec<(QualifiedName, String)>> {
        let mut dead = Vec::new();
        for attribute in self.inode.xattrs()? {
            if let (Some(name), Some(value)) = (property_of(&attribute.name), as_xml(attribute.value)) {
                dead.push((name, value));
            }
        }
        dead.sort();
        Ok(dead)
    }

    fn live(&self, name: &QualifiedName) -> Option<String> {
        let metadata = self.inode.metadata();
        let is_directory = self.is_directory();
        Some(match name.name.as_str() {
            "creationdate" => dates::rfc3339(metadata.btime()),
            "getcontentlength" if !is_directory => metadata.size().to_string(),
            "getcontenttype" if !is_directory => {
                media_type(self.names.last().map(Vec::as_slice).unwrap_or_default()).to_owned()
            }
            "getetag" => escaped(&Validators::of(metadata).etag),
            "getlastmodified" => dates::http(metadata.mtime()),
            "resourcetype" if is_directory => "<D:collection/>".to_owned(),
            "resourcetype" => String::new(),
            "supportedlock" if !self.export.is_writable => String::new(),
            "supportedlock" => ["exclusive", "shared"]
                .iter()
                .map(|scope| {
                    format!(
                        "<D:lockentry><D:lockscope><D:{scope}/></D:lockscope>\
                         <D:locktype><D:write/></D:locktype></D:lockentry>"
                    )
                })
                .collect(),
            "lockdiscovery" => self.locks.covering(&self.names).iter().map(lock_xml).collect(),
            "quota-available-bytes" if is_directory => self.export.fs.statfs().ok()?.available.to_string(),
            "quota-used-bytes" if is_directory => {
                let sizes = self.export.fs.statfs().ok()?;
                sizes.total.saturating_sub(sizes.free).to_string()
            }
            _ => return None,
        })
    }
}

/// Returns a stored value, if it is the XML of a property: others may set such attributes, too.
fn as_xml(value: Vec<u8>) -> Option<String> {
    String::from_utf8(value).ok().filter(|text| is_content(text))
}

/// Returns a lock as the value of `lockdiscovery`.
pub(crate) fn lock_xml(lock: &ActiveLock) -> String {
    let scope = if lock.is_shared { "shared" } else { "exclusive" };
    let depth = if lock.is_deep { "infinity" } else { "0" };
    format!(
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/></D:lockscope>\
         <D:depth>{depth}</D:depth><D:owner>{}</D:owner><D:timeout>Second-{}</D:timeout>\
         <D:locktoken><D:href>{}</D:href></D:locktoken><D:lockroot><D:href>{}</D:href></D:lockroot>\
         </D:activelock>",
        lock.owner,
        lock.left().as_secs().max(1),
        escaped(&lock.token),
        href(&lock.names, lock.is_directory)
    )
}

/// Returns an element of a property with its value, or empty.
pub(crate) fn element(name: &QualifiedName, value: &str) -> String {
    let local = &name.name;
    if name.namespace == DAV {
        return match value {
            "" => format!("<D:{local}/>"),
            value => format!("<D:{local}>{value}</D:{local}>"),
        };
    }
    let space = escaped_attribute(&name.namespace);
    match value {
        "" => format!("<{local} xmlns=\"{space}\"/>"),
        // Elements in the value have namespaces of their own.
        value => format!("<{local} xmlns=\"{space}\">{value}</{local}>"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_and_attributes_name_one_another() {
        for (namespace, name) in [("", "a"), ("DAV:", "displayname"), ("http://example.org/#%", "ü-x.y")] {
            let name = QualifiedName::new(namespace, name);
            assert_eq!(property_of(&attribute_of(&name).unwrap()), Some(name));
        }
        assert_eq!(attribute_of(&QualifiedName::new(&"n".repeat(300), "a")), None);
        for other in [
            &b"user.webdav.x"[..],
            b"user.other",
            b"user.webdav.%zz#a",
            b"user.webdav.#a<b>",
            b"user.webdav.\xff#a",
        ] {
            assert_eq!(property_of(other), None);
        }
        assert!(is_live(&QualifiedName::new(DAV, "getetag")));
        assert!(!is_live(&QualifiedName::new("urn:x", "getetag")));
    }
}
