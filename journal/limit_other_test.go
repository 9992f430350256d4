//go:build !linux

package journal_test

import "errors"

// writeLimited is a test for Linux.
func writeLimited(string) error { return errors.ErrUnsupported }
