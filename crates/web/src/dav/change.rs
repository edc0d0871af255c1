//! MKCOL, DELETE, COPY and MOVE.
//!
//! **Locks**: `Export::names`, from the checks of a change to the change. Trees are copied and
//! removed outside of it, name by name.

use crate::dav::request::{Dav, Depth, Scope};
use crate::export::Place;
use crate::reply::{Content, Refusal, Reply};
use crate::text::{escaped, href};
use crate::tree::{NotRemoved, temporary_name};
use papilio::{FileKind, Inode, NewKind, RenameMode};

/// The mode of a new folder.
const FOLDER_MODE: u32 = 0o755;

/// Answers MKCOL.
pub(crate) fn mkcol<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    dav.export.must_be_writable()?;
    if dav.head.has_body() {
        return Err(Refusal::new(415, "a new folder has no body"));
    }
    make_folder(dav, &dav.head.target.names)?;
    Ok(Reply::new(201))
}

/// Makes a folder.
pub(crate) fn make_folder(dav: &Dav<'_>, names: &[Vec<u8>]) -> Result<(), Refusal> {
    dav.export.must_be_writable()?;
    let _names = dav.export.names.lock();
    let place = dav.export.find(names, false)?;
    if place.inode.is_some() {
        return Err(Refusal::new(405, "there is something of that name already"));
    }
    let (parent, name) = place.entry()?;
    dav.check_conditions(&place)?;
    dav.check_locks(&place.names, Scope::Entry)?;
    let new = parent.check_create(&dav.export.caller, NewKind::Directory, FOLDER_MODE)?;
    parent.create(name, &new)?;
    Ok(())
}

/// Answers DELETE.
pub(crate) fn delete<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    dav.export.must_be_writable()?;
    let place = dav.export.find(&dav.head.target.names, false)?;
    place.found()?;
    if place.is_directory() && dav.depth(Depth::Infinity)? != Depth::Infinity {
        return Err(Refusal::new(400, "a folder is deleted with its content"));
    }
    let (parent, name) = place.entry()?;
    dav.check_conditions(&place)?;
    dav.check_locks(&place.names, Scope::Tree)?;
    match dav.export.remove_tree(parent, name) {
        Ok(()) => {
            dav.locks.forget(&place.names);
            Ok(Reply::new(204))
        }
        Err(NotRemoved { below, refusal }) if below.is_empty() => Err(refusal),
        Err(not_removed) => Ok(partly(&place, &not_removed)),
    }
}

/// Returns the answer that names the member which stays.
fn partly(place: &Place, not_removed: &NotRemoved) -> Reply<'static> {
    let names = [&place.names[..], &not_removed.below].concat();
    let (status, text) = (not_removed.refusal.status, escaped(&not_removed.refusal.text));
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n<D:response>\
         <D:href>{}</D:href><D:status>HTTP/1.1 {status} {}</D:status>\
         <D:responsedescription>{text}</D:responsedescription></D:response>\n</D:multistatus>\n",
        href(&names, false),
        crate::reply::reason(status)
    );
    Reply::xml(207, Content::Bytes(xml.into_bytes()))
}

/// Source and destination of a copy or a move, whose conditions hold.
struct Passage {
    source: Place,
    target: Place,
}

impl Passage {
    fn check(dav: &Dav<'_>, moves: bool) -> Result<Self, Refusal> {
        dav.export.must_be_writable()?;
        let destination = dav.destination()?;
        let source = dav.export.find(&dav.head.target.names, !moves)?;
        let from = source.found()?;
        let target = dav.export.find(&destination.names, false)?;
        target.entry()?;
        if target.names == source.names {
            return Err(Refusal::new(403, "source and destination are the same"));
        }
        let is_folder = from.file_type() == FileKind::Directory;
        if is_folder && target.names.starts_with(&source.names) {
            return Err(Refusal::new(409, "the destination is inside of the source"));
        }
        if source.names.starts_with(&target.names) {
            return Err(Refusal::new(409, "the source is inside of the destination"));
        }
        dav.check_conditions(&source)?;
        if moves {
            source.entry()?;
            dav.check_locks(&source.names, Scope::Tree)?;
        }
        if let Some(existing) = &target.inode {
            if !dav.overwrites()? {
                return Err(Refusal::new(412, "there is something at the destination"));
            }
            if existing.is_subvolume_root() {
                return Err(Refusal::new(403, "a subvolume is not replaced"));
            }
        }
        dav.check_locks(&target.names, if target.inode.is_some() { Scope::Tree } else { Scope::Entry })?;
        Ok(Self { source, target })
    }

