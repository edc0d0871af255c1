//! The mount protocol, by which a client gets the handle of the export's root, and the port
//! mapper, which names this port for both protocols.
//!
//! A client may mount a directory below the root that its user can reach.
//!
//! Source: RFC 1813, appendix I; RFC 1833.

use crate::arguments::Arguments;
use crate::errors::status;
use crate::export::{NAME, Session};
use crate::handle::Id;
use crate::rpc::{Call, LOCK_MANAGER, Refusal, results, tell_of_locks};
use nfs3_types::mount::{
    MNTPATHLEN, PROGRAM, VERSION, dirpath, export_node, exports, fhandle3, mountlist, mountres3,
    mountres3_ok, mountstat3,
};
use nfs3_types::nfs3::nfsstat3;
use nfs3_types::rpc::accept_stat_data;
use nfs3_types::xdr_codec::{List, Opaque, Void};
use papilio::FileKind;

/// The flavour of credentials that clients are to use: AUTH_UNIX.
const FLAVOR: u32 = 1;
/// TCP, for the port mapper.
const TCP: u32 = 6;

impl Session<'_> {
    /// Answers a call of the mount protocol.
    pub(crate) fn mount(&self, call: &Call<'_>) -> Result<Vec<u8>, Refusal> {
        let mut arguments = call.arguments;
        Ok(match call.procedure {
            // NULL, UMNT and UMNTALL: the server keeps no list of mounts.
            0 | 3 | 4 => results(call.xid, &Void),
            1 => results(call.xid, &self.mounted(arguments.opaque(MNTPATHLEN)?)),
            2 => results(call.xid, &mountlist::default()),
            5 => {
                let ex_dir = dirpath(Opaque::owned(format!("/{NAME}").into_bytes()));
                let node = export_node { ex_dir, ex_groups: List::default() };
                let list: exports<'_, '_> = List(vec![node]);
                results(call.xid, &list)
            }
            _ => return Err(Refusal::Accepted(accept_stat_data::PROC_UNAVAIL)),
        })
    }

    fn mounted(&self, path: &[u8]) -> mountres3<'static> {
        match self.walk(path) {
            Ok(id) => mountres3::Ok(mountres3_ok {
                fhandle: fhandle3(self.handle_of(id).data),
                auth_flavors: vec![FLAVOR],
            }),
            Err(nfsstat3::NFS3ERR_NOENT) => mountres3::Err(mountstat3::MNT3ERR_NOENT),
            Err(nfsstat3::NFS3ERR_NOTDIR) => mountres3::Err(mountstat3::MNT3ERR_NOTDIR),
            Err(nfsstat3::NFS3ERR_ACCES) => mountres3::Err(mountstat3::MNT3ERR_ACCES),
            Err(nfsstat3::NFS3ERR_NAMETOOLONG) => mountres3::Err(mountstat3::MNT3ERR_NAMETOOLONG),
            Err(_) => mountres3::Err(mountstat3::MNT3ERR_IO),
        }
    }

    /// Returns the directory at a path, whose first component is the name of the export.
    fn walk(&self, path: &[u8]) -> Result<Id, nfsstat3> {
        let mut components = path.split(|&byte| byte == b'/').filter(|component| !component.is_empty());
        if components.next() != Some(NAME.as_bytes()) {
            return Err(nfsstat3::NFS3ERR_NOENT);
        }
        let mut found = self.directory(self.export.root)?;
        for component in components {
            found = self.find(&found, component)?;
            if found.file_type() != FileKind::Directory {
                return Err(nfsstat3::NFS3ERR_NOTDIR);
            }
        }
        // Fails now rather than at each call, if the directory cannot be read.
        found.read_dir().map_err(|error| status(&error))?;
        Ok(Id::of(&found))
    }
}

/// Answers a call of the port mapper: NFS and the mount protocol are at `port`.
pub(crate) fn map_port(call: &Call<'_>, port: u16) -> Result<Vec<u8>, Refusal> {
    match call.procedure {
        0 => Ok(results(call.xid, &Void)),
        3 => {
            let mut arguments: Arguments<'_> = call.arguments;
            let asked = (arguments.u32()?, arguments.u32()?, arguments.u32()?);
            if asked.0 == LOCK_MANAGER {
                tell_of_locks();
            }
            let nfs = (nfs3_types::nfs3::PROGRAM, nfs3_types::nfs3::VERSION, TCP);
            let is_here = asked == nfs || asked == (PROGRAM, VERSION, TCP);
            Ok(results(call.xid, &if is_here { u32::from(port) } else { 0 }))
        }
        _ => Err(Refusal::Accepted(accept_stat_data::PROC_UNAVAIL)),
    }
}
