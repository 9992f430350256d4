//! Messages between the module and the sidecar.

use crate::fingerprint::Entry;

/// The longest message in bytes.
pub const LONGEST: usize = 16 << 10;
/// The protocol's version.
pub const PROTOCOL: u8 = 1;

const HELLO: u8 = 1;
const SEGMENT: u8 = 2;
const INTEREST: u8 = 3;

/// The longest node id in HELLO, in bytes.
const LONGEST_NODE: usize = 256;

/// Encodes the first message of a connection. A node id of more than 256 bytes is left out.
pub fn hello(node: &str, abi: &str) -> Vec<u8> {
    let mut m = vec![HELLO, PROTOCOL];
    let node = if node.len() <= LONGEST_NODE { node } else { "" };
    let _ = text(&mut m, node.as_bytes());
    let _ = text(&mut m, abi.as_bytes()); // a constant of this crate
    m
}

/// The sidecar's announcement of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Number of slots.
    pub slots: u32,
    /// Size of the file in bytes.
    pub size: u64,
}

/// Decodes an announcement.
pub fn segment(m: &[u8]) -> Option<Segment> {
    let m: &[u8; 16] = m.try_into().ok()?;
    if m[..4] != [SEGMENT, PROTOCOL, 0, 0] {
        return None;
    }
    Some(Segment {
        slots: u32::from_le_bytes(m[4..8].try_into().ok()?),
        size: u64::from_le_bytes(m[8..].try_into().ok()?),
    })
}

/// Encodes the message that asks for a lease of a descriptor, whose requests had `hits` hits since the last one. It is
/// `None` if the message would be too long.
pub fn interest<'a>(domain: &[u8], entries: impl ExactSizeIterator<Item = Entry<'a>>, hits: u32) -> Option<Vec<u8>> {
    let mut m = vec![INTEREST, 0];
    m.extend(u16::try_from(entries.len()).ok()?.to_le_bytes());
    m.extend(hits.to_le_bytes());
    text(&mut m, domain)?;
    for (key, value) in entries {
        text(&mut m, key)?;
        text(&mut m, value)?;
    }
    (m.len() <= LONGEST).then_some(m)
}

fn text(m: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    m.extend(u16::try_from(bytes.len()).ok()?.to_le_bytes());
    m.extend(bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encodes() {
        assert_eq!(hello("n1", "v0.2.0"), b"\x01\x01\x02\0n1\x06\0v0.2.0");
        assert_eq!(hello(&"n".repeat(257), "v"), b"\x01\x01\0\0\x01\0v");
        let entries: [Entry; 1] = [(b"k", b"v")];
        assert_eq!(interest(b"app", entries.into_iter(), 7).unwrap(), b"\x03\0\x01\0\x07\0\0\0\x03\0app\x01\0k\x01\0v");
        let long = vec![b'v'; LONGEST];
        assert_eq!(interest(b"app", [(&b"k"[..], &long[..])].into_iter(), 7), None);
    }

    #[test]
    fn decodes() {
        let m = [2, 1, 0, 0, 64, 0, 0, 0, 0, 0x18, 0, 0, 0, 0, 0, 0];
        assert_eq!(segment(&m), Some(Segment { slots: 64, size: 6144 }));
        for i in 0..4 {
            let mut bad = m;
            bad[i] ^= 1;
            assert_eq!(segment(&bad), None);
        }
        assert_eq!(segment(&m[..15]), None);
    }
}
