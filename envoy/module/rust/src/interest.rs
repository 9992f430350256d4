//! How often the module asks the sidecar for a lease of a descriptor.

use crate::fingerprint::Fingerprint;
use std::sync::atomic::{AtomicU64, Ordering};

/// The least time between two messages about a descriptor, in milliseconds.
pub const INTERVAL: u64 = 100;
/// The longest time between two hits that make a message, in milliseconds. A hit that no other follows is not worth one.
pub const SHORT: u64 = 1000;
const ROWS: usize = 16_384;

/// Remembers hits and messages of late, in fixed memory. Of two descriptors with one row, the later one replaces the other,
/// which then begins again. Methods may be called by several threads.
pub struct Pace {
    rows: Box<[Row]>,
}

#[derive(Default)]
struct Row {
    owner: AtomicU64, // the high half of the fingerprint
    times: AtomicU64, // of the last hit, and when the next message may be sent
    hits: AtomicU64,  // since the last message
}

impl Default for Pace {
    fn default() -> Self {
        Pace { rows: (0..ROWS).map(|_| Row::default()).collect() }
    }
}

impl Pace {
    /// Counts `n` hits of a descriptor without a lease, at a time in milliseconds. It returns the hits that a message
    /// must name, or `None` if none is due. If other threads count at the same time, a message may name fewer hits, or be
    /// missing until the next hit: it is an estimate.
    pub fn due(&self, print: Fingerprint, n: u32, now: u64) -> Option<u32> {
        let now = now as u32;
        let row = &self.rows[print.lo as usize % ROWS];
        let old = row.times.load(Ordering::Relaxed);
        let (last, next) = ((old >> 32) as u32, old as u32);
        let mine = row.owner.load(Ordering::Relaxed) == print.hi;
        if !mine || u64::from(now.wrapping_sub(last)) > SHORT {
            row.owner.store(print.hi, Ordering::Relaxed);
            row.times.store(pack(now, now), Ordering::Relaxed);
            row.hits.store(u64::from(n), Ordering::Relaxed);
            return None;
        }
        let due = now.wrapping_sub(next) as i32 >= 0;
        let next = if due { now.wrapping_add(INTERVAL as u32) } else { next };
        if row.times.compare_exchange(old, pack(now, next), Ordering::Relaxed, Ordering::Relaxed).is_err() || !due {
            row.hits.fetch_add(u64::from(n), Ordering::Relaxed);
            return None;
        }
        let before = row.hits.swap(0, Ordering::Relaxed);
        Some(u32::try_from(before.saturating_add(u64::from(n))).unwrap_or(u32::MAX))
    }
}

fn pack(last: u32, next: u32) -> u64 {
    u64::from(last) << 32 | u64::from(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Fingerprint = Fingerprint { lo: 5, hi: 1 };
    const B: Fingerprint = Fingerprint { lo: 5, hi: 2 };

    #[test]
    fn one_message_an_interval() {
        let pace = Pace::default();
        assert_eq!(pace.due(A, 1, 10_000), None, "the first hit");
        assert_eq!(pace.due(A, 1, 10_001), Some(2));
        assert_eq!(pace.due(A, 1, 10_002), None);
        assert_eq!(pace.due(A, 3, 10_100), None);
        assert_eq!(pace.due(A, 1, 10_101), Some(5));
        assert_eq!(pace.due(A, 1, 10_900), Some(1));
        assert_eq!(pace.due(B, 1, 10_901), None, "another descriptor of the same row");
        assert_eq!(pace.due(B, u32::MAX, 10_902), Some(u32::MAX), "saturates");
        assert_eq!(pace.due(A, 1, 10_903), None, "it was replaced");
        assert_eq!(pace.due(A, 1, 10_904), Some(2));
    }

    /// Single hits, with more than SHORT between them, send nothing, however many there are.
    #[test]
    fn rare_hits_send_nothing() {
        let pace = Pace::default();
        for i in 0..100_000 {
            assert_eq!(pace.due(A, 1, 5 + i * (SHORT + 1)), None);
        }
        let now = 5 + 100_000 * (SHORT + 1);
        assert_eq!(pace.due(A, 1, now), None);
        assert_eq!(pace.due(A, 1, now + SHORT), Some(2));
    }

    /// Many descriptors, of which each has one hit, send nothing, and those with several do.
    #[test]
    fn many_descriptors() {
        let (pace, mut sent) = (Pace::default(), 0);
        for i in 0..1_000_000u64 {
            let print = Fingerprint { lo: i.wrapping_mul(0x9e37_79b9_7f4a_7c15), hi: i + 10 };
            sent += u32::from(pace.due(print, 1, i / 1000).is_some());
        }
        assert_eq!(sent, 0);
        for i in 0..1000 {
            sent += u32::from(pace.due(A, 1, 2000 + i).is_some());
        }
        assert_eq!(sent, 10);
    }

    /// The times are 32 bits of milliseconds, which begin again after 49 days.
    #[test]
    fn times_wrap() {
        let (pace, wrap) = (Pace::default(), 1u64 << 32);
        assert_eq!(pace.due(A, 1, wrap - 50), None);
        assert_eq!(pace.due(A, 1, wrap - 49), Some(2));
        assert_eq!(pace.due(A, 1, wrap + 50), None);
        assert_eq!(pace.due(A, 1, wrap + 51), Some(2));
    }
}
