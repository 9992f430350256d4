//! Callbacks of Envoy 1.36: buffers are pairs of a pointer and a length.

use super::bytes;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::null;

extern "C" {
    fn envoy_dynamic_module_callback_log(level: c_int, message: *const c_char, length: usize);
    fn envoy_dynamic_module_callback_http_get_request_header(
        filter: *mut c_void,
        key: *const c_char,
        key_length: usize,
        result: *mut *const c_char,
        result_length: *mut usize,
        index: usize,
    ) -> usize;
    fn envoy_dynamic_module_callback_http_filter_get_attribute_string(
        filter: *mut c_void,
        attribute: c_int,
        result: *mut *const c_char,
        result_length: *mut usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_set_filter_state_bytes(
        filter: *mut c_void,
        key: *const c_char,
        key_length: usize,
        value: *const c_char,
        value_length: usize,
    ) -> bool;
    fn envoy_dynamic_module_callback_http_get_filter_state_bytes(
        filter: *mut c_void,
        key: *const c_char,
        key_length: usize,
        result: *mut *const c_char,
        result_length: *mut usize,
    ) -> bool;
}

/// Writes a line to Envoy's log.
pub(super) fn log(level: c_int, message: &str) {
    // SAFETY: the text lives during the call.
    unsafe { envoy_dynamic_module_callback_log(level, message.as_ptr().cast(), message.len()) }
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
        let (mut value, mut length) = (null(), 0);
        // SAFETY: all pointers live during the call. Envoy owns the value during its call of the module, unless the
        // module changes headers, which it does not.
        unsafe {
            let count = envoy_dynamic_module_callback_http_get_request_header(
                self.filter,
                name.as_ptr().cast(),
                name.len(),
                &mut value,
                &mut length,
                index,
            );
            ((index < count && !value.is_null()).then(|| bytes(value, length)), count)
        }
    }

    pub(super) fn attribute(&self, id: c_int) -> Option<&[u8]> {
        let (mut value, mut length) = (null(), 0);
        // SAFETY: as above.
        unsafe {
            envoy_dynamic_module_callback_http_filter_get_attribute_string(self.filter, id, &mut value, &mut length)
                .then(|| bytes(value, length))
        }
    }

    /// Reports whether the rate limit filter can limit the request. This Envoy has no callback for the cluster.
    pub(super) fn limited(&self) -> bool {
        true
    }

    /// Marks the request in the filter state, which no client can write.
    pub(super) fn mark(&self, key: &str) -> bool {
        // SAFETY: Envoy copies both texts.
        unsafe {
            envoy_dynamic_module_callback_http_set_filter_state_bytes(
                self.filter,
                key.as_ptr().cast(),
                key.len(),
                b"1".as_ptr().cast(),
                1,
            )
        }
    }

    /// Reports whether the request is marked.
    pub(super) fn marked(&self, key: &str) -> bool {
        let (mut value, mut length) = (null(), 0);
        // SAFETY: all pointers live during the call.
        unsafe {
            envoy_dynamic_module_callback_http_get_filter_state_bytes(
                self.filter,
                key.as_ptr().cast(),
                key.len(),
                &mut value,
                &mut length,
            )
        }
    }
}

#[no_mangle]
extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    _: *mut c_void,
    _name: *const c_char,
    _name_length: usize,
    config: *const c_char,
    length: usize,
) -> *const c_void {
    // SAFETY: Envoy owns the buffer during this call.
    super::config_new(unsafe { bytes(config, length) }, |_| Ok(()))
}
