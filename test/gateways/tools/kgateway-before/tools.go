//go:build tools

// Package tools pins the kgateway that the gateway tests upgrade.
package tools

import _ "github.com/kgateway-dev/kgateway/v2/cmd/kgateway"
