//! The path at which a snapshot holds a version.

use papilio::VersionHolder;

/// Returns the path of a holder from the top level.
pub(super) fn shown_path(holder: &VersionHolder) -> Vec<u8> {
    let subvolume = match &holder.subvolume_path {
        Some(path) if path.is_empty() => Vec::new(),
        Some(path) => [b"/", &path[..]].concat(),
        None => format!("<subvolume {}>", holder.subvolume).into_bytes(),
    };
    [&subvolume[..], b"/", &holder.path].concat()
}
