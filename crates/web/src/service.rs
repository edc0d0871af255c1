//! `Service`: which request gets which answer.
//!
//! The order of the checks: the host, the secret, the origin of a change, then the place and the
//! rights of the user. A request that fails one learns nothing of the later ones.

use crate::archive;
use crate::body::Body;
use crate::dav::locks::LockTable;
use crate::dav::request::Dav;
use crate::dav::{change, locking, propfind, proppatch};
use crate::download;
use crate::export::Export;
use crate::form::Multipart;
use crate::guard::{Guard, Proof};
use crate::head::{Head, HeadFault, Method};
use crate::html::STYLE;
use crate::limits::Limits;
use crate::listing::{Listing, versions};
use crate::reply::{Content, Refusal, Reply};
use crate::text::href;
use crate::upload::{body_refusal, put, store};
use crate::views::Views;
use crate::wire::{Connection, Wire};
use papilio::{FileKind, Inode, Permissions};
use rustls::ServerConfig;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The most bytes of a body with XML.
const XML_MOST: usize = 256 << 10;
/// The time that an answer to wrong credentials takes, so that they cannot be tried quickly.
const PENALTY: Duration = Duration::from_millis(500);
/// The time for the rest of a connection that ends.
const FINISH: Duration = Duration::from_secs(2);
const METHODS: &str = "OPTIONS, GET, HEAD, PROPFIND";
const ALL_METHODS: &str =
    "OPTIONS, GET, HEAD, POST, PUT, DELETE, PROPFIND, PROPPATCH, MKCOL, COPY, MOVE, LOCK, UNLOCK";
/// A folder, for tabs of browsers.
const ICON: &str = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 16 16\">\
    <path fill=\"#3a78c2\" d=\"M1 3h5l2 2h7v9H1z\"/></svg>\n";

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) export: Export,
    pub(crate) guard: Guard,
    pub(crate) views: Views,
    pub(crate) locks: LockTable,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

impl Service {
    /// Serves a connection until it ends.
    ///
    /// # Errors
    /// Errors of the connection.
    pub(crate) fn serve(&self, connection: &Connection) -> io::Result<()> {
        let mut wire = Wire::new(connection, self.tls.as_ref(), Instant::now() + self.limits.head)?;
        let mut wait = self.limits.head;
        while wire.wait_for_request(Instant::now() + wait) {
            let head = match self.read_head(&mut wire)? {
                Ok(head) => head,
                Err(fault) => {
                    let reply = Refusal::from(fault).into_reply(false);
                    reply.send(None, false, &mut wire, self.limits.send)?;
                    break;
                }
            };
            let mut body = Body::new(&mut wire, &head, self.limits.body);
            let answered = self.answer(&head, &mut body);
            let is_browser = head.get("accept").is_some_and(|kinds| kinds.contains("text/html"));
            let (reply, is_trusted) = match answered {
                Ok(reply) => (reply, true),
                Err(refusal) => {
                    let is_trusted = !matches!(refusal.status, 401 | 408 | 421);
                    (refusal.into_reply(is_browser), is_trusted)
                }
            };
            let goes_on = head.keeps_alive && is_trusted && body.drain();
            if !reply.send(Some(&head), goes_on, &mut wire, self.limits.send)? {
                break;
            }
            wait = self.limits.idle;
        }
        wire.finish(FINISH);
        Ok(())
    }

