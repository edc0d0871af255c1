//! A folder as a tar archive, written while it is read.
//!
//! **Invariant**: an archive that lacks something ends the connection before the end of its body,
//! so that no client takes it for whole. Only sockets are left out, which tar cannot store.

use crate::export::Export;
use crate::reply::{Content, Refusal, Reply};
use crate::text::disposition;
use papilio::{
    ExportObserver, ExportProblem, FileKind, ImagePath, Inode, Permissions, Source, SourceOptions, TarSink,
    export,
};
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Ends the copy at the first thing that the archive would lack.
struct Strict {
    is_incomplete: Arc<AtomicBool>,
}

impl ExportObserver for Strict {
    fn problem(&self, problem: ExportProblem) {
        if !matches!(problem, ExportProblem::Socket { .. }) {
            tracing::warn!("an archive ends early: {problem}");
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
    }

    fn proceed(&self) -> io::Result<()> {
        match self.is_incomplete.load(Ordering::Relaxed) {
            true => Err(io::Error::other("something cannot be read")),
            false => Ok(()),
        }
    }
}

/// Returns the answer with `directory` and everything below it. The members' paths begin with
/// `name`.
pub(crate) fn tar<'r>(share: &'r Export, directory: Inode, name: &[u8]) -> Result<Reply<'r>, Refusal> {
    share.must_have(&directory, Permissions::READ | Permissions::EXECUTE)?;
    let name = if name.is_empty() { b"files".to_vec() } else { name.to_vec() };
    let shown = disposition("attachment", &[&name[..], b".tar"].concat());
    let write = move |out: &mut dyn Write| {
        let is_incomplete = Arc::new(AtomicBool::new(false));
        let observer = Strict { is_incomplete: Arc::clone(&is_incomplete) };
        let path = ImagePath::unnamed([b"/", &name[..]].concat());
        let mut options = SourceOptions {
            recursive: true,
            links: true,
            xattrs: true,
            segments: true,
            ..SourceOptions::default()
        };
        if !share.caller.is_root() {
            let (top, caller, skipped) =
                (directory.clone(), share.caller.clone(), Arc::clone(&is_incomplete));
            let prefix = name.len() + 1;
            options.filter = Some(Arc::new(move |path: &[u8]| {
                let may = may_read(&top, &caller, path.get(prefix..).unwrap_or_default()).unwrap_or(false);
                if !may {
                    skipped.store(true, Ordering::Relaxed);
                }
                may
            }));
        }
        let mut sink = TarSink::new(&observer, out, "archive".to_owned(), vec![path.clone()]);
        let copied = export(vec![Source { path, inode: directory }], options, &mut sink, &observer);
        copied
            .and_then(|()| observer.proceed().map_err(papilio::ExportError::Stopped))
            .map_err(io::Error::other)?;
        sink.finish().map_err(io::Error::other)
    };
    let reply = Reply::foreign(200, "application/x-tar", Content::Stream(Box::new(write)));
    Ok(reply.header("Content-Disposition", shown))
}

/// Returns whether a user may read what is at a path below a directory.
fn may_read(top: &Inode, caller: &papilio::Caller, path: &[u8]) -> papilio::Result<bool> {
    let mut inode = top.clone();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if !inode.grants(caller, Permissions::EXECUTE)? {
            return Ok(false);
        }
        match inode.lookup(name)? {
            Some(child) => inode = child,
            // Removed meanwhile.
            None => return Ok(true),
        }
    }
    match inode.file_type() {
        FileKind::Directory => inode.grants(caller, Permissions::READ | Permissions::EXECUTE),
        FileKind::Regular => inode.grants(caller, Permissions::READ),
        _ => Ok(true),
    }
}
