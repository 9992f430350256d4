//! One connection to the sidecar, with its segment.

use crate::fingerprint::{Entry, Fingerprint};
use crate::interest::Pace;
use crate::lease::Leases;
use crate::map::Map;
use crate::message;
use rustix::net::{send, shutdown, SendFlags, Shutdown};
use rustix::time::{clock_gettime, ClockId};
use std::os::fd::OwnedFd;

/// A connection whose segment is mapped. Methods may be called by several threads.
pub struct Session {
    map: Map,
    socket: OwnedFd,
    pace: Pace,
}

impl Session {
    pub(crate) fn new(map: Map, socket: OwnedFd) -> Session {
        Session { map, socket, pace: Pace::default() }
    }

    /// Returns the leases.
    pub fn leases(&self) -> Option<Leases<'_>> {
        self.map.leases()
    }

    /// Asks for a lease of a descriptor that has none, unless that was done lately. It does not block: if the socket is
    /// full, the message is dropped.
    pub fn interest<'a>(
        &self,
        print: Fingerprint,
        domain: &[u8],
        entries: impl ExactSizeIterator<Item = Entry<'a>>,
        hits: u32,
        now: u64,
    ) {
        let Some(hits) = self.pace.due(print, hits, now / 1_000_000) else { return };
        if let Some(m) = message::interest(domain, entries, hits) {
            let _ = send(&self.socket, &m, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Ends the connection. The sidecar then takes the leases back.
    pub(crate) fn close(&self) {
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
pub fn now() -> u64 {
    let t = clock_gettime(ClockId::Monotonic);
    (t.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(t.tv_nsec as u64)
}
