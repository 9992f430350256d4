package lab

import (
	"fmt"
	"strings"
)

// TypedConfig returns a message of Envoy's API as YAML, in one line, with fields as `name: value, name: value`.
func TypedConfig(name, fields string) string {
	return fmt.Sprintf(`{"@type": type.googleapis.com/%s, %s}`, name, fields)
}

// StaticCluster returns a cluster of one loopback address as an item of YAML; http2 for gRPC.
func StaticCluster(name, addr string, http2 bool) string {
	_, port, _ := strings.Cut(addr, ":")
	options := ""
	if http2 {
		options = "typed_extension_protocol_options: {envoy.extensions.upstreams.http.v3.HttpProtocolOptions: " +
			TypedConfig("envoy.extensions.upstreams.http.v3.HttpProtocolOptions", "explicit_http_config: {http2_protocol_options: {}}") + "}, "
	}
	return fmt.Sprintf("  - {name: %s, connect_timeout: 1s, type: STATIC, %sload_assignment: {cluster_name: %s, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]}}\n",
		name, options, name, port)
}
