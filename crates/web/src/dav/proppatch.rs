//! PROPPATCH: sets and removes properties of a place, all of them or none.

use crate::dav::properties::{Resource, attribute_of, element, is_live};
use crate::dav::request::{Dav, Scope};
use crate::dav::xml::{QualifiedName, is_content, parse};
use crate::reply::{Content, Refusal, Reply};
use papilio::{Inode, Permissions, XattrSet};

/// The most changes of a request.
const CHANGES_MOST: usize = 200;
/// The most bytes of a value. An attribute lies in one leaf of a tree.
const VALUE_MOST: usize = 8 << 10;

/// A change: a property, and its new value or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    name: QualifiedName,
    value: Option<String>,
}

pub(crate) fn changes(body: &[u8]) -> Result<Vec<Change>, Refusal> {
    let malformed = |reason: &str| Refusal::new(400, reason);
    let root = parse(body).map_err(|bad| malformed(bad.0))?;
    if !root.name.is_dav("propertyupdate") {
        return Err(malformed("the document is no propertyupdate"));
    }
    let mut changes = Vec::new();
    for part in root.elements() {
        let sets = part.name.is_dav("set");
        if !sets && !part.name.is_dav("remove") {
            continue;
        }
        let properties = part.find("prop").ok_or_else(|| malformed("a change has no prop"))?;
        for property in properties.elements() {
            let value = sets.then(|| property.content());
            changes.push(Change { name: property.name.clone(), value });
        }
    }
    match changes.len() {
        0 => Err(malformed("the document changes nothing")),
        1..=CHANGES_MOST => Ok(changes),
        _ => Err(malformed("too many changes")),
    }
}

/// Answers PROPPATCH.
pub(crate) fn proppatch<'s>(dav: &Dav<'s>, body: &[u8]) -> Result<Reply<'s>, Refusal> {
    dav.export.must_be_writable()?;
    let changes = changes(body)?;
    let _names = dav.export.names.lock();
    let place = dav.export.find(&dav.head.target.names, true)?;
    let inode = place.found()?.clone();
    dav.check_conditions(&place)?;
    dav.check_locks(&place.names, Scope::Itself)?;
    dav.export.must_have(&inode, Permissions::WRITE)?;
    inode.check_changeable()?;
    let faults: Vec<Option<&str>> = changes.iter().map(fault).collect();
    let statuses: Vec<&str> = match faults.iter().any(Option::is_some) {
        // The others depend on those that cannot be.
        true => faults.iter().map(|fault| fault.unwrap_or("424 Failed Dependency")).collect(),
        false => {
            apply(&inode, &changes)?;
            vec!["200 OK"; changes.len()]
        }
    };
    let names = dav.head.target.names.clone();
    let resource = Resource { export: dav.export, locks: dav.locks, names, inode };
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n\
         <D:response><D:href>{}</D:href>",
        resource.href()
    );
    for (change, status) in changes.iter().zip(statuses) {
        let is_protected = status.starts_with("403");
        let error =
            if is_protected { "<D:error><D:cannot-modify-protected-property/></D:error>" } else { "" };
        xml.push_str(&format!(
            "<D:propstat><D:prop>{}</D:prop><D:status>HTTP/1.1 {status}</D:status>{error}</D:propstat>",
            element(&change.name, "")
        ));
    }
    xml.push_str("</D:response>\n</D:multistatus>\n");
    Ok(Reply::xml(207, Content::Bytes(xml.into_bytes())))
}

/// Returns why a change cannot be, as a status.
fn fault(change: &Change) -> Option<&'static str> {
    if is_live(&change.name) {
        return Some("403 Forbidden");
    }
    // The namespaces of each element make a value longer than the client sent it.
    let cannot_be = |value: &String| value.len() > VALUE_MOST || !is_content(value);
    let is_too_large = change.value.as_ref().is_some_and(cannot_be);
    (attribute_of(&change.name).is_none() || is_too_large).then_some("507 Insufficient Storage")
}

/// Makes all changes, or takes back those that were made.
fn apply(inode: &Inode, changes: &[Change]) -> Result<(), Refusal> {
    let mut made: Vec<(Vec<u8>, Option<Vec<u8>>)> = Vec::new();
    for change in changes {
        let Some(attribute) = attribute_of(&change.name) else { continue };
        let done = inode.xattr(&attribute).and_then(|before| {
            let after = change.value.as_ref().map(|value| value.as_bytes());
            set(inode, &attribute, before.is_some(), after)?;
            made.push((attribute, before));
            Ok(())
        });
        if let Err(error) = done {
            for (attribute, before) in made.iter().rev() {
                if let Err(error) = set(inode, attribute, true, before.as_deref()) {
                    tracing::warn!("a property was not restored: {error}");
                }
            }
            return Err(error.into());
        }
    }
    Ok(())
}

fn set(inode: &Inode, attribute: &[u8], is_there: bool, value: Option<&[u8]>) -> papilio::Result<()> {
    match value {
        Some(value) => inode.set_xattr(attribute, value, XattrSet::Any),
        None if is_there => match inode.xattr(attribute)? {
            Some(_) => inode.remove_xattr(attribute),
            None => Ok(()),
        },
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_keep_their_order() {
        let body = b"<D:propertyupdate xmlns:D='DAV:' xmlns='u'><D:set><D:prop><a>1</a></D:prop></D:set>\
            <D:remove><D:prop><b/></D:prop></D:remove><D:set><D:prop><D:getetag>x</D:getetag></D:prop></D:set>\
            </D:propertyupdate>";
        let all = changes(body).unwrap();
        let values: Vec<_> =
            all.iter().map(|change| (change.name.name.as_str(), change.value.as_deref())).collect();
        assert_eq!(values, [("a", Some("1")), ("b", None), ("getetag", Some("x"))]);
        assert_eq!(all.iter().map(fault).collect::<Vec<_>>(), [None, None, Some("403 Forbidden")]);
        for bad in [
            "",
            "<a/>",
            "<propertyupdate xmlns='DAV:'/>",
            "<propertyupdate xmlns='DAV:'><set/></propertyupdate>",
        ] {
            assert_eq!(changes(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }
}
