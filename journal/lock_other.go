//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package journal

import (
	"errors"
	"os"
)

// flock returns errors.ErrUnsupported: without locks, a reader could remove the files of a boot that is running.
func flock(*os.File) error { return errors.ErrUnsupported }
