//! Transactions.

pub(crate) mod csum_items;
