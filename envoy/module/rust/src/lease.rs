//! Leases in a segment of shared memory. The sidecar writes them, and the module takes hits from them.
//!
//! Another process can write any byte of the segment at any time. Each access is one atomic load or exchange of a word of
//! eight bytes, and every word is checked before it is used.

use crate::fingerprint::Fingerprint;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes before the first slot.
pub const HEADER: usize = 4096;
/// Bytes of a slot.
pub const SLOT: usize = 32;
/// The longest time that a lease may have left, in nanoseconds: an hour.
pub const LONGEST: u64 = 3_600_000_000_000;
/// The first eight bytes of a segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"KWLEASE1");

/// Slots that may hold a key: the one of its fingerprint, and those after it.
const PROBES: u64 = 8;
/// Attempts to take hits from a word that others change.
const TRIES: usize = 64;

/// A word of shared memory. Tests replace it by one whose accesses they order.
pub trait Word {
    /// Loads the word with acquire ordering.
    fn load(&self) -> u64;
    /// Replaces the word if it is `old`, with acquire and release ordering, and reports whether it was.
    fn exchange(&self, old: u64, new: u64) -> bool;
    /// Adds to the word.
    fn add(&self, n: u64);
}

impl Word for AtomicU64 {
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::Acquire)
    }
    fn exchange(&self, old: u64, new: u64) -> bool {
        self.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
    fn add(&self, n: u64) {
        self.fetch_add(n, Ordering::Relaxed);
    }
}

/// The copy of a segment's header that the module made when it mapped the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Number of slots, a power of two.
    pub slots: u32,
    /// Key of the fingerprints.
    pub key: (u64, u64),
}

/// Reports whether a segment may have this number of slots.
pub fn valid_slots(slots: u32) -> bool {
    slots.is_power_of_two() && (64..=1 << 20).contains(&slots)
}

/// Returns the size of a segment in bytes.
pub fn size(slots: u32) -> u64 {
    HEADER as u64 + SLOT as u64 * u64::from(slots)
}

impl Header {
    /// Copies the header of a segment that the sidecar announced with this number of slots. It is `None` if the header
    /// differs from the announcement.
    pub fn read<W: Word>(words: &[W], slots: u32) -> Option<Header> {
        if !valid_slots(slots) || words.len() as u64 * 8 != size(slots) || words[0].load() != MAGIC {
            return None;
        }
        let shape = words[1].load(); // version and slots
        if shape as u32 != 1 || (shape >> 32) as u32 != slots {
            return None;
        }
        Some(Header { slots, key: (words[2].load(), words[3].load()) })
    }
}

/// What `Leases::take` found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Take {
    /// The hits are taken.
    Taken(Receipt),
    /// No slot has the key.
    Missing,
    /// The lease has too few hits left, or has expired.
    Empty,
    /// The slot fails a check.
    Corrupt,
    /// Others changed the slot during each attempt.
    Busy,
}

/// What is needed to give hits back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    slot: usize,
    epoch: u32,
}

/// The leases of a segment.
#[derive(Clone, Copy)]
pub struct Leases<'a, W: Word = AtomicU64> {
    words: &'a [W],
    header: Header,
}

impl<'a, W: Word> Leases<'a, W> {
    /// Returns the leases of a segment with a header that `Header::read` returned. It is `None` if the sizes differ.
    pub fn new(words: &'a [W], header: Header) -> Option<Self> {
        (valid_slots(header.slots) && words.len() as u64 * 8 == size(header.slots)).then_some(Leases { words, header })
    }

    /// Returns the key of the fingerprints.
    pub fn key(&self) -> (u64, u64) {
        self.header.key
    }

    /// Takes `n` hits from the lease of a key. `now` is the time of CLOCK_MONOTONIC in nanoseconds.
    pub fn take(&self, print: Fingerprint, n: u32, now: u64) -> Take {
        for _ in 0..TRIES {
            let Some(slot) = self.find(print) else { return Take::Missing };
            let words = self.slot(slot);
            let word = words[2].load();
            let Some(rest) = (word as u32).checked_sub(n) else { return Take::Empty };
            // While the word keeps its epoch, the sidecar writes neither the fingerprint nor the end.
            if words[0].load() != print.lo || words[1].load() != print.hi {
                continue; // the slot has another key now
            }
            let expires = words[3].load();
            if expires <= now {
                return Take::Empty;
            }
            if expires - now > LONGEST {
                return Take::Corrupt;
            }
            let epoch = (word >> 32) as u32;
            if words[2].exchange(word, pack(epoch, rest)) {
                return Take::Taken(Receipt { slot, epoch });
            }
        }
        Take::Busy
    }

    /// Gives `n` hits back. If the sidecar has changed the lease since they were taken, they remain charged.
    pub fn give_back(&self, receipt: Receipt, n: u32) {
        let word = &self.slot(receipt.slot)[2];
        for _ in 0..TRIES {
            let old = word.load();
            if (old >> 32) as u32 != receipt.epoch {
                return;
            }
            let Some(rest) = (old as u32).checked_add(n) else { return };
            if word.exchange(old, pack(receipt.epoch, rest)) {
                return;
            }
        }
    }

    /// Adds to the module's counters in the segment: takes that found no lease, an empty one and a corrupt one, and hits
    /// that were taken.
    pub fn count(&self, counter: Counter, n: u64) {
        self.words[counter as usize].add(n);
    }

    fn find(&self, print: Fingerprint) -> Option<usize> {
        let mask = u64::from(self.header.slots) - 1;
        (0..PROBES).map(|i| (print.lo.wrapping_add(i) & mask) as usize).find(|&slot| {
            let words = self.slot(slot);
            words[0].load() == print.lo && words[1].load() == print.hi && print != EMPTY
        })
    }

    fn slot(&self, slot: usize) -> &'a [W] {
        let start = HEADER / 8 + slot * (SLOT / 8);
        &self.words[start..start + SLOT / 8]
    }
}

/// The fingerprint of a slot without a key.
const EMPTY: Fingerprint = Fingerprint { lo: 0, hi: 0 };

/// A counter of the module in the segment: the index of its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Descriptors without a lease.
    Misses = 8,
    /// Descriptors whose lease had too few hits, or had expired.
    Empty = 9,
    /// Slots that failed a check.
    Corrupt = 10,
    /// Hits taken.
    Taken = 11,
}

fn pack(epoch: u32, rest: u32) -> u64 {
    u64::from(epoch) << 32 | u64::from(rest)
}
