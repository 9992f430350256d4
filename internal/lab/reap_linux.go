package lab

import (
	"errors"
	"fmt"
	"syscall"
)

// Reap waits for one process and collects all others that end before, which become children of process 1 of a namespace. It
// returns the exit status of that process, or an error if a signal ended it.
func Reap(pid int) (int, error) {
	for {
		var status syscall.WaitStatus
		ended, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			return 0, err
		case ended == pid && status.Signaled():
			return 0, fmt.Errorf("the tests were ended by %s", status.Signal())
		case ended == pid:
			return status.ExitStatus(), nil
		}
	}
}
