//! Subvolumes and snapshots as a set: what there are, where they hang, what came from what.

mod list;

pub use list::Subvolume;
pub(crate) use list::{list, show};

// The deletion of subvolumes fills these in next.
pub(crate) fn clean_step(_: &std::sync::Arc<crate::transaction::Transactions>) -> crate::Result<bool> {
    Ok(false)
}
pub(crate) fn entry_moved(
    _: &crate::transaction::Handle<'_>,
    _: papilio_format::TreeId,
    _: papilio_format::TreeId,
    _: papilio_format::InodeNumber,
    _: &[u8],
    _: u64,
) -> crate::Result<()> {
    Ok(())
}
