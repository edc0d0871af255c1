//! PUT: a file gets new content.
//!
//! The content is written to a file without a name, made durable, and then takes the name in one
//! step. So a client that goes away leaves the old file, and a reader sees the old content or the
//! new one. Attributes, mode and owner of a file that is replaced stay; other hard links of it keep
//! the old content.
//!
//! **Locks**: `Export::names`, only for the last step.

use crate::conditions::Validators;
use crate::dav::request::{Dav, Scope};
use crate::export::Place;
use crate::head::Head;
use crate::reply::{Refusal, Reply};
use crate::tree::temporary_name;
use papilio::{
    File, FileKind, Inode, NewKind, Permissions, RenameMode, SetAttributes, SetTime, Timespec, XattrSet,
};
use std::io::{self, Read};

/// Bytes that are written at once.
const STEP: usize = 256 << 10;
/// The mode of a new file.
const FILE_MODE: u32 = 0o644;
/// Attributes that must not pass to content of somebody else.
const NOT_KEPT: [&[u8]; 2] = [b"security.capability", b"security.ima"];

/// A file that was stored.
pub(crate) struct Stored {
    pub(crate) is_new: bool,
    pub(crate) etag: String,
}

/// Answers PUT.
pub(crate) fn put<'s>(dav: &Dav<'s>, body: &mut dyn Read) -> Result<Reply<'s>, Refusal> {
    if dav.head.get("content-range").is_some() {
        return Err(Refusal::new(400, "a part of a file cannot be put"));
    }
    if dav.head.target.is_directory {
        return Err(Refusal::new(409, "a folder is made by MKCOL"));
    }
    let stored = store(dav, &dav.head.target.names, body)?;
    let reply = Reply::new(if stored.is_new { 201 } else { 204 }).header("ETag", stored.etag);
    Ok(if time_of(dav.head).is_some() { reply.header("X-OC-MTime", "accepted") } else { reply })
}

/// Returns the time of the last change as some clients send it: seconds since 1970.
fn time_of(head: &Head) -> Option<Timespec> {
    let (seconds, _) = head.get("x-oc-mtime").map(|value| value.split_once('.').unwrap_or((value, "")))?;
    Some(Timespec { seconds: seconds.parse().ok()?, nanoseconds: 0 })
}

/// Checks everything that a request needs to replace the content of a place.
fn check(dav: &Dav<'_>, place: &Place) -> Result<(), Refusal> {
    let (parent, _) = place.entry()?;
    dav.check_conditions(place)?;
    match &place.inode {
        None => {
            dav.check_locks(&place.names, Scope::Entry)?;
            parent.check_create(&dav.export.caller, NewKind::Regular, FILE_MODE)?;
        }
        Some(existing) => {
            match existing.file_type() {
                FileKind::Regular => {}
                FileKind::Directory => return Err(Refusal::new(405, "that is a folder")),
                _ => return Err(Refusal::new(409, "that is a special file")),
            }
            dav.check_locks(&place.names, Scope::Itself)?;
            dav.export.must_have(existing, Permissions::WRITE)?;
            existing.check_changeable()?;
            parent.check_remove(&dav.export.caller, existing)?;
        }
    }
    Ok(())
}

/// Stores a body as the file at a path. A symbolic link there is followed.
pub(crate) fn store(dav: &Dav<'_>, names: &[Vec<u8>], body: &mut dyn Read) -> Result<Stored, Refusal> {
    let export = dav.export;
    export.must_be_writable()?;
    let place = export.find(names, true)?;
    check(dav, &place)?;
    let (parent, _) = place.entry()?;
    let mode = place.inode.as_ref().map_or(FILE_MODE, |old| old.metadata().permissions() & 0o777);
    let new = parent.check_create(&export.caller, NewKind::Regular, mode)?;
    let file = parent.create_unnamed(&new)?;
    fill(&file, body)?;
    if let Some(seconds) = time_of(dav.head) {
        let set = SetAttributes { mtime: Some(SetTime::At(seconds)), ..SetAttributes::default() };
        file.inode().set_attributes(&set)?;
    }
    if let Some(old) = &place.inode {
        keep_attributes(dav, old, file.inode())?;
    }
    // The content is durable before a name leads to it.
    file.sync_all()?;
    let is_new = {
        let _names = export.names.lock();
        // Others may have changed something since the body began.
        let place = export.find(names, true)?;
        check(dav, &place)?;
        let (parent, name) = place.entry()?;
        match &place.inode {
            None => parent.hard_link(file.inode(), name)?,
            Some(_) => {
                let temporary = temporary_name()?;
                parent.hard_link(file.inode(), &temporary)?;
                if let Err(error) = parent.rename(&temporary, parent, name, RenameMode::Replace) {
                    // The temporary name goes; the first error counts.
                    let _ = parent.remove_file(&temporary);
                    return Err(error.into());
                }
            }
        }
        place.inode.is_none()
    };
    file.sync_all()?;
    Ok(Stored { is_new, etag: Validators::of(&file.metadata()?).etag })
}

fn fill(file: &File, body: &mut dyn Read) -> Result<(), Refusal> {
    let mut buffer = vec![0; STEP];
    let mut at = 0;
    loop {
        // Whole pieces, however the client cuts them.
        let mut length = 0;
        while length < STEP {
            match body.read(&mut buffer[length..]) {
                Ok(0) => break,
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(body_refusal(&error)),
            }
        }
        file.write_all_at(&buffer[..length], at)?;
        at += length as u64;
        if length < STEP {
            return Ok(());
        }
    }
}

/// Returns the answer to a body that cannot be read.
pub(crate) fn body_refusal(error: &io::Error) -> Refusal {
    match error.kind() {
        io::ErrorKind::TimedOut => Refusal::new(408, "the body came too slowly"),
        io::ErrorKind::FileTooLarge => Refusal::new(413, "the body is too large"),
        _ => Refusal::new(400, format!("the body cannot be read: {error}")),
    }
}

/// Gives a file the attributes of the one that it replaces.
fn keep_attributes(dav: &Dav<'_>, old: &Inode, new: &Inode) -> Result<(), Refusal> {
    for attribute in old.xattrs()? {
        let is_users = attribute.name.starts_with(b"user.");
        if (is_users || dav.export.caller.is_root()) && !NOT_KEPT.contains(&&attribute.name[..]) {
            new.set_xattr(&attribute.name, &attribute.value, XattrSet::Any)?;
        }
    }
    if dav.export.caller.is_root() {
        let metadata = old.metadata();
        let mode = Some(metadata.permissions() & 0o777);
        let (uid, gid) = (Some(metadata.uid()), Some(metadata.gid()));
        new.set_attributes(&SetAttributes { mode, uid, gid, ..SetAttributes::default() })?;
    }
    Ok(())
}
