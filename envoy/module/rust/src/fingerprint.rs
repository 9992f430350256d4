//! Fingerprints of descriptors.

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;

/// An entry of a descriptor: a key and a value.
pub type Entry<'a> = (&'a [u8], &'a [u8]);

/// The fingerprint of a descriptor: which slot of a segment is for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The first eight bytes. They choose the slots.
    pub lo: u64,
    /// The other eight bytes.
    pub hi: u64,
}

/// Returns the fingerprint of a descriptor under a segment's key. It is `None` if a text is longer than 65,535 bytes, or
/// there are more than 65,535 entries.
pub fn of<'a>(
    key: (u64, u64),
    domain: &[u8],
    entries: impl ExactSizeIterator<Item = Entry<'a>>,
) -> Option<Fingerprint> {
    let mut hasher = SipHasher24::new_with_keys(key.0, key.1);
    text(&mut hasher, domain)?;
    hasher.write(&u16::try_from(entries.len()).ok()?.to_le_bytes());
    for (key, value) in entries {
        text(&mut hasher, key)?;
        text(&mut hasher, value)?;
    }
    let hash = hasher.finish128();
    Some(Fingerprint { lo: hash.h1, hi: hash.h2 })
}

fn text(hasher: &mut SipHasher24, bytes: &[u8]) -> Option<()> {
    hasher.write(&u16::try_from(bytes.len()).ok()?.to_le_bytes());
    hasher.write(bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(bytes: &[u8]) -> [u8; 16] {
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        let mut h = SipHasher24::new_with_key(&key);
        h.write(bytes);
        h.finish128().as_bytes()
    }

    /// The reference implementation's vectors for SipHash-2-4-128.
    #[test]
    fn known_vectors() {
        assert_eq!(
            hash(&[]),
            [0xa3, 0x81, 0x7f, 0x04, 0xba, 0x25, 0xa8, 0xe6, 0x6d, 0xf6, 0x72, 0x14, 0xc7, 0x55, 0x02, 0x93]
        );
        assert_eq!(
            hash(&[0]),
            [0xda, 0x87, 0xc1, 0xd8, 0x6b, 0x99, 0xaf, 0x44, 0x34, 0x76, 0x59, 0x11, 0x9b, 0x22, 0xfc, 0x45]
        );
    }

    /// The fingerprint of a descriptor is the hash of its bytes in INTEREST, in one piece.
    #[test]
    fn is_the_hash_of_the_message() {
        let entries: [Entry; 2] = [(b"api_key", b"k1"), (b"path", b"")];
        let bytes = b"\x03\0app\x02\0\x07\0api_key\x02\0k1\x04\0path\0\0";
        let mut h = SipHasher24::new_with_keys(1, u64::MAX);
        h.write(bytes);
        let want = h.finish128();
        let got = of((1, u64::MAX), b"app", entries.into_iter()).unwrap();
        assert_eq!((got.lo, got.hi), (want.h1, want.h2));
    }

    #[test]
    fn refuses_long_texts() {
        let long = vec![b'a'; 65_536];
        assert_eq!(of((1, 2), b"app", [(&b"k"[..], &long[..])].into_iter()), None);
        assert!(of((1, 2), b"app", [(&b"k"[..], &long[1..])].into_iter()).is_some());
    }
}
