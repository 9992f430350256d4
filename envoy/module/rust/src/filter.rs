//! What happens to a request: its leases are taken, or it is left to the rate limit filter.

use crate::config::{Config, Hits, MOST_HITS};
use crate::descriptor::{Built, Descriptor};
use crate::fingerprint::{self, Fingerprint};
use crate::lease::{Counter, Leases, Receipt, Take};

/// A request as Envoy shows it to the module.
pub trait Request {
    /// Returns a value of a header, and how many the header has.
    fn header(&self, name: &str, index: usize) -> (Option<&[u8]>, usize);
    /// Returns the remote address with its port.
    fn remote_address(&self) -> Option<&[u8]>;
}

/// Takes the leases of a request, and reports whether every descriptor had one. Otherwise none is taken, and `interest`
/// is called for a descriptor without a lease, with its hits. `now` is the time of CLOCK_MONOTONIC in nanoseconds.
pub fn take(
    config: &Config,
    request: &impl Request,
    leases: &Leases,
    now: u64,
    mut interest: impl FnMut(Fingerprint, &Descriptor, u32),
) -> Option<Charge> {
    let mut prints: Vec<(Fingerprint, Descriptor, u32)> = Vec::with_capacity(config.limits.len());
    for limit in &config.limits {
        let d = match Descriptor::build(&limit.actions, request) {
            Built::Descriptor(d) => d,
            Built::Absent => continue,
            Built::Unclear => return None,
        };
        let hits = hits(&limit.hits, request)?;
        prints.push((fingerprint::of(leases.key(), config.domain.as_bytes(), d.entries())?, d, hits));
    }
    let mut charge = Charge { receipts: Vec::with_capacity(prints.len()) };
    for (print, descriptor, hits) in &prints {
        match take_one(leases, *print, *hits, now) {
            Take::Taken(receipt) => charge.receipts.push((receipt, *hits)),
            failed => {
                charge.give_back(leases);
                // The lease of a descriptor that follows may be missing as well. It is asked for by the next request.
                if matches!(failed, Take::Missing | Take::Empty) {
                    interest(*print, descriptor, *hits);
                }
                return None;
            }
        }
    }
    leases.count(Counter::Taken, charge.receipts.iter().map(|(_, hits)| u64::from(*hits)).sum());
    (!charge.receipts.is_empty()).then_some(charge)
}

/// Returns the hits of a request for a descriptor, or `None` if the rate limit filter must decide: for no hits, and for a
/// header from which it may read another number, or none.
fn hits(of: &Hits, request: &impl Request) -> Option<u32> {
    let n = match of {
        Hits::Number(n) => *n,
        Hits::Header(name) => {
            let (Some(text), 1) = request.header(name, 0) else { return None };
            if text.is_empty() || text.len() > 10 || !text.iter().all(u8::is_ascii_digit) {
                return None;
            }
            std::str::from_utf8(text).ok()?.parse().ok()?
        }
    };
    (1..=MOST_HITS).contains(&n).then_some(n)
}

fn take_one(leases: &Leases, print: Fingerprint, hits: u32, now: u64) -> Take {
    let take = leases.take(print, hits, now);
    match take {
        Take::Missing => leases.count(Counter::Misses, 1),
        Take::Empty => leases.count(Counter::Empty, 1),
        Take::Corrupt => leases.count(Counter::Corrupt, 1),
        Take::Taken(_) | Take::Busy => {}
    }
    take
}

/// Hits that were taken for a request.
#[must_use]
pub struct Charge {
    receipts: Vec<(Receipt, u32)>,
}

impl Charge {
    /// Gives the hits back, because the request is left to the rate limit filter after all.
    pub fn give_back(self, leases: &Leases) {
        for (receipt, hits) in self.receipts {
            leases.give_back(receipt, hits);
        }
    }
}
