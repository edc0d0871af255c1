//! A table whose copies share what neither of them changed.
//!
//! Owns [`Table`]. A chain of streams has one tree for each subvolume, and each is a copy of its
//! parent's with few changes. So rows are in blocks, and a change copies one row and one block.

use super::budget::{Budget, Charge};
use std::sync::Arc;

/// Rows of a block.
const BLOCK: usize = 256;
/// Estimate of a block's bytes.
const BLOCK_BYTES: u64 = 8 * BLOCK as u64 + 64;

type Block<T> = Vec<Option<Arc<T>>>;

/// Rows by number.
#[derive(Debug)]
pub(super) struct Table<T> {
    blocks: Vec<Arc<Block<T>>>,
    charge: Charge,
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Self {
        // The blocks are shared, and only the list of them is copied.
        let charge = self.charge.another(64 + 8 * self.blocks.len() as u64);
        Self { blocks: self.blocks.clone(), charge }
    }
}

impl<T: Clone> Table<T> {
    pub(super) fn new(budget: &Budget) -> Self {
        Self { blocks: Vec::new(), charge: budget.charge(64) }
    }

    pub(super) fn get(&self, number: u32) -> Option<&T> {
        let number = number as usize;
        self.blocks.get(number / BLOCK)?.get(number % BLOCK)?.as_deref()
    }

    pub(super) fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        let block = self.block(number)?;
        block.get_mut(number as usize % BLOCK)?.as_mut().map(Arc::make_mut)
    }

    /// Adds a row, and returns its number.
    ///
    /// # Panics
    /// With 2^32 rows, which no budget allows.
    pub(super) fn push(&mut self, row: T) -> u32 {
        if self.blocks.last().is_none_or(|block| block.len() == BLOCK) {
            self.blocks.push(Arc::new(Vec::new()));
            self.charge.add(BLOCK_BYTES);
        }
        let last = self.blocks.len() - 1;
        let number = u32::try_from(last * BLOCK).expect("the budget bounds the rows");
        let block = self.block(number).expect("it was just added");
        block.push(Some(Arc::new(row)));
        number + (block.len() - 1) as u32
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(row) = self.block(number).and_then(|block| block.get_mut(number as usize % BLOCK)) {
            *row = None;
        }
    }

    /// Returns the block of a row, of which no other table has a share.
    fn block(&mut self, number: u32) -> Option<&mut Block<T>> {
        let block = self.blocks.get_mut(number as usize / BLOCK)?;
        if Arc::strong_count(block) > 1 {
            self.charge.add(BLOCK_BYTES);
        }
        Some(Arc::make_mut(block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_do_not_see_each_others_changes() {
        let mut table = Table::new(&Budget::new(u64::MAX));
        for number in 0..1000_u32 {
            assert_eq!(table.push(number), number);
        }
        let copy = table.clone();
        *table.get_mut(700).unwrap() = 1;
        table.remove(3);
        assert_eq!((table.get(700), table.get(3), table.get(1000)), (Some(&1), None, None));
        assert_eq!((copy.get(700), copy.get(3)), (Some(&700), Some(&3)));
        assert_eq!(table.push(5), 1000);
    }
}
