//! Allocation of data space against a reservation.
//!
//! Owns [`ReservedData`], for writeback of pages whose space was reserved when they became dirty.
//! Lock: none; the value belongs to one thread.

use super::handle::DataExtent;
use super::transaction::Transactions;
use crate::errors::Result;
use crate::space::{Reservation, SpaceKind};
use std::cell::RefCell;

/// Allocates data space from a reservation first, then from free space. Dropping it releases the
/// rest.
pub(crate) struct ReservedData<'a> {
    transactions: &'a Transactions,
    reservation: RefCell<Option<Reservation>>,
}

impl<'a> ReservedData<'a> {
    /// Takes over `reservation`.
    pub(crate) fn new(transactions: &'a Transactions, reservation: Option<Reservation>) -> Self {
        Self { transactions, reservation: RefCell::new(reservation) }
    }

    /// The transactions whose space it is.
    pub(crate) fn transactions(&self) -> &'a Transactions {
        self.transactions
    }

    /// Allocates a contiguous extent of `min` to `want` bytes, both multiples of the sector size.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`].
    pub(crate) fn allocate(&self, min: u64, want: u64) -> Result<DataExtent> {
        let mut reservation = self.reservation.borrow_mut();
        let range = match reservation.as_mut().filter(|reservation| reservation.bytes() >= min) {
            Some(reservation) => {
                let want = want.min(reservation.bytes());
                let range = self.transactions.allocate(SpaceKind::Data, min, want)?;
                reservation.spend(range.length);
                range
            }
            None => self.transactions.allocate_data(min, want)?,
        };
        Ok(DataExtent { address: range.start, length: range.length })
    }
}
