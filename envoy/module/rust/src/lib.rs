//! A dynamic module for Envoy. It spends leases of its pod's sidecar, and leaves every other request to Envoy's rate
//! limit filter.
//!
//! The sidecar charges a lease at the owner of the key before it writes the lease to a segment of shared memory. For a
//! request, the module builds the descriptors that the rate limit filter would send, and takes a hit from the lease of each.
//! Then Envoy skips the rate limit filter: the module is either a matcher of it, or a filter before it that marks the
//! request in Envoy's filter state. Without a lease for each descriptor, the module changes nothing.
//!
//! Only `edge` and `map` contain unsafe code: the functions of Envoy's ABI, and the mapping of the segment.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub mod config;
pub mod descriptor;
#[cfg(any(feature = "abi_1_36", feature = "abi_v0_1_0", feature = "abi_v0_2_0"))]
#[allow(unsafe_code)]
mod edge;
pub mod filter;
pub mod fingerprint;
pub mod guard;
pub mod interest;
pub mod lease;
pub mod link;
#[allow(unsafe_code)]
mod map;
pub mod matcher;
pub mod message;
pub mod session;
