//go:build !linux

package bench

import "time"

func exactTimers() {}

func sleep(d time.Duration) { time.Sleep(d) }
