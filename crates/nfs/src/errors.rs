//! Errors of the file system as those of the protocol.

use nfs3_types::nfs3::nfsstat3;
use papilio::{Error, ErrorKind, PathError, QuotaError};

/// Returns the status for an error (RFC 1813, 2.6).
pub(crate) fn status(error: &Error) -> nfsstat3 {
    use nfsstat3 as S;
    match error.kind() {
        ErrorKind::Path(reason) => path_status(reason),
        ErrorKind::NoSpace => Some(S::NFS3ERR_NOSPC),
        ErrorKind::Quota(QuotaError::Exceeded { .. }) => Some(S::NFS3ERR_DQUOT),
        ErrorKind::ReadOnly => Some(S::NFS3ERR_ROFS),
        ErrorKind::Invalid => Some(S::NFS3ERR_INVAL),
        ErrorKind::Incompatible => Some(S::NFS3ERR_NOTSUPP),
        _ => None,
    }
    .unwrap_or_else(|| {
        tracing::warn!("{error}");
        S::NFS3ERR_IO
    })
}

fn path_status(reason: PathError) -> Option<nfsstat3> {
    use nfsstat3 as S;
    Some(match reason {
        PathError::NotPermitted | PathError::IsASubvolume => S::NFS3ERR_PERM,
        PathError::NotFound | PathError::NoSubvolume => S::NFS3ERR_NOENT,
        PathError::AccessDenied => S::NFS3ERR_ACCES,
        PathError::Exists => S::NFS3ERR_EXIST,
        PathError::CrossDevice => S::NFS3ERR_XDEV,
        PathError::NotADirectory => S::NFS3ERR_NOTDIR,
        PathError::IsADirectory => S::NFS3ERR_ISDIR,
        PathError::NotASymlink | PathError::NotAFile | PathError::InvalidName | PathError::IntoItself => {
            S::NFS3ERR_INVAL
        }
        PathError::TooLarge => S::NFS3ERR_FBIG,
        PathError::ReadOnly => S::NFS3ERR_ROFS,
        PathError::TooManyLinks => S::NFS3ERR_MLINK,
        PathError::NameTooLong => S::NFS3ERR_NAMETOOLONG,
        PathError::NotEmpty => S::NFS3ERR_NOTEMPTY,
        PathError::NotSupported => S::NFS3ERR_NOTSUPP,
        _ => return None,
    })
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
    fn statuses_follow_kinds() {
        let folder = tempfile::tempdir().unwrap();
        let image = folder.path().join("image");
        papilio::mkfs(&image, &papilio::MkfsOptions::new().size(128 << 20)).unwrap();
        let fs = papilio::FileSystem::open_with(&image, &papilio::OpenOptions::new().write(true)).unwrap();
        fs.create_dir("/directory").unwrap();
        fs.write("/directory/file", b"x").unwrap();
        let long = format!("/{}", "n".repeat(256));
        for (error, expected) in [
            (fs.metadata("/none").unwrap_err(), nfsstat3::NFS3ERR_NOENT),
            (fs.create_dir("/directory").unwrap_err(), nfsstat3::NFS3ERR_EXIST),
            (fs.remove_dir("/directory").unwrap_err(), nfsstat3::NFS3ERR_NOTEMPTY),
            (fs.metadata("/directory/file/below").unwrap_err(), nfsstat3::NFS3ERR_NOTDIR),
            (fs.create_dir(&long).unwrap_err(), nfsstat3::NFS3ERR_NAMETOOLONG),
            (Error::Invalid("a reason".to_owned()), nfsstat3::NFS3ERR_INVAL),
        ] {
            assert_eq!(status(&error), expected, "{error}");
        }
        assert_eq!(stale(&fs.metadata("/none").unwrap_err()), nfsstat3::NFS3ERR_STALE);
    }
}
