//! One call, from its bytes to those of its reply.

use crate::arguments::Garbage;
use crate::duplicates::{Duplicates, Seen};
use crate::export::{Export, Session};
use crate::mount::map_port;
use crate::rpc::{Call, LOCK_MANAGER, Refusal, refusal, results, tell_of_locks};
use nfs3_types::nfs3::{self, NFS_PROGRAM};
use nfs3_types::rpc::accept_stat_data;
use nfs3_types::xdr_codec::Void;
use nfs3_types::{mount, portmap};
use std::net::SocketAddr;

/// Where a call comes from, and the port that it arrived at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) client: SocketAddr,
    pub(crate) port: u16,
}

/// Returns the reply to a message; `None` if there is none, because an earlier copy of the message
/// is being carried out.
///
/// # Errors
/// [`Garbage`] for a message that is no call.
pub(crate) fn answer(
    export: &Export,
    duplicates: &Duplicates,
    route: Route,
    message: &[u8],
) -> Result<Option<Vec<u8>>, Garbage> {
    let call = match Call::parse(message)? {
        Ok(call) => call,
        Err((xid, refused)) => return Ok(Some(refusal(xid, refused))),
    };
    let carry_out = || {
        let reply = reply(export, route.port, &call);
        reply.unwrap_or_else(|refused| refusal(call.xid, refused))
    };
    if call.program != nfs3::PROGRAM || !is_repeated_wrongly(call.procedure) {
        return Ok(Some(carry_out()));
    }
    Ok(match duplicates.begin(route.client, call.xid, message) {
        Seen::New(running) => {
            let reply = carry_out();
            running.finish(&reply);
            Some(reply)
        }
        Seen::Running => None,
        Seen::Done(reply) => Some(reply),
    })
}

/// Whether a call that is carried out twice would fail the second time, or undo a later call.
fn is_repeated_wrongly(procedure: u32) -> bool {
    use NFS_PROGRAM as P;
    matches!(
        P::try_from(procedure),
        Ok(P::NFSPROC3_SETATTR
            | P::NFSPROC3_WRITE
            | P::NFSPROC3_CREATE
            | P::NFSPROC3_MKDIR
            | P::NFSPROC3_SYMLINK
            | P::NFSPROC3_MKNOD
            | P::NFSPROC3_REMOVE
            | P::NFSPROC3_RMDIR
            | P::NFSPROC3_RENAME
            | P::NFSPROC3_LINK)
    )
}

fn reply(export: &Export, port: u16, call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
    let must_be = |version: u32| match call.version {
        given if given == version => Ok(()),
        _ => Err(Refusal::Accepted(accept_stat_data::PROG_MISMATCH { low: version, high: version })),
    };
    let session = || Session { export, caller: export.squash.caller(&call.credentials) };
    match call.program {
        nfs3::PROGRAM => must_be(nfs3::VERSION).and_then(|()| session().nfs(call)),
        mount::PROGRAM => must_be(mount::VERSION).and_then(|()| session().mount(call)),
        portmap::PROGRAM => must_be(portmap::VERSION).and_then(|()| map_port(call, port)),
        LOCK_MANAGER => {
            tell_of_locks();
            Err(Refusal::Accepted(accept_stat_data::PROG_UNAVAIL))
        }
        _ => Err(Refusal::Accepted(accept_stat_data::PROG_UNAVAIL)),
    }
}

impl Session<'_> {
    fn nfs(&self, call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
        use NFS_PROGRAM as P;
        let procedure = P::try_from(call.procedure);
        let procedure = procedure.map_err(|_| Refusal::Accepted(accept_stat_data::PROC_UNAVAIL))?;
        let (xid, arguments) = (call.xid, call.arguments);
        Ok(match procedure {
            P::NFSPROC3_NULL => results(xid, &Void),
            P::NFSPROC3_GETATTR => results(xid, &self.getattr(arguments)?),
            P::NFSPROC3_SETATTR => results(xid, &self.setattr(arguments)?),
            P::NFSPROC3_LOOKUP => results(xid, &self.lookup(arguments)?),
            P::NFSPROC3_ACCESS => results(xid, &self.access(arguments)?),
            P::NFSPROC3_READLINK => results(xid, &self.readlink(arguments)?),
            P::NFSPROC3_READ => results(xid, &self.read(arguments)?),
            P::NFSPROC3_WRITE => results(xid, &self.write(arguments)?),
            P::NFSPROC3_CREATE => results(xid, &self.create(arguments)?),
            P::NFSPROC3_MKDIR => results(xid, &self.mkdir(arguments)?),
            P::NFSPROC3_SYMLINK => results(xid, &self.symlink(arguments)?),
            P::NFSPROC3_MKNOD => results(xid, &self.mknod(arguments)?),
            P::NFSPROC3_REMOVE => results(xid, &self.remove(arguments)?),
            P::NFSPROC3_RMDIR => results(xid, &self.rmdir(arguments)?),
            P::NFSPROC3_RENAME => results(xid, &self.rename(arguments)?),
            P::NFSPROC3_LINK => results(xid, &self.link(arguments)?),
            P::NFSPROC3_READDIR => results(xid, &self.readdir(arguments)?),
            P::NFSPROC3_READDIRPLUS => results(xid, &self.readdirplus(arguments)?),
            P::NFSPROC3_FSSTAT => results(xid, &self.fsstat(arguments)?),
            P::NFSPROC3_FSINFO => results(xid, &self.fsinfo(arguments)?),
            P::NFSPROC3_PATHCONF => results(xid, &self.pathconf(arguments)?),
            P::NFSPROC3_COMMIT => results(xid, &self.commit(arguments)?),
        })
    }
}
