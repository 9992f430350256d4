//! What happens to a request: its leases are taken, or it is left to the rate limit filter.

use crate::config::Config;
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

/// Hits of a request for each descriptor.
const HITS: u32 = 1;

/// Takes the leases of a request, and reports whether every descriptor had one. Otherwise none is taken, and `interest`
/// is called for the descriptors without a lease. `now` is the time of CLOCK_MONOTONIC in nanoseconds.
pub fn take(
    config: &Config,
    request: &impl Request,
    leases: &Leases,
    now: u64,
    mut interest: impl FnMut(Fingerprint, &Descriptor),
) -> Option<Charge> {
    let mut prints: Vec<(Fingerprint, Descriptor)> = Vec::with_capacity(config.limits.len());
    for actions in &config.limits {
        let d = match Descriptor::build(actions, request) {
            Built::Descriptor(d) => d,
            Built::Absent => continue,
            Built::Unclear => return None,
        };
        prints.push((fingerprint::of(leases.key(), config.domain.as_bytes(), d.entries())?, d));
    }
    let mut charge = Charge { receipts: Vec::with_capacity(prints.len()) };
    for (i, (print, _)) in prints.iter().enumerate() {
        match take_one(leases, *print, now) {
            Take::Taken(receipt) => charge.receipts.push(receipt),
            failed => {
                charge.give_back(leases);
                // The lease of a descriptor that follows may be missing as well. It is asked for by the next request.
                if matches!(failed, Take::Missing | Take::Empty) {
                    interest(*print, &prints[i].1);
                }
                return None;
            }
        }
    }
    leases.count(Counter::Taken, charge.receipts.len() as u64);
    (!charge.receipts.is_empty()).then_some(charge)
}

fn take_one(leases: &Leases, print: Fingerprint, now: u64) -> Take {
    let take = leases.take(print, HITS, now);
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
    receipts: Vec<Receipt>,
}

impl Charge {
    /// Gives the hits back, because the request is left to the rate limit filter after all.
    pub fn give_back(self, leases: &Leases) {
        for receipt in self.receipts {
            leases.give_back(receipt, HITS);
        }
    }
}