    /// Reads the head of a request, of which the first byte has come.
    fn read_head(&self, wire: &mut Wire<'_>) -> io::Result<Result<Head, HeadFault>> {
        let deadline = Instant::now() + self.limits.head;
        loop {
            match Head::parse(wire.pending()) {
                Ok(Some((head, length))) => {
                    wire.consume(length);
                    return Ok(Ok(head));
                }
                Ok(None) => {}
                Err(fault) => return Ok(Err(fault)),
            }
            match wire.fill(deadline) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                    return Ok(Err(HeadFault { status: 408, reason: "the request came too slowly" }));
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn answer<'s>(&'s self, head: &'s Head, body: &mut Body<'_, '_>) -> Result<Reply<'s>, Refusal> {
        self.guard.check_host(head)?;
        let reads = matches!(head.method, Method::Get | Method::Head);
        match head.target.parameter("view") {
            Some("style") if reads => return Ok(asset("text/css; charset=utf-8", STYLE)),
            Some("icon") if reads => return Ok(asset("image/svg+xml", ICON)),
            _ => {}
        }
        match self.guard.proof(head)? {
            Proof::Given => {}
            Proof::TokenInUrl if reads => {
                // The address that stays in the browser has no secret.
                let place = href(&head.target.names, head.target.is_directory);
                return Ok(Reply::new(303)
                    .header("Location", place)
                    .header("Set-Cookie", self.guard.cookie()));
            }
            Proof::TokenInUrl => {}
            proof @ (Proof::Missing | Proof::Wrong) => {
                if proof == Proof::Wrong {
                    std::thread::sleep(PENALTY);
                }
                let text = "the address that the server printed, or its password, is needed";
                return Err(Refusal::new(401, text)
                    .header("WWW-Authenticate", "Basic realm=\"papilio\", charset=\"UTF-8\""));
            }
        }
        if !head.method.is_safe() {
            self.guard.check_origin(head)?;
        }
        if !reads && head.target.parameter("at").is_some() {
            return Err(Refusal::new(403, "the past cannot be changed"));
        }
        match head.method {
            Method::Get | Method::Head => self.get(head),
            Method::Post => self.post(head, body),
            Method::Options => {
                let reply = Reply::new(200).header("DAV", "1, 2").header("MS-Author-Via", "DAV");
                Ok(reply.header("Allow", self.methods()))
            }
            Method::Unknown => {
                Err(Refusal::new(405, "the method is not known").header("Allow", self.methods()))
            }
            _ => self.dav(head, body),
        }
    }

    fn methods(&self) -> &'static str {
        if self.export.is_writable { ALL_METHODS } else { METHODS }
    }

    fn dav<'s>(&'s self, head: &'s Head, body: &mut Body<'_, '_>) -> Result<Reply<'s>, Refusal> {
        if !head.method.is_safe() {
            self.export.must_be_writable()?;
        }
        let dav = Dav::new(&self.export, &self.locks, &self.guard, head)?;
        let mut xml = || body.read_whole(XML_MOST).map_err(|error| body_refusal(&error));
        match head.method {
            Method::Propfind => propfind::propfind(&dav, &xml()?),
            Method::Proppatch => proppatch::proppatch(&dav, &xml()?),
            Method::Lock => locking::lock(&dav, &xml()?),
            Method::Unlock => locking::unlock(&dav),
            Method::Mkcol => change::mkcol(&dav),
            Method::Delete => change::delete(&dav),
            Method::Copy => change::copy(&dav),
            Method::Move => change::rename(&dav),
            _ => put(&dav, body),
        }
    }

    fn get<'s>(&'s self, head: &'s Head) -> Result<Reply<'s>, Refusal> {
        let (target, export) = (&head.target, &self.export);
        match target.parameter("view") {
            None => {}
            Some("usage") => return self.views.page(export, "usage"),
            Some("heatmap") => return self.views.page(export, "heatmap"),
            Some("usage.svg") => return self.views.svg(export, "usage"),
            Some("heatmap.svg") => return self.views.svg(export, "heatmap"),
            Some("check") => return self.views.check_page(export),
            Some("versions") => return versions(export, &target.names),
            Some(_) => return Err(Refusal::new(404, "there is no such view")),
        }
        let at = target.parameter("at").map(Export::parse_tree).transpose()?;
        let inode: Inode = match at {
            Some(tree) => export.at(&target.names, tree)?,
            None => export.find(&target.names, true)?.found()?.clone(),
        };
        let download = target.parameter("download");
        match inode.file_type() {
            FileKind::Directory if download == Some("tar") => {
                archive::tar(export, inode, target.last().unwrap_or_default())
            }
            FileKind::Directory if !target.is_directory => {
                let query = at.map_or_else(String::new, |tree| format!("?at={}", tree.0));
                Ok(Reply::new(301).header("Location", href(&target.names, true) + &query))
            }
            FileKind::Directory => {
                let from = target.parameter("from").and_then(|from| from.parse().ok()).unwrap_or(0);
                let at = at.map(|tree| tree.0);
                Listing { export, names: &target.names, directory: inode, at, from }.page()
            }
            FileKind::Regular if target.is_directory => Err(Refusal::new(404, "that is a file, no folder")),
            FileKind::Regular => {
                export.must_have(&inode, Permissions::READ)?;
                download::file(head, &inode, target.last().unwrap_or_default(), download.is_some())
            }
            FileKind::Symlink => Err(Refusal::new(404, "symbolic links of the past are not followed")),
            _ => Err(Refusal::new(403, "devices, pipes and sockets are not served")),
        }
    }

    /// Answers the forms of the pages.
    fn post<'s>(&'s self, head: &'s Head, body: &mut Body<'_, '_>) -> Result<Reply<'s>, Refusal> {
        let (target, export) = (&head.target, &self.export);
        if target.parameter("view") == Some("check") {
            return self.views.start_check(export);
        }
        let action = target.parameter("do").ok_or_else(|| Refusal::new(405, "nothing to do here"))?;
        export.must_be_writable()?;
        let dav = Dav::new(export, &self.locks, &self.guard, head)?;
        let mut form =
            Multipart::new(head, body).ok_or_else(|| Refusal::new(415, "the request has no form"))?;
        while let Some(part) = form.next_part().map_err(|error| body_refusal(&error))? {
            match (action, part.name.as_str(), part.file_name) {
                // A form without a chosen file has one without a name.
                ("upload", "file", Some(name)) if name.is_empty() => {}
                ("upload", "file", Some(name)) => {
                    store(&dav, &below(&target.names, name)?, &mut form)?;
                }
                ("folder", "name", None) => {
                    let mut name = Vec::new();
                    let read = Read::take(&mut form, 1024).read_to_end(&mut name);
                    read.map_err(|error| body_refusal(&error))?;
                    change::make_folder(&dav, &below(&target.names, name)?)?;
                }
                _ => return Err(Refusal::new(400, "the form is not one of this server")),
            }
        }
        Ok(Reply::new(303).header("Location", href(&target.names, true)))
    }
}

fn asset(media_type: &str, text: &str) -> Reply<'static> {
    Reply::with_content(200, media_type, Content::Bytes(text.as_bytes().to_vec()))
        .header("Content-Security-Policy", "default-src 'none'")
        .header("Cache-Control", "max-age=3600")
}

/// Returns the names of an entry that a form names.
fn below(folder: &[Vec<u8>], name: Vec<u8>) -> Result<Vec<Vec<u8>>, Refusal> {
    let is_entry = !matches!(&name[..], b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0);
    match is_entry {
        true => Ok([folder, &[name]].concat()),
        false => Err(Refusal::new(400, "that is no name of a file")),
    }
}
