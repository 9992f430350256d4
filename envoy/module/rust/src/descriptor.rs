//! Descriptors of a request, as Envoy's rate limit filter builds them.

use crate::config::Action;
use crate::filter::Request;
use crate::fingerprint::Entry;
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A descriptor: its entries in order.
pub struct Descriptor<'a> {
    entries: Vec<(&'a str, Cow<'a, [u8]>)>,
}

impl<'a> Descriptor<'a> {
    /// Builds the descriptor of a request.
    pub fn build(actions: &'a [Action], request: &'a impl Request) -> Built<'a> {
        let mut entries = Vec::with_capacity(actions.len());
        for action in actions {
            match value(action, request) {
                Found::Entry(key, value) => entries.push((key, value)),
                Found::Skip => {}
                Found::Absent => return Built::Absent,
                Found::Unclear => return Built::Unclear,
            }
        }
        let texts = entries.iter().all(|(_, v): &(_, Cow<[u8]>)| std::str::from_utf8(v).is_ok());
        if entries.is_empty() || !texts {
            return Built::Unclear; // gRPC has only UTF-8, so the sidecar would receive other texts
        }
        Built::Descriptor(Descriptor { entries })
    }

    /// Returns the keys and values.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry<'_>> {
        self.entries.iter().map(|(k, v)| (k.as_bytes(), &v[..]))
    }
}

/// What `Descriptor::build` returns.
pub enum Built<'a> {
    /// The descriptor that the rate limit filter sends.
    Descriptor(Descriptor<'a>),
    /// The request lacks one of the values: the rate limit filter leaves the descriptor out.
    Absent,
    /// The module is not sure of what the rate limit filter sends.
    Unclear,
}

enum Found<'a> {
    Entry(&'a str, Cow<'a, [u8]>),
    Skip,
    Absent,
    Unclear,
}

fn value<'a>(action: &'a Action, request: &'a impl Request) -> Found<'a> {
    let optional = |key: &'a str, value: Option<Cow<'a, [u8]>>, skip: bool| match value {
        Some(value) => Found::Entry(key, value),
        None if skip => Found::Skip,
        None => Found::Absent,
    };
    match action {
        Action::RequestHeaders { header, key, skip } => {
            optional(key, request.header(header, 0).0.map(Cow::Borrowed), *skip)
        }
        Action::QueryParameters { parameter, key, skip } => {
            let path = request.header(":path", 0).0.unwrap_or_default();
            optional(key, query(path, parameter.as_bytes()).map(Cow::Owned), *skip)
        }
        Action::GenericKey { key, value } => Found::Entry(key, Cow::Borrowed(value.as_bytes())),
        Action::HeaderValueMatch { key, value, expect, headers } => {
            let Some(all) = headers.iter().try_fold(true, |all, h| Some(h.matches(request)? && all)) else {
                return Found::Unclear;
            };
            if all == *expect {
                Found::Entry(key, Cow::Borrowed(value.as_bytes()))
            } else {
                Found::Absent
            }
        }
        Action::RemoteAddress => {
            optional("remote_address", request.remote_address().and_then(host).map(Cow::Borrowed), false)
        }
        Action::MaskedRemoteAddress { v4, v6 } => {
            let address =
                request.remote_address().and_then(host).and_then(|h| std::str::from_utf8(h).ok()?.parse().ok());
            match address.map(|a| masked(a, *v4, *v6)) {
                None => Found::Absent,
                Some(None) => Found::Unclear,
                Some(Some(text)) => Found::Entry("masked_remote_address", Cow::Owned(text.into_bytes())),
            }
        }
    }
}

/// Returns the address of `address:port` or `[address]:port`.
fn host(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().rposition(|&b| b == b':')?;
    let host = &text[..end];
    match host {
        [b'[', inner @ .., b']'] => Some(inner),
        _ if host.contains(&b':') || host.contains(&b'/') || host.is_empty() => None,
        _ => Some(host),
    }
}

/// Returns the network of an address. It is `None` if Envoy writes its last 32 bits as an IPv4 address.
fn masked(address: IpAddr, v4: u8, v6: u8) -> Option<String> {
    match address {
        IpAddr::V4(a) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(v4)).unwrap_or(0);
            Some(format!("{}/{v4}", Ipv4Addr::from(u32::from(a) & mask)))
        }
        IpAddr::V6(a) => {
            let bits = u128::from(a) & u128::MAX.checked_shl(128 - u32::from(v6)).unwrap_or(0);
            let mixed = bits >> 48 == 0 && bits > 0xffff;
            (!mixed).then(|| format!("{}/{v6}", Ipv6Addr::from(bits)))
        }
    }
}

/// Returns the first value of a query parameter, decoded.
fn query(path: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let start = path.iter().position(|&b| b == b'?')? + 1;
    path[start..].split(|&b| b == b'&').find_map(|pair| {
        let (key, value) = match pair.iter().position(|&b| b == b'=') {
            Some(i) => (&pair[..i], &pair[i + 1..]),
            None => (pair, &b""[..]),
        };
        (decoded(key) == name).then(|| decoded(value))
    })
}

fn decoded(text: &[u8]) -> Vec<u8> {
    let digit = |b: Option<&u8>| b.and_then(|&b| (b as char).to_digit(16));
    let mut out = Vec::with_capacity(text.len());
    let mut i = 0;
    while i < text.len() {
        match (text[i], digit(text.get(i + 1)), digit(text.get(i + 2))) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                i += 3;
            }
            (b, ..) => {
                out.push(b);
                i += 1;
            }
        }
    }
    out
}
