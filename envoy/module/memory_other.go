//go:build !linux

package module

import (
	"errors"
	"os"
	"time"
)

func sharedMemory(int) ([]byte, *os.File, error) { return nil, nil, errors.ErrUnsupported }

func unmap([]byte) error { return nil }

func rights(*os.File) []byte { return nil }

// MonotonicNow returns 0 on systems without segments.
func MonotonicNow() time.Duration { return 0 }
