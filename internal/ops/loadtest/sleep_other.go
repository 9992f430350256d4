//go:build !linux

package loadtest

import "time"

func exactTimers() {}

func sleep(d time.Duration) { time.Sleep(d) }
