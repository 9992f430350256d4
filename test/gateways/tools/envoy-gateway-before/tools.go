//go:build tools

// Package tools pins the Envoy Gateway that the gateway tests upgrade.
package tools

import _ "github.com/envoyproxy/gateway/cmd/envoy-gateway"
