//! Remote procedure calls: the header of a call, and replies.
//!
//! Source: RFC 5531.

use crate::arguments::{Arguments, Garbage};
use nfs3_types::rpc::{
    RPC_VERSION_2, accept_stat_data, accepted_reply, auth_stat, msg_body, opaque_auth, rejected_reply,
    reply_body, rpc_msg,
};
use nfs3_types::xdr_codec::Pack;
use std::sync::Once;

const CALL: u32 = 0;
const AUTH_NONE: u32 = 0;
const AUTH_UNIX: u32 = 1;
/// The most bytes of credentials and verifiers.
const AUTH_MOST: usize = 400;
/// The most bytes of a client's name in its credentials, and the most supplementary groups.
const NAME_MOST: usize = 255;
const GROUPS_MOST: u32 = 16;

/// The network lock manager (NLM), which the server has not.
pub(crate) const LOCK_MANAGER: u32 = 100_021;

/// Says once why a client's locks fail.
pub(crate) fn tell_of_locks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        tracing::warn!("an NFS client asks for locks (NLM), which this server has not: mount with nolock");
    });
}

/// The user that a client names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Credentials {
    /// The client names none.
    None,
    Unix {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
}

/// A call.
#[derive(Debug)]
pub(crate) struct Call<'a> {
    pub(crate) xid: u32,
    pub(crate) program: u32,
    pub(crate) version: u32,
    pub(crate) procedure: u32,
    pub(crate) credentials: Credentials,
    pub(crate) arguments: Arguments<'a>,
}

/// A reply without results.
#[derive(Debug)]
pub(crate) enum Refusal {
    Accepted(accept_stat_data),
    Denied(rejected_reply),
}

impl From<Garbage> for Refusal {
    fn from(_: Garbage) -> Self {
        Self::Accepted(accept_stat_data::GARBAGE_ARGS)
    }
}

impl<'a> Call<'a> {
    /// Decodes a message; the transaction's number and the refusal if the server does not take it.
    ///
    /// # Errors
    /// [`Garbage`] for a message that is no call, and cannot be answered.
    pub(crate) fn parse(message: &'a [u8]) -> Result<Result<Self, (u32, Refusal)>, Garbage> {
        let mut header = Arguments::new(message);
        let xid = header.u32()?;
        if header.u32()? != CALL {
            return Err(Garbage);
        }
        if header.u32()? != RPC_VERSION_2 {
            let refusal = rejected_reply::rpc_mismatch(RPC_VERSION_2, RPC_VERSION_2);
            return Ok(Err((xid, Refusal::Denied(refusal))));
        }
        let (program, version, procedure) = (header.u32()?, header.u32()?, header.u32()?);
        let (flavor, body) = (header.u32()?, header.opaque(AUTH_MOST)?);
        let (_, _) = (header.u32()?, header.opaque(AUTH_MOST)?);
        let denied = |reason| Ok(Err((xid, Refusal::Denied(rejected_reply::auth_error(reason)))));
        let credentials = match flavor {
            AUTH_NONE => Credentials::None,
            AUTH_UNIX => match parse_unix(Arguments::new(body)) {
                Ok(credentials) => credentials,
                Err(Garbage) => return denied(auth_stat::AUTH_BADCRED),
            },
            _ => return denied(auth_stat::AUTH_REJECTEDCRED),
        };
        Ok(Ok(Self { xid, program, version, procedure, credentials, arguments: header }))
    }
}

fn parse_unix(mut body: Arguments<'_>) -> Result<Credentials, Garbage> {
    let _stamp = body.u32()?;
    let _client = body.opaque(NAME_MOST)?;
    let (uid, gid, count) = (body.u32()?, body.u32()?, body.u32()?);
    if count > GROUPS_MOST {
        return Err(Garbage);
    }
    let groups = (0..count).map(|_| body.u32()).collect::<Result<_, _>>()?;
    if body.rest().is_empty() { Ok(Credentials::Unix { uid, gid, groups }) } else { Err(Garbage) }
}

/// Encodes the reply to a call that was carried out.
pub(crate) fn results(xid: u32, results: &impl Pack) -> Vec<u8> {
    let mut reply = refusal(xid, Refusal::Accepted(accept_stat_data::SUCCESS));
    append(results, &mut reply);
    reply
}

/// Encodes a reply without results.
pub(crate) fn refusal(xid: u32, refusal: Refusal) -> Vec<u8> {
    let body = match refusal {
        Refusal::Accepted(reply_data) => {
            reply_body::MSG_ACCEPTED(accepted_reply { verf: opaque_auth::default(), reply_data })
        }
        Refusal::Denied(rejected) => reply_body::MSG_DENIED(rejected),
    };
    let mut reply = Vec::new();
    append(&rpc_msg { xid, body: msg_body::REPLY(body) }, &mut reply);
    reply
}

fn append(value: &impl Pack, reply: &mut Vec<u8>) {
    reply.reserve(value.packed_size());
    value.pack(reply).expect("a vector takes all bytes, and no reply has 4 GiB");
}
