//! The cipher, and keys for separate purposes.

use chacha20poly1305::{KeyInit, XChaCha20Poly1305};
use hmac::{Hmac, Mac};
use sha2::Sha256;
use zeroize::Zeroizing;

/// A key of 32 bytes, whose memory is wiped.
pub type SecretKey = Zeroizing<[u8; 32]>;

/// Returns the cipher with a key. Its nonces are long enough to be random.
pub fn new_cipher(key: &[u8; 32]) -> XChaCha20Poly1305 {
    XChaCha20Poly1305::new(key.into())
}

/// Returns the HMAC-SHA-256 of some bytes.
pub fn hmac(key: &[u8], bytes: &[u8]) -> [u8; 32] {
    let mut code =
        <Hmac<Sha256> as hmac::KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    code.update(bytes);
    code.finalize().into_bytes().into()
}

/// Returns the key for one purpose: the HMAC-SHA-256 of its name.
pub fn subkey(key: &SecretKey, purpose: &str) -> SecretKey {
    Zeroizing::new(hmac(&key[..], purpose.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn purposes_have_separate_keys() {
        let key = Zeroizing::new([3; 32]);
        assert_ne!(subkey(&key, "one"), subkey(&key, "other"));
        assert_ne!(subkey(&key, "one"), subkey(&Zeroizing::new([4; 32]), "one"));
        // The second test case of RFC 4231.
        let code = hmac(b"Jefe", b"what do ya want for nothing?");
        assert!(crate::hex::text(&code).starts_with("5bdcc146bf60754e6a042426089575c7"));
    }
}
