//! Callbacks of Envoy since 1.38 (ABI v0.1.0 and v0.2.0): buffers are structures.

use super::bytes;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Buffer {
    pub(super) pointer: *const c_char,
    pub(super) length: usize,
}

impl Buffer {
    pub(super) fn of(text: &str) -> Buffer {
        Buffer { pointer: text.as_ptr().cast(), length: text.len() }
    }
}

extern "C" {
    fn envoy_dynamic_module_callback_log(level: c_int, message: Buffer);
    fn envoy_dynamic_module_callback_http_get_header(
        filter: *mut c_void,
        kind: c_int,
        key: Buffer,
        result: *mut Buffer,
        index: usize,
        count: *mut usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: *mut c_void,
        attribute: c_int,
        result: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
        filter: *mut c_void,
        key: Buffer,
        value: Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_filter_state_bytes(
        filter: *mut c_void,
        key: Buffer,
        result: *mut Buffer,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_cluster_name(filter: *mut c_void, result: *mut Buffer) -> bool;
}

/// The headers of the request, in the ABI's enumeration of headers and trailers.
pub(super) const REQUEST: c_int = 0;

/// A callback that finds a value of a header, and how many the header has.
type GetHeader = unsafe extern "C" fn(*mut c_void, c_int, Buffer, *mut Buffer, usize, *mut usize) -> bool;

/// Returns a value of a header of the request, and how many the header has.
///
/// # Safety
/// `from` must be what `get` expects, and Envoy must own its headers during `'a`. The module changes none.
pub(super) unsafe fn header_value<'a>(
    get: GetHeader,
    from: *mut c_void,
    name: &str,
    index: usize,
) -> (Option<&'a [u8]>, usize) {
    let (mut value, mut count) = (Buffer { pointer: null(), length: 0 }, 0);
    // SAFETY: by the caller. The other pointers live during the call.
    unsafe {
        let found = get(from, REQUEST, Buffer::of(name), &mut value, index, &mut count);
        (found.then(|| bytes(value.pointer, value.length)), count)
    }
}

/// Writes a line to Envoy's log.
pub(super) fn log(level: c_int, message: &str) {
    // SAFETY: the buffer lives during the call.
    unsafe { envoy_dynamic_module_callback_log(level, Buffer::of(message)) }
}

/// A stream during one of Envoy's calls.
pub(super) struct Stream {
    filter: *mut c_void,
}

impl Stream {
    pub(super) fn new(filter: *mut c_void) -> Stream {
        Stream { filter }
    }

    pub(super) fn header_value(&self, name: &str, index: usize) -> (Option<&[u8]>, usize) {
        // SAFETY: Envoy owns the filter and its headers during its call of the module.
        unsafe { header_value(envoy_dynamic_module_callback_http_get_header, self.filter, name, index) }
    }

    pub(super) fn attribute(&self, id: c_int) -> Option<&[u8]> {
        let mut value = Buffer { pointer: null(), length: 0 };
        // SAFETY: as above.
        unsafe {
            envoy_dynamic_module_callback_http_filter_get_attribute_string(self.filter, id, &mut value)
                .then(|| bytes(value.pointer, value.length))
        }
    }

    /// Reports whether the rate limit filter can limit the request: it has a route to a cluster.
    pub(super) fn limited(&self) -> bool {
        let mut value = Buffer { pointer: null(), length: 0 };
        // SAFETY: as above.
        unsafe { envoy_dynamic_module_callback_http_get_cluster_name(self.filter, &mut value) }
    }

    /// Marks the request in the filter state, which no client can write.
    pub(super) fn mark(&self, key: &str) -> bool {
        // SAFETY: Envoy copies both texts.
        unsafe {
            envoy_dynamic_module_callback_http_set_filter_state_bytes(self.filter, Buffer::of(key), Buffer::of("1"))
        }
    }

    /// Reports whether the request is marked.
    pub(super) fn marked(&self, key: &str) -> bool {
        let mut value = Buffer { pointer: null(), length: 0 };
        // SAFETY: all pointers live during the call.
        unsafe { envoy_dynamic_module_callback_http_get_filter_state_bytes(self.filter, Buffer::of(key), &mut value) }
    }
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    _: *mut c_void,
    _name: Buffer,
    config: Buffer,
) -> *const c_void {
    // SAFETY: Envoy owns the buffer during this call.
    super::config_new(unsafe { bytes(config.pointer, config.length) }, |_| Ok(()))
}
