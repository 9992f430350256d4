//! Functions of the ABI in which the module does nothing. Those that return a status return 0: Continue.
//!
//! Arguments that are not read are left out. In the C calling convention the caller removes them.

use std::ffi::c_int;

macro_rules! continues {
    ($($name:ident)*) => {$(
        #[no_mangle]
        extern "C" fn $name() -> c_int {
            0
        }
    )*};
}

continues! {
    envoy_dynamic_module_on_http_filter_request_body
    envoy_dynamic_module_on_http_filter_request_trailers
    envoy_dynamic_module_on_http_filter_response_headers
    envoy_dynamic_module_on_http_filter_response_body
    envoy_dynamic_module_on_http_filter_response_trailers
    envoy_dynamic_module_on_http_filter_local_reply
    envoy_dynamic_module_on_http_filter_stream_complete
    envoy_dynamic_module_on_http_filter_scheduled
    envoy_dynamic_module_on_http_filter_http_callout_done
    envoy_dynamic_module_on_http_filter_http_stream_headers
    envoy_dynamic_module_on_http_filter_http_stream_data
    envoy_dynamic_module_on_http_filter_http_stream_trailers
    envoy_dynamic_module_on_http_filter_http_stream_complete
    envoy_dynamic_module_on_http_filter_http_stream_reset
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark
}
