//! The functions of Envoy's ABI, declared by hand: those that Envoy calls here, and those that the module calls in
//! `calls_structs` and `calls_pairs`. No panic leaves a function: a request whose function panics passes on unchanged.
//!
//! Each exported function has the signature of the header `abi.h` of its Envoy version. Envoy refuses a module that lacks
//! one of the required functions.

#[cfg(feature = "abi_1_36")]
#[path = "calls_pairs.rs"]
mod calls;
#[cfg(not(feature = "abi_1_36"))]
#[path = "calls_structs.rs"]
mod calls;
mod idle;
#[cfg(not(feature = "abi_1_36"))]
mod matching;

use crate::config::Config;
use crate::filter::{self, Charge, Request};
use crate::guard::guarded;
use crate::link::Link;
use crate::session;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// The ABI version that the module reports, with the terminating zero. Envoy 1.36 wants the hash of its header.
const ABI: &[u8] = if cfg!(feature = "abi_1_36") {
    b"7ee559f16f35086fa7dc9ed380e2efc6b4d89031a001fb504aa71eccd25882f7\0"
} else if cfg!(feature = "abi_v0_1_0") {
    b"v0.1.0\0"
} else {
    b"v0.2.0\0"
};

/// The name of the ABI version in HELLO.
const ABI_NAME: &str = if cfg!(feature = "abi_1_36") {
    "1.36"
} else if cfg!(feature = "abi_v0_1_0") {
    "v0.1.0"
} else {
    "v0.2.0"
};

const WARN: c_int = 3;
const INFO: c_int = 2;
const ERROR: c_int = 4;

/// A configuration of the filter, as the module keeps it for Envoy.
struct Handle {
    config: Config,
    link: Arc<Link>,
}

/// Workers share a configuration, and any thread may destroy it.
const _: () = {
    const fn shared<T: Send + Sync>() {}
    shared::<Handle>();
};

/// Returns the bytes of Envoy's buffer.
///
/// # Safety
/// A pointer that is not null must be valid for `length` bytes during `'a`.
unsafe fn bytes<'a>(pointer: *const c_char, length: usize) -> &'a [u8] {
    if pointer.is_null() || length == 0 || length > isize::MAX as usize {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts(pointer.cast(), length) }
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    ABI.as_ptr().cast()
}

/// Returns a configuration for Envoy, or null if the module must refuse it. `check` returns why it must refuse one that is valid.
fn config_new(text: &[u8], check: impl FnOnce(&Config) -> Result<(), String>) -> *const c_void {
    guarded(std::ptr::null(), || {
        let config = match Config::parse(text).and_then(|config| check(&config).map(|()| config)) {
            Ok(config) => config,
            Err(why) => {
                calls::log(ERROR, &format!("keyward: configuration: {why}"));
                return std::ptr::null();
            }
        };
        match Link::to(&config.socket, &config.node, ABI_NAME) {
            Ok(link) => Box::into_raw(Box::new(Handle { config, link })).cast_const().cast(),
            Err(e) => {
                calls::log(ERROR, &format!("keyward: cannot start the thread of the socket {}: {e}", config.socket));
                std::ptr::null()
            }
        }
    })
}

fn config_destroy(config: *mut c_void) {
    guarded((), || {
        if !config.is_null() {
            // SAFETY: the pointer is from `config_new`, and Envoy destroys a configuration once, after all that use it.
            drop(unsafe { Box::from_raw(config.cast::<Handle>()) });
        }
    });
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: *mut c_void) {
    config_destroy(config);
}

/// Returns the filter of a stream. It has no state of its own: it is its configuration.
#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_new(config: *const c_void, _: *mut c_void) -> *const c_void {
    config
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_destroy(_: *const c_void) {}

/// Takes the leases of a request. It always returns 0: Continue.
#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    envoy: *mut c_void,
    filter: *const c_void,
    _end: bool,
) -> c_int {
    guarded((), || {
        // SAFETY: the pointer is from `config_new`, and Envoy keeps a configuration as long as its filters.
        if let Some(handle) = unsafe { filter.cast::<Handle>().as_ref() } {
            request(handle, &calls::Stream::new(envoy));
        }
    });
    0
}

fn request(handle: &Handle, stream: &calls::Stream) {
    let state = &handle.config.state;
    if stream.limited() && !stream.marked(state) {
        take(handle, stream, || stream.mark(state));
    }
}

/// Takes the leases of a request, and reports whether every descriptor had one. `keep` is called with them: if it returns false,
/// they are given back.
fn take(handle: &Handle, request: &impl Request, keep: impl FnOnce() -> bool) -> bool {
    let news =
        |text: &str| calls::log(if text.starts_with("connected") { INFO } else { WARN }, &format!("keyward: {text}"));
    handle.link.with(news, |session| {
        let Some(session) = session else { return false };
        let Some(leases) = session.leases() else { return false };
        let config = &handle.config;
        let now = session::now();
        let charge: Option<Charge> = filter::take(config, request, &leases, now, |print, d, hits| {
            session.interest(print, config.domain.as_bytes(), d.entries(), hits, now);
        });
        match charge {
            Some(charge) if !keep() => charge.give_back(&leases),
            charge => return charge.is_some(),
        }
        false
    })
}

impl Request for calls::Stream {
    fn header(&self, name: &str, index: usize) -> (Option<&[u8]>, usize) {
        self.header_value(name, index)
    }
    fn remote_address(&self) -> Option<&[u8]> {
        self.attribute(SOURCE_ADDRESS)
    }
}

/// The attribute source.address in the ABI's enumeration.
const SOURCE_ADDRESS: c_int = 24;
