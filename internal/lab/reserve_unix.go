//go:build unix

package lab

import (
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// reservePort reserves a port for this process until it ends, so that labs of several processes never have the same
// port, also while a member restarts. It returns false if another process has reserved the port. Without a directory for
// the reservations it reserves nothing and returns true.
func reservePort(port int) bool {
	dir := filepath.Join(os.TempDir(), "keyward-lab-ports")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return true
	}
	f, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(port)), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return true
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return false
	}
	reservations = append(reservations, f) // the lock lasts as long as the file is open
	return true
}

// reservations holds the files of the ports that this process has reserved. The mutex of given guards it.
var reservations []*os.File
