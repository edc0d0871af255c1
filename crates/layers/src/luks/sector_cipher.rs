//! `SectorCipher`: encrypts and decrypts whole sectors, as dm-crypt does.
//!
//! **Invariant**: an IV counts units of 512 bytes, whatever the size of the sectors is. LUKS2 never
//! sets dm-crypt's `iv_large_sectors`.

use super::xts::Xts;
use aes::{Aes128, Aes192, Aes256, Block};
use cipher::{BlockCipherDecrypt, BlockCipherEncrypt, BlockSizeUser, KeyInit, consts::U16};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

/// Bytes of the unit that IVs count.
pub(super) const UNIT: u64 = 512;

/// The way an IV is made of the number of a sector.
#[derive(Clone)]
enum Iv {
    /// 32 bits, little-endian.
    Plain,
    /// 64 bits, little-endian.
    Plain64,
    /// 64 bits, big-endian, at the end.
    Plain64Be,
    /// The number in 64 bits, encrypted with the digest of the key.
    Essiv(Box<Aes256>),
}

/// A block cipher in its mode.
#[derive(Clone)]
enum Mode {
    Xts128(Box<Xts<Aes128>>),
    Xts256(Box<Xts<Aes256>>),
    Cbc128(Box<Aes128>),
    Cbc192(Box<Aes192>),
    Cbc256(Box<Aes256>),
}

/// A cipher with its key. The key schedules are wiped when it is dropped.
#[derive(Clone)]
pub(super) struct SectorCipher {
    mode: Mode,
    iv: Iv,
}

impl SectorCipher {
    /// Creates the cipher of a specification such as `aes-xts-plain64`.
    ///
    /// # Errors
    /// The feature that is not supported.
    pub(super) fn new(specification: &str, key: &[u8]) -> Result<Self, String> {
        let refused = || format!("the cipher {specification} and a key of {} bits", key.len() * 8);
        let (cipher, rest) = specification.split_once('-').ok_or_else(refused)?;
        let (mode, iv) = rest.split_once('-').ok_or_else(refused)?;
        if cipher != "aes" {
            return Err(refused());
        }
        let mode = match (mode, key.len()) {
            ("xts", 32) => Mode::Xts128(Box::new(xts(key).ok_or_else(refused)?)),
            ("xts", 64) => Mode::Xts256(Box::new(xts(key).ok_or_else(refused)?)),
            ("cbc", 16) => Mode::Cbc128(Box::new(keyed(key).ok_or_else(refused)?)),
            ("cbc", 24) => Mode::Cbc192(Box::new(keyed(key).ok_or_else(refused)?)),
            ("cbc", 32) => Mode::Cbc256(Box::new(keyed(key).ok_or_else(refused)?)),
            _ => return Err(refused()),
        };
        let iv = match iv {
            "plain" => Iv::Plain,
            "plain64" => Iv::Plain64,
            "plain64be" => Iv::Plain64Be,
            "essiv:sha256" => {
                let salt = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(key)));
                Iv::Essiv(Box::new(keyed(&salt[..]).ok_or_else(refused)?))
            }
            _ => return Err(refused()),
        };
        Ok(Self { mode, iv })
    }

    /// Decrypts sectors of `sector_size` bytes. `unit` is the number of the first.
    pub(super) fn decrypt(&self, bytes: &mut [u8], sector_size: usize, unit: u64) {
        self.each_sector(bytes, sector_size, unit, |mode, sector, iv| match mode {
            Mode::Xts128(xts) => xts.decrypt(sector, iv),
            Mode::Xts256(xts) => xts.decrypt(sector, iv),
            Mode::Cbc128(aes) => cbc_decrypt(&**aes, sector, iv),
            Mode::Cbc192(aes) => cbc_decrypt(&**aes, sector, iv),
            Mode::Cbc256(aes) => cbc_decrypt(&**aes, sector, iv),
        });
    }

    /// Encrypts sectors of `sector_size` bytes. `unit` is the number of the first.
    pub(super) fn encrypt(&self, bytes: &mut [u8], sector_size: usize, unit: u64) {
        self.each_sector(bytes, sector_size, unit, |mode, sector, iv| match mode {
            Mode::Xts128(xts) => xts.encrypt(sector, iv),
            Mode::Xts256(xts) => xts.encrypt(sector, iv),
            Mode::Cbc128(aes) => cbc_encrypt(&**aes, sector, iv),
            Mode::Cbc192(aes) => cbc_encrypt(&**aes, sector, iv),
            Mode::Cbc256(aes) => cbc_encrypt(&**aes, sector, iv),
        });
    }

    fn each_sector(
        &self,
        bytes: &mut [u8],
        sector_size: usize,
        unit: u64,
        run: impl Fn(&Mode, &mut [u8], [u8; 16]),
    ) {
        let step = sector_size as u64 / UNIT;
        let mut unit = unit;
        for sector in bytes.chunks_exact_mut(sector_size) {
            run(&self.mode, sector, self.iv.of(unit));
            unit = unit.wrapping_add(step);
        }
    }
}

