//go:build tools

// Package tools pins the Istio that the gateway tests upgrade.
package tools

import _ "istio.io/istio/pilot/cmd/pilot-discovery"
