//! XTS over a block cipher, many blocks at a time.
//!
//! The crate `xts-mode` encrypts block by block, so that each block waits for the one before it in
//! the processor's pipeline. Here the tweaks of a batch are computed first, and the cipher gets all
//! blocks of the batch at once: `aes` then interleaves them. Tests compare the two.
//!
//! Source: IEEE 1619-2007, section 5.

use aes::Block;
use cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, consts::U16};

/// Blocks of a batch: 512 bytes, the smallest sector.
const BATCH: usize = 32;

/// A cipher with its two keys.
#[derive(Clone)]
pub(super) struct Xts<C> {
    pub(super) data: C,
    pub(super) tweak: C,
}

impl<C: BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt + BlockCipherDecrypt> Xts<C> {
    /// Encrypts a sector, whose length is a multiple of 16 bytes.
    pub(super) fn encrypt(&self, sector: &mut [u8], iv: [u8; 16]) {
        self.each_batch(sector, iv, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts a sector, whose length is a multiple of 16 bytes.
    pub(super) fn decrypt(&self, sector: &mut [u8], iv: [u8; 16]) {
        self.each_batch(sector, iv, |blocks| self.data.decrypt_blocks(blocks));
    }

    fn each_batch(&self, sector: &mut [u8], iv: [u8; 16], run: impl Fn(&mut [Block])) {
        let mut first = Block::from(iv);
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.0);
        let (blocks, rest) = Block::slice_as_chunks_mut(sector);
        debug_assert!(rest.is_empty(), "a sector is a multiple of 16 bytes");
        let mut tweaks = [0_u128; BATCH];
        for batch in blocks.chunks_mut(BATCH) {
            for slot in &mut tweaks[..batch.len()] {
                *slot = tweak;
                tweak = doubled(tweak);
            }
            mask(batch, &tweaks);
            run(batch);
            mask(batch, &tweaks);
        }
    }
}

fn mask(blocks: &mut [Block], tweaks: &[u128]) {
    for (block, tweak) in blocks.iter_mut().zip(tweaks) {
        block.0 = (u128::from_le_bytes(block.0) ^ tweak).to_le_bytes();
    }
}

/// Multiplies by x in the field of 2^128 elements.
fn doubled(tweak: u128) -> u128 {
    (tweak << 1) ^ (0x87 & (tweak >> 127).wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;
    use aes::Aes256;
    use cipher::KeyInit;

    #[test]
    fn equals_the_crate_xts_mode() {
        let mut random = fastrand::Rng::with_seed(1);
        for length in [16, 512, 528, 4096] {
            let mut bytes = vec![0; length];
            random.fill(&mut bytes);
            let (mut one, mut two) = ([0; 32], [0; 32]);
            random.fill(&mut one);
            random.fill(&mut two);
            let new = |key: &[u8; 32]| Aes256::new(&(*key).into());
            let ours = Xts { data: new(&one), tweak: new(&two) };
            let theirs = xts_mode::Xts128::new(new(&one), new(&two));
            let iv = u128::from(random.u64(..)).to_le_bytes();
            let (mut a, mut b) = (bytes.clone(), bytes.clone());
            ours.encrypt(&mut a, iv);
            theirs.encrypt_sector(&mut b, iv.into());
            assert_eq!(a, b);
            ours.decrypt(&mut a, iv);
            assert_eq!(a, bytes);
        }
    }
}
