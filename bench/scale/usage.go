package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// usage is the processor time of this process and the traffic on loopback, up to an instant.
type usage struct {
	at      time.Time
	cpu     time.Duration
	bytes   float64 // over loopback, with headers
	packets float64
}

// used looks at both.
func used() (u usage, err error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return u, err
	}
	u.at, u.cpu = time.Now(), time.Duration(r.Utime.Nano()+r.Stime.Nano())
	u.bytes, u.packets, err = loopback()
	return u, err
}

// since returns the difference from u to v.
func (v usage) since(u usage) spent {
	return spent{seconds: v.at.Sub(u.at).Seconds(), cpu: (v.cpu - u.cpu).Seconds(), bytes: v.bytes - u.bytes, packets: v.packets - u.packets}
}

// spent is a difference of two usages.
type spent struct{ seconds, cpu, bytes, packets float64 }

// loopback reads what the kernel has counted on lo: all of the network namespace.
func loopback() (bytes, packets float64, err error) {
	f, err := os.Open("/proc/self/net/dev")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(s.Text()), "lo:"); ok {
			_, err := fmt.Sscan(rest, &bytes, &packets)
			return bytes, packets, err
		}
	}
	return 0, 0, errors.New("no loopback interface")
}

// alone returns an error unless loopback is the only interface, so that no other program uses this network namespace.
func alone() error {
	b, err := os.ReadFile("/proc/self/net/dev")
	if err != nil {
		return err
	}
	if n := strings.Count(string(b), ":"); n != 1 {
		return fmt.Errorf("%d network interfaces: what others send would count; run under: unshare -n sh -c 'ip link set lo up && exec \"$@\"' --", n)
	}
	return nil
}

// live is the memory of heap and stacks in use, after a collection.
func live() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc + m.StackInuse)
}

// await looks until ok says so.
func await(what string, patience time.Duration, ok func() bool) error {
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not within %v: %s", patience, what)
		}
	}
	return nil
}