impl Iv {
    fn of(&self, unit: u64) -> [u8; 16] {
        let mut iv = [0; 16];
        match self {
            Self::Plain => iv[..4].copy_from_slice(&(unit as u32).to_le_bytes()),
            Self::Plain64 => iv[..8].copy_from_slice(&unit.to_le_bytes()),
            Self::Plain64Be => iv[8..].copy_from_slice(&unit.to_be_bytes()),
            Self::Essiv(aes) => {
                let mut block = Block::default();
                block[..8].copy_from_slice(&unit.to_le_bytes());
                aes.encrypt_block(&mut block);
                iv = block.0;
            }
        }
        iv
    }
}

fn keyed<C: KeyInit>(key: &[u8]) -> Option<C> {
    C::new_from_slice(key).ok()
}

fn xts<C: KeyInit>(key: &[u8]) -> Option<Xts<C>> {
    let (data, tweak) = key.split_at(key.len() / 2);
    Some(Xts { data: keyed(data)?, tweak: keyed(tweak)? })
}

/// Decrypts a sector in CBC. All blocks are decrypted at once, as none waits for another.
fn cbc_decrypt<C: BlockSizeUser<BlockSize = U16> + BlockCipherDecrypt>(
    cipher: &C,
    sector: &mut [u8],
    iv: [u8; 16],
) {
    const BATCH: usize = 32;
    let mut before = u128::from_ne_bytes(iv);
    let (blocks, _) = Block::slice_as_chunks_mut(sector);
    for batch in blocks.chunks_mut(BATCH) {
        let mut kept = [0; BATCH];
        for (slot, block) in kept.iter_mut().zip(batch.iter()) {
            *slot = u128::from_ne_bytes(block.0);
        }
        cipher.decrypt_blocks(batch);
        for (block, own) in batch.iter_mut().zip(kept) {
            block.0 = (u128::from_ne_bytes(block.0) ^ before).to_ne_bytes();
            before = own;
        }
    }
}

fn cbc_encrypt<C: BlockSizeUser<BlockSize = U16> + BlockCipherEncrypt>(
    cipher: &C,
    sector: &mut [u8],
    iv: [u8; 16],
) {
    let mut before = u128::from_ne_bytes(iv);
    let (blocks, _) = Block::slice_as_chunks_mut(sector);
    for block in blocks {
        block.0 = (u128::from_ne_bytes(block.0) ^ before).to_ne_bytes();
        cipher.encrypt_block(block);
        before = u128::from_ne_bytes(block.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cbc::cipher::{BlockModeEncrypt, KeyIvInit, block_padding::NoPadding};

    #[test]
    fn cbc_equals_the_crate_cbc() {
        let (key, sector) = ([7; 32], [9_u8; 1024]);
        let ours = SectorCipher::new("aes-cbc-plain64", &key).unwrap();
        let mut bytes = sector;
        ours.encrypt(&mut bytes, 1024, 5);
        let mut iv = [0; 16];
        iv[0] = 5;
        let mut other = sector;
        cbc::Encryptor::<Aes256>::new(&key.into(), &iv.into())
            .encrypt_padded::<NoPadding>(&mut other, 1024)
            .unwrap();
        assert_eq!(bytes, other);
        ours.decrypt(&mut bytes, 1024, 5);
        assert_eq!(bytes, sector);
    }

    #[test]
    fn other_ciphers_are_refused_by_name() {
        for name in ["serpent-xts-plain64", "aes-lrw-benbi", "aes", "", "aes-xts-random", "null-ecb"] {
            let error = SectorCipher::new(name, &[1; 64]).err().unwrap();
            assert!(error.contains(name), "{error}");
        }
        assert!(SectorCipher::new("aes-xts-plain64", &[1; 31]).is_err());
    }
}
