package main

import (
	"os"
	"testing"
	"time"
)

// The figures read for a process match what it did: this one maps and touches 64 MiB, and sleeps.
func TestProcessIsMeasured(t *testing.T) {
	rss, pss, anonymous, err := memory("/proc/self")
	if os.IsNotExist(err) {
		t.Skip(err)
	}
	if err != nil || rss <= 0 || pss <= 0 || pss > rss || anonymous <= 0 || anonymous > rss {
		t.Fatal(rss, pss, anonymous, err)
	}
	const size = 64 << 20
	b := make([]byte, size)
	for i := 0; i < size; i += 4096 {
		b[i] = 1
	}
	more, _, _, err := memory("/proc/self")
	if err != nil || more < rss+size*3/4 {
		t.Errorf("%v bytes after %v: %v", more, rss, err)
	}
	before, err1 := switches("/proc/self")
	const naps = 20
	for range naps {
		time.Sleep(2 * time.Millisecond)
	}
	after, err2 := switches("/proc/self")
	if err1 != nil || err2 != nil || after < before+1 {
		t.Errorf("%v switches after %v: %v, %v", after, before, err1, err2)
	}
	b[0] = b[size-1]
}

func TestAddressesDiffer(t *testing.T) {
	seen := map[string]bool{}
	for i := range 2000 {
		seen[otherHost(i)] = true
	}
	if len(seen) != 2000 {
		t.Errorf("%d addresses for 2000 members", len(seen))
	}
}
