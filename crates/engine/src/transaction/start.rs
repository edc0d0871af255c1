//! The terms on which a change joins a transaction.
//!
//! Owns [`Start`], the one argument besides the change itself. A number of items converts into it.
//!
//! Kernel counterparts: the `num_items` of `btrfs_start_transaction` (`fs/btrfs/transaction.c`) and
//! `enum btrfs_reserve_flush_enum` (`fs/btrfs/space-info.h`).

use crate::space::Reservation;
use std::cell::RefCell;

/// The terms of one change.
#[derive(Clone, Copy, Debug)]
pub struct Start<'r> {
    /// About how many items it changes, for the metadata reservation.
    pub(crate) items: u64,
    /// Whether it may use the global reserve.
    pub(crate) steals: bool,
    /// Whether a user's request for it was accepted earlier.
    pub(crate) accepted: bool,
    pub(crate) order: Order,
    /// Metadata that the caller has reserved, which may be less than the change needs. The rest
    /// that the change does not spend goes back there.
    pub(crate) own: Option<&'r RefCell<Option<Reservation>>>,
}

/// Where a change is among those of its transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Beside others.
    Any,
    /// Before all others, after a commit of the transaction before.
    First,
    /// After all others; its transaction is committed before the call returns. Where quotas count,
    /// it is the only one.
    Last,
}

impl<'r> Start<'r> {
    /// A change of about `items` items, beside others.
    pub const fn items(items: u64) -> Self {
        Self { items, steals: false, accepted: false, order: Order::Any, own: None }
    }

    /// The change frees space, or takes the place of a reservation that its caller has just
    /// released. It may use the global reserve (`BTRFS_RESERVE_FLUSH_ALL_STEAL`).
    pub const fn steal(self) -> Self {
        Self { steals: true, ..self }
    }

    /// The change was accepted before its subvolume became read-only, if it has.
    pub(crate) const fn accepted(self) -> Self {
        Self { accepted: true, ..self }
    }

    /// The change has this metadata, which may be less than it needs. The rest that it does not
    /// spend goes back there.
    pub(crate) const fn reserved(self, own: &'r RefCell<Option<Reservation>>) -> Self {
        Self { own: Some(own), ..self }
    }

    /// The change is the first one of a transaction. No other change runs meanwhile.
    pub(crate) const fn first(self) -> Self {
        Self { order: Order::First, ..self }
    }

    /// The change is the last one of a transaction, which is committed. Where quotas count, it is
    /// the first one, too. No other change runs meanwhile. If it fails and has changed nothing, the
    /// file system goes on.
    pub const fn last(self) -> Self {
        Self { order: Order::Last, ..self }
    }
}

impl From<u64> for Start<'_> {
    fn from(items: u64) -> Self {
        Self::items(items)
    }
}
