//! The module as a matcher of the rate limit filter, which costs less than a filter of its own: a request whose leases are taken
//! matches. A matcher sees the headers of a request, and neither its addresses nor its route.

use super::calls::{header_value, Buffer, REQUEST};
use super::{bytes, Handle};
use crate::config::Config;
use crate::filter::Request;
use crate::guard::guarded;
use std::ffi::{c_int, c_void};

extern "C" {
    fn envoy_dynamic_module_callback_matcher_get_headers_size(input: *mut c_void, kind: c_int) -> usize;
    fn envoy_dynamic_module_callback_matcher_get_header_value(
        input: *mut c_void,
        kind: c_int,
        key: Buffer,
        result: *mut Buffer,
        index: usize,
        count: *mut usize,
    ) -> bool;
}

/// What a matcher sees of a request during one of Envoy's calls.
struct Input {
    input: *mut c_void,
}

impl Input {
    /// Reports whether Envoy shows the request. It does not if another filter has answered the request before this one saw it:
    /// then it matches the response.
    fn has_request(&self) -> bool {
        // SAFETY: Envoy's pointer lives during its call of the module.
        unsafe { envoy_dynamic_module_callback_matcher_get_headers_size(self.input, REQUEST) > 0 }
    }
}

impl Request for Input {
    fn header(&self, name: &str, index: usize) -> (Option<&[u8]>, usize) {
        // SAFETY: Envoy owns the input and its headers during its call of the module.
        unsafe { header_value(envoy_dynamic_module_callback_matcher_get_header_value, self.input, name, index) }
    }

    /// Returns none: `Config::needs_headers_only` has refused the actions that ask for it.
    fn remote_address(&self) -> Option<&[u8]> {
        None
    }
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_matcher_config_new(
    _: *mut c_void,
    _name: Buffer,
    config: Buffer,
) -> *const c_void {
    // SAFETY: Envoy owns the buffer during this call.
    super::config_new(unsafe { bytes(config.pointer, config.length) }, Config::needs_headers_only)
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_matcher_config_destroy(config: *mut c_void) {
    super::config_destroy(config);
}

/// Takes the leases of a request, and reports whether it did.
#[no_mangle]
extern "C" fn envoy_dynamic_module_on_matcher_match(config: *const c_void, input: *mut c_void) -> bool {
    guarded(false, || {
        // SAFETY: the pointer is from `config_new`, and Envoy keeps a configuration as long as its matchers.
        let Some(handle) = (unsafe { config.cast::<Handle>().as_ref() }) else { return false };
        let request = Input { input };
        request.has_request() && super::take(handle, &request, || true)
    })
}
