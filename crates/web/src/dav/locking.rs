//! LOCK and UNLOCK.

use crate::dav::locks::{ActiveLock, NoLock, WantedLock};
use crate::dav::properties::lock_xml;
use crate::dav::request::{Dav, Depth, Scope};
use crate::dav::xml::parse;
use crate::reply::{Content, Refusal, Reply};
use crate::text::href;
use papilio::{NewKind, Permissions};

/// The most bytes of the owner of a lock.
const OWNER_MOST: usize = 4096;
/// The mode of a file that a lock makes.
const FILE_MODE: u32 = 0o644;

/// Answers LOCK: a new lock, or with an empty body a longer one.
pub(crate) fn lock<'s>(dav: &Dav<'s>, body: &[u8]) -> Result<Reply<'s>, Refusal> {
    dav.export.must_be_writable()?;
    let is_deep = match dav.depth(Depth::Infinity)? {
        Depth::Zero => false,
        Depth::Infinity => true,
        Depth::One => return Err(Refusal::new(400, "the Depth of a lock is 0 or infinity")),
    };
    if body.is_empty() {
        return refresh(dav);
    }
    let root = parse(body).map_err(|bad| Refusal::new(400, bad.0))?;
    if !root.name.is_dav("lockinfo") {
        return Err(Refusal::new(400, "the document is no lockinfo"));
    }
    let scope = root.find("lockscope");
    let has = |name: &str| scope.is_some_and(|scope| scope.find(name).is_some());
    let is_write = root.find("locktype").is_some_and(|kind| kind.find("write").is_some());
    let is_shared = match (has("exclusive"), has("shared"), is_write) {
        (true, false, true) => false,
        (false, true, true) => true,
        _ => return Err(Refusal::new(422, "a lock is exclusive or shared, and for writing")),
    };
    let owner = root.find("owner").map(|owner| owner.content()).unwrap_or_default();
    if owner.len() > OWNER_MOST {
        return Err(Refusal::new(413, "the owner of the lock is too long"));
    }
    let _names = dav.export.names.lock();
    let place = dav.export.find(&dav.head.target.names, true)?;
    dav.check_conditions(&place)?;
    if let Some(inode) = &place.inode {
        // Only a user who could change it may keep others from that.
        dav.export.must_have(inode, Permissions::WRITE)?;
    }
    let is_new = place.inode.is_none();
    if is_new {
        // A lock of a name that is free makes an empty file (RFC 4918, 7.3).
        let (parent, _) = place.entry()?;
        if dav.head.target.is_directory {
            return Err(Refusal::new(409, "there is no such folder"));
        }
        dav.check_locks(&place.names, Scope::Entry)?;
        parent.check_create(&dav.export.caller, NewKind::Regular, FILE_MODE)?;
    }
    let wanted = WantedLock {
        is_directory: place.is_directory(),
        names: place.names.clone(),
        is_deep,
        is_shared,
        owner,
        timeout: dav.timeout(),
    };
    let lock = dav.locks.add(wanted).map_err(|reason| match reason {
        NoLock::Conflict(names) => {
            let text = "another lock is in the way";
            Refusal::condition(423, "no-conflicting-lock", text).of(href(&names, false))
        }
        NoLock::TooMany => Refusal::new(503, "there are too many locks"),
        NoLock::Random(error) => Refusal::new(500, format!("no random bytes: {error}")),
    })?;
    if is_new {
        let made = || -> Result<(), Refusal> {
            let (parent, name) = place.entry()?;
            let new = parent.check_create(&dav.export.caller, NewKind::Regular, FILE_MODE)?;
            parent.create(name, &new)?;
            Ok(())
        };
        if let Err(refusal) = made() {
            dav.locks.remove(&lock.token, &lock.names);
            return Err(refusal);
        }
    }
    let reply = answer(if is_new { 201 } else { 200 }, &lock);
    Ok(reply.header("Lock-Token", format!("<{}>", lock.token)))
}

fn refresh<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    let place = dav.export.find(&dav.head.target.names, true)?;
    let token =
        dav.only_token().ok_or_else(|| Refusal::new(400, "a lock is prolonged by one token in If"))?;
    dav.check_conditions(&place)?;
    let lock = dav.locks.refresh(token, &place.names, dav.timeout());
    let lock =
        lock.ok_or_else(|| Refusal::condition(412, "lock-token-matches-request-uri", "no such lock"))?;
    Ok(answer(200, &lock))
}

fn answer(status: u16, lock: &ActiveLock) -> Reply<'static> {
    let xml = format!(
        "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop xmlns:D=\"DAV:\">\
         <D:lockdiscovery>{}</D:lockdiscovery></D:prop>\n",
        lock_xml(lock)
    );
    Reply::xml(status, Content::Bytes(xml.into_bytes()))
}

/// Answers UNLOCK.
pub(crate) fn unlock<'s>(dav: &Dav<'s>) -> Result<Reply<'s>, Refusal> {
    dav.export.must_be_writable()?;
    let token = dav.head.one("lock-token")?;
    let token = token.and_then(|value| value.strip_prefix('<')?.strip_suffix('>'));
    let token = token.ok_or_else(|| Refusal::new(400, "there is no Lock-Token"))?;
    let place = dav.export.find(&dav.head.target.names, true)?;
    match dav.locks.remove(token, &place.names) {
        true => Ok(Reply::new(204)),
        false => Err(Refusal::condition(409, "lock-token-matches-request-uri", "no such lock")),
    }
}