    fn answer<'r>(&self) -> Reply<'r> {
        Reply::new(if self.target.inode.is_some() { 204 } else { 201 })
    }
}

/// Answers COPY.
pub(crate) fn copy<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    let is_deep = match dav.depth(Depth::Infinity)? {
        Depth::Zero => false,
        Depth::Infinity => true,
        Depth::One => return Err(Refusal::new(400, "the Depth of a copy is 0 or infinity")),
    };
    let passage = Passage::check(dav, false)?;
    copy_into_place(dav, &passage, is_deep)?;
    Ok(passage.answer())
}

/// Copies under a temporary name, which then becomes the destination.
fn copy_into_place(dav: &Dav<'_>, passage: &Passage, is_deep: bool) -> Result<(), Refusal> {
    let (export, source) = (dav.export, passage.source.found()?);
    let (parent, name) = passage.target.entry()?;
    let temporary = temporary_name()?;
    let placed = export.copy_tree(source, parent, &temporary, is_deep).and_then(|()| {
        let _names = export.names.lock();
        let parent = export.fs.inode_at(parent.tree(), parent.number())?;
        dav.check_locks(&passage.target.names, Scope::Entry)?;
        put_into_place(dav, (&parent, &temporary), (&parent, name))
    });
    let leftover = match placed {
        Ok(has_leftover) => has_leftover,
        Err(refusal) => {
            // The incomplete copy goes; the refusal counts.
            let _ = export.remove_tree(parent, &temporary);
            return Err(refusal);
        }
    };
    dav.locks.forget(&passage.target.names);
    if leftover {
        export.remove_tree(parent, &temporary).map_err(|not_removed| not_removed.refusal)?;
    }
    Ok(())
}

/// Gives an entry another name, in one step. Returns whether the old name now has the content that
/// was replaced. The caller holds the lock on names.
fn put_into_place(
    dav: &Dav<'_>,
    (from, old): (&Inode, &[u8]),
    (to, new): (&Inode, &[u8]),
) -> Result<bool, Refusal> {
    let export = dav.export;
    let moved =
        export.child(from, old)?.ok_or_else(|| Refusal::new(404, "there is no such file or directory"))?;
    let existing = export.child(to, new)?;
    from.check_rename(&export.caller, &moved, to, existing.as_ref())?;
    let is_folder = |inode: &Inode| inode.file_type() == FileKind::Directory;
    let mode = match &existing {
        None => RenameMode::NoReplace,
        Some(existing) if is_folder(existing) || is_folder(&moved) => RenameMode::Exchange,
        Some(_) => RenameMode::Replace,
    };
    from.rename(old, to, new, mode)?;
    Ok(mode == RenameMode::Exchange)
}

/// Answers MOVE.
pub(crate) fn rename<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    if dav.depth(Depth::Infinity)? != Depth::Infinity {
        return Err(Refusal::new(400, "the Depth of a move is infinity"));
    }
    let passage = Passage::check(dav, true)?;
    let export = dav.export;
    let (from, old) = passage.source.entry()?;
    let (to, new) = passage.target.entry()?;
    let moved = {
        let _names = export.names.lock();
        let from = export.fs.inode_at(from.tree(), from.number())?;
        let to = export.fs.inode_at(to.tree(), to.number())?;
        rename_here(dav, (&from, old), (&to, new))?
    };
    match moved {
        Some(leftover) => {
            if leftover {
                export.remove_tree(from, old).map_err(|not_removed| not_removed.refusal)?;
            }
            dav.locks.forget(&passage.target.names);
        }
        None => {
            // Between subvolumes: a copy, and the source goes.
            copy_into_place(dav, &passage, true)?;
            export.remove_tree(from, old).map_err(|not_removed| not_removed.refusal)?;
        }
    }
    dav.locks.forget(&passage.source.names);
    Ok(passage.answer())
}

/// Renames within a subvolume. `None` if the places are in different ones.
fn rename_here(dav: &Dav<'_>, from: (&Inode, &[u8]), to: (&Inode, &[u8])) -> Result<Option<bool>, Refusal> {
    if from.0.tree() != to.0.tree() {
        return Ok(None);
    }
    let is_across = |inode: Option<Inode>| inode.is_some_and(|inode| inode.is_subvolume_root());
    if is_across(dav.export.child(from.0, from.1)?) {
        return Err(Refusal::new(403, "a subvolume is moved by papilio mv"));
    }
    put_into_place(dav, from, to).map(Some)
}
