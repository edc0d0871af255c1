//! Errors of the file system as those of the protocol.

use nfs3_types::nfs3::nfsstat3;
use papilio::Error;

/// Returns the status for an error. Those of the protocol have the numbers of errnos, where BSD and
/// Linux agree.
pub(crate) fn status(error: &Error) -> nfsstat3 {
    use nfsstat3 as S;
    match error.errno() {
        1 => S::NFS3ERR_PERM,
        2 => S::NFS3ERR_NOENT,
        13 => S::NFS3ERR_ACCES,
        17 => S::NFS3ERR_EXIST,
        18 => S::NFS3ERR_XDEV,
        20 => S::NFS3ERR_NOTDIR,
        21 => S::NFS3ERR_ISDIR,
        22 => S::NFS3ERR_INVAL,
        27 => S::NFS3ERR_FBIG,
        28 => S::NFS3ERR_NOSPC,
        30 => S::NFS3ERR_ROFS,
        31 => S::NFS3ERR_MLINK,
        36 => S::NFS3ERR_NAMETOOLONG,
        39 => S::NFS3ERR_NOTEMPTY,
        95 => S::NFS3ERR_NOTSUPP,
        122 => S::NFS3ERR_DQUOT,
        _ => {
            tracing::warn!("{error}");
            S::NFS3ERR_IO
        }
    }
}

/// As [`status`], for an inode that a handle named: one that is gone makes the handle stale.
pub(crate) fn stale(error: &Error) -> nfsstat3 {
    match status(error) {
        nfsstat3::NFS3ERR_NOENT => nfsstat3::NFS3ERR_STALE,
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_follow_errnos() {
        let error = Error::Invalid("a reason".to_owned());
        assert_eq!(status(&error), nfsstat3::NFS3ERR_INVAL);
    }
}
