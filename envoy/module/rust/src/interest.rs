//! How often the module asks the sidecar for a lease of a descriptor.

use crate::fingerprint::Fingerprint;
use std::sync::atomic::{AtomicU64, Ordering};

/// The least time between two messages about a descriptor, in milliseconds.
pub const INTERVAL: u64 = 100;
const ROWS: usize = 4096;

/// Remembers the messages that were sent lately, in fixed memory. Of two descriptors with one row, the later one
/// replaces the other, which may then be sent again early. Methods may be called by several threads.
pub struct Pace {
    rows: Box<[Row]>,
}

#[derive(Default)]
struct Row {
    owner: AtomicU64, // the high half of the fingerprint
    state: AtomicU64, // when the last message was sent, and the hits since
}

impl Default for Pace {
    fn default() -> Self {
        Pace { rows: (0..ROWS).map(|_| Row::default()).collect() }
    }
}

impl Pace {
    /// Counts `n` hits of a descriptor without a lease, at a time in milliseconds. It returns the hits that a message
    /// must name, or `None` if none is due.
    pub fn due(&self, print: Fingerprint, n: u32, now: u64) -> Option<u32> {
        let now = now as u32;
        let row = &self.rows[print.lo as usize % ROWS];
        if row.owner.load(Ordering::Relaxed) != print.hi {
            row.owner.store(print.hi, Ordering::Relaxed);
            row.state.store(pack(now, 0), Ordering::Relaxed);
            return Some(n);
        }
        let old = row.state.load(Ordering::Relaxed);
        let (sent, hits) = ((old >> 32) as u32, (old as u32).saturating_add(n));
        let due = u64::from(now.wrapping_sub(sent)) >= INTERVAL;
        let new = if due { pack(now, 0) } else { pack(sent, hits) };
        // If another thread counts at the same time, these hits are missing in the next message, which is an estimate.
        let won = row.state.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        (due && won).then_some(hits)
    }
}

fn pack(sent: u32, hits: u32) -> u64 {
    u64::from(sent) << 32 | u64::from(hits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_message_an_interval() {
        let (pace, a) = (Pace::default(), Fingerprint { lo: 5, hi: 1 });
        let b = Fingerprint { lo: 5, hi: 2 };
        assert_eq!(pace.due(a, 1, 1000), Some(1));
        assert_eq!(pace.due(a, 1, 1001), None);
        assert_eq!(pace.due(a, 3, 1099), None);
        assert_eq!(pace.due(a, 1, 1100), Some(5));
        assert_eq!(pace.due(b, 1, 1101), Some(1), "another descriptor of the same row");
        assert_eq!(pace.due(a, u32::MAX, 1101), Some(u32::MAX));
        assert_eq!(pace.due(a, 1, 1102), None);
        assert_eq!(pace.due(a, u32::MAX, 1300), Some(u32::MAX), "saturates");
        assert_eq!(pace.due(a, 1, 1300 + (1 << 32)), None, "the clock wraps");
    }
}
