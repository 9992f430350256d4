//! Random inputs for tests.
#![allow(dead_code)]

use keyward::filter::Request;
use keyward::fingerprint::{self, Fingerprint};
use keyward::lease::{self, Header};
use std::sync::atomic::{AtomicU64, Ordering};

/// A generator of pseudorandom numbers (SplitMix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

/// Returns how often a test repeats: the number in the environment, or one that is quick.
pub fn repetitions(variable: &str, quick: u64) -> u64 {
    std::env::var(variable).ok().and_then(|n| n.parse().ok()).unwrap_or(quick)
}

pub const SLOTS: u32 = 64;
pub const KEY: (u64, u64) = (1, 2);
pub const NOW: u64 = 1 << 50;
pub const HEADER: Header = Header { slots: SLOTS, key: KEY };

/// A segment without leases.
pub fn segment() -> Vec<AtomicU64> {
    let words: Vec<AtomicU64> = (0..lease::size(SLOTS) / 8).map(|_| AtomicU64::new(0)).collect();
    words[0].store(lease::MAGIC, Ordering::Relaxed);
    words[1].store(1 | u64::from(SLOTS) << 32, Ordering::Relaxed);
    words[2].store(KEY.0, Ordering::Relaxed);
    words[3].store(KEY.1, Ordering::Relaxed);
    words
}

/// The index of the first word of a slot that a key may have.
pub fn place(print: Fingerprint, n: u64) -> usize {
    let slot = print.lo.wrapping_add(n) & u64::from(SLOTS - 1);
    (lease::HEADER + slot as usize * lease::SLOT) / 8
}

pub fn print(value: &[u8]) -> Fingerprint {
    fingerprint::of(KEY, b"app", [(&b"k"[..], value)].into_iter()).unwrap()
}

/// A request with headers.
#[derive(Default)]
pub struct Fake {
    pub headers: Vec<(String, Vec<u8>)>,
    pub address: Option<Vec<u8>>,
}

impl Request for Fake {
    fn header(&self, name: &str, index: usize) -> (Option<&[u8]>, usize) {
        let mut all = self.headers.iter().filter(|(n, _)| n == name);
        let count = all.clone().count();
        (all.nth(index).map(|(_, v)| &v[..]), count)
    }
    fn remote_address(&self) -> Option<&[u8]> {
        self.address.as_deref()
    }
}
