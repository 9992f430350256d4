//go:build tools

// Package tools pins the Contour that the gateway tests upgrade.
package tools

import _ "github.com/projectcontour/contour/cmd/contour"
