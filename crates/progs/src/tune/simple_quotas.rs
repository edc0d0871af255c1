//! Simple quotas, turned on and off while nothing has the file system mounted.
//!
//! Owns [`change`]. Turning on is one transaction. Turning off is several, and leaves the feature
//! bit until the last; a removal that was cut short is finished by the same change.
//!
//! Locks: none.
//!
//! Counterpart: btrfs-progs' `tune/quota.c`.

use super::change::Tuned;
use super::members::Members;
use papilio_engine::errors::{Error, Result};
use papilio_engine::mount;
use papilio_engine::options::OpenOptions;
use papilio_format::features::IncompatFeatures;

/// Turns simple quotas on, or takes them out of the file system.
pub(super) fn change(members: &Members, on: bool) -> Result<Tuned> {
    members.require_finished()?;
    members.require_no_seed()?;
    let raw = members.first().raw;
    let has_feature = raw.incompat_flags.contains(IncompatFeatures::SIMPLE_QUOTA);
    if !on && !has_feature {
        return Err(Error::Invalid("the file system has no simple quotas".to_owned()));
    }
    let fs = mount::from_devices(members.devices(), &OpenOptions::new().write(true))?;
    let transactions = fs.transactions()?;
    if on {
        if let Some(state) = transactions.quotas().state() {
            let kind = if state.is_simple() { "simple quotas" } else { "quotas, which must be off first" };
            return Err(Error::Invalid(format!("the file system already has {kind}")));
        }
        transactions.enable_quotas(true)?;
        transactions.commit()?;
    } else {
        transactions.remove_simple_quotas()?;
    }
    Ok(Tuned { fsid: raw.fsid, blocks: 0, resumed: false })
}
