//go:build !linux

package journal

import (
	"errors"
	"os"
)

// preallocate does nothing: the file grows as it is written.
func preallocate(*os.File, int64) error { return errors.ErrUnsupported }

// datasync makes the file durable.
func datasync(f *os.File) error { return f.Sync() }
