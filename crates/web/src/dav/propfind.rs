//! PROPFIND: the properties of a place, and of the entries of a folder.
//!
//! **Invariants**
//! - An answer is written while the folder is read, so that its memory is bounded.
//! - Links to folders are no entries: clients that descend would go in circles. Neither are special
//!   files and links that lead nowhere.

use crate::dav::locks::LockTable;
use crate::dav::properties::{Resource, element};
use crate::dav::request::{Dav, Depth};
use crate::dav::xml::{QualifiedName, parse};
use crate::export::Export;
use crate::reply::{Content, Refusal, Reply};
use papilio::{FileKind, Permissions};
use std::io::{self, Write};

/// The most properties that a request names.
const PROPERTIES_MOST: usize = 200;

/// The properties that a client wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// All that need not be named, and these.
    All(Vec<QualifiedName>),
    /// The names of all.
    Names,
    These(Vec<QualifiedName>),
}

impl Wanted {
    /// Parses the body of a request; an empty one means all.
    pub(crate) fn parse(body: &[u8]) -> Result<Self, Refusal> {
        let malformed = |reason: &str| Refusal::new(400, reason);
        if body.is_empty() {
            return Ok(Self::All(Vec::new()));
        }
        let root = parse(body).map_err(|bad| malformed(bad.0))?;
        if !root.name.is_dav("propfind") {
            return Err(malformed("the document is no propfind"));
        }
        let names = |name: &str| {
            let found = root.find(name);
            let names: Vec<_> =
                found.into_iter().flat_map(|list| list.elements()).map(|one| one.name.clone()).collect();
            match names.len() > PROPERTIES_MOST {
                true => Err(malformed("too many properties")),
                false => Ok(names),
            }
        };
        let kinds = ["prop", "propname", "allprop"];
        let given: Vec<&str> = kinds.into_iter().filter(|kind| root.find(kind).is_some()).collect();
        match given[..] {
            ["prop"] => Ok(Self::These(names("prop")?)),
            ["propname"] => Ok(Self::Names),
            ["allprop"] => Ok(Self::All(names("include")?)),
            _ => Err(malformed("a propfind has one of prop, propname and allprop")),
        }
    }
}

/// Answers PROPFIND.
pub(crate) fn propfind<'s>(dav: &Dav<'s>, body: &[u8]) -> Result<Reply<'s>, Refusal> {
    let depth = dav.depth(Depth::Infinity)?;
    let wanted = Wanted::parse(body)?;
    let place = dav.export.find(&dav.head.target.names, true)?;
    let inode = place.found()?.clone();
    if dav.head.target.is_directory && inode.file_type() != FileKind::Directory {
        return Err(Refusal::new(404, "that is a file, no folder"));
    }
    if depth == Depth::Infinity && inode.file_type() == FileKind::Directory {
        let text = "Depth is 0 or 1 here";
        return Err(Refusal::condition(403, "propfind-finite-depth", text));
    }
    let lists = depth == Depth::One && inode.file_type() == FileKind::Directory;
    if lists {
        dav.export.must_have(&inode, Permissions::READ)?;
    }
    let (export, locks) = (dav.export, dav.locks);
    let names = dav.head.target.names.clone();
    let write = move |out: &mut dyn Write| {
        out.write_all(b"<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n")?;
        let folder = Resource { export, locks, names, inode };
        write_response(&folder, &wanted, out)?;
        if lists {
            write_entries(export, locks, &folder, &wanted, out)?;
        }
        out.write_all(b"</D:multistatus>\n")
    };
    Ok(Reply::xml(207, Content::Stream(Box::new(write))))
}

fn write_entries(
    export: &Export,
    locks: &LockTable,
    folder: &Resource<'_>,
    wanted: &Wanted,
    out: &mut dyn Write,
) -> io::Result<()> {
    if !folder.inode.grants(&export.caller, Permissions::EXECUTE).map_err(io::Error::other)? {
        return Ok(());
    }
    for entry in folder.inode.read_dir().map_err(io::Error::other)?.with_inodes() {
        let entry = entry.map_err(io::Error::other)?;
        // One that was removed meanwhile is left out.
        let Ok(mut inode) = entry.inode() else { continue };
        let names = [&folder.names[..], &[entry.file_name().to_vec()]].concat();
        match inode.file_type() {
            FileKind::Regular | FileKind::Directory => {}
            FileKind::Symlink => match export.find(&names, true).ok().and_then(|place| place.inode) {
                Some(target) if target.file_type() == FileKind::Regular => inode = target,
                _ => continue,
            },
            _ => continue,
        }
        write_response(&Resource { export, locks, names, inode }, wanted, out)?;
    }
    Ok(())
}

fn write_response(resource: &Resource<'_>, wanted: &Wanted, out: &mut dyn Write) -> io::Result<()> {
    let (mut found, mut missing) = (String::new(), String::new());
    match wanted {
        Wanted::These(names) => add(resource, names, &mut found, &mut missing)?,
        Wanted::Names => {
            for (name, _) in resource.all().map_err(io::Error::other)? {
                found.push_str(&element(&name, ""));
            }
        }
        Wanted::All(names) => {
            let all = resource.all().map_err(io::Error::other)?;
            for (name, value) in &all {
                found.push_str(&element(name, value));
            }
            let further: Vec<_> =
                names.iter().filter(|name| all.iter().all(|(known, _)| known != *name)).cloned().collect();
            add(resource, &further, &mut found, &mut missing)?;
        }
    }
    write!(out, "<D:response><D:href>{}</D:href>", resource.href())?;
    if !found.is_empty() || missing.is_empty() {
        write_status(&found, "200 OK", out)?;
    }
    if !missing.is_empty() {
        write_status(&missing, "404 Not Found", out)?;
    }
    out.write_all(b"</D:response>\n")
}

fn add(
    resource: &Resource<'_>,
    names: &[QualifiedName],
    found: &mut String,
    missing: &mut String,
) -> io::Result<()> {
    for name in names {
        match resource.value(name).map_err(io::Error::other)? {
            Some(value) => found.push_str(&element(name, &value)),
            None => missing.push_str(&element(name, "")),
        }
    }
    Ok(())
}

fn write_status(properties: &str, status: &str, out: &mut dyn Write) -> io::Result<()> {
    write!(
        out,
        "<D:propstat><D:prop>{properties}</D:prop><D:status>HTTP/1.1 {status}</D:status></D:propstat>"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dav::xml::DAV;

    #[test]
    fn bodies_say_what_is_wanted() {
        assert_eq!(Wanted::parse(b"").unwrap(), Wanted::All(Vec::new()));
        let body = b"<propfind xmlns='DAV:'><prop><getetag/><x xmlns='u'/></prop></propfind>";
        let names = vec![QualifiedName::new(DAV, "getetag"), QualifiedName::new("u", "x")];
        assert_eq!(Wanted::parse(body).unwrap(), Wanted::These(names));
        let body = b"<propfind xmlns='DAV:'><allprop/><include><x/></include></propfind>";
        assert_eq!(Wanted::parse(body).unwrap(), Wanted::All(vec![QualifiedName::new(DAV, "x")]));
        for bad in [
            "<propfind xmlns='DAV:'/>",
            "<propfind xmlns='DAV:'><prop/><allprop/></propfind>",
            "<propfind><prop/></propfind>",
            "<propfind xmlns='DAV:'><prop></propfind>",
            "x",
        ] {
            assert_eq!(Wanted::parse(bad.as_bytes()).unwrap_err().status, 400, "{bad}");
        }
    }
}
