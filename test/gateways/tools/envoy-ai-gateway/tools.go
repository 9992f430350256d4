//go:build tools

// Package tools pins the Envoy AI Gateway that the gateway tests run.
package tools

import (
	_ "github.com/envoyproxy/ai-gateway/cmd/controller"
	_ "github.com/envoyproxy/ai-gateway/cmd/extproc"
)
