// Command idle measures the cost of a sidecar without requests, as a member of clusters of several sizes.
//
// One sidecar is a process of its own, with mTLS and a gossip key, and is measured from outside. The others run in this
// program: gossip, streams and heartbeats are real, but they have streams with the measured one alone, because a mesh
// among all of them would take most of a machine. To the measured one that makes no difference.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

func main() {
	sizes := flag.String("members", "3,100,300", "sizes of cluster, the measured member included")
	bin := flag.String("bin", "bin", "directory of sidecar and keyward")
	// A sidecar gives memory back after ten seconds of rest and then once a minute: this is the second half of that minute.
	settle := flag.Duration("settle", 40*time.Second, "wait this long after the ring is whole")
	over := flag.Duration("over", 30*time.Second, "measure for this long")
	profiles := flag.String("profiles", "", "write heap, processor and goroutine profiles of the sidecar to this directory")
	keep := flag.String("dir", "", "keep logs and certificates in this directory")
	floor := flag.Bool("floor", true, "then measure a program that does only what no sidecar can leave out")
	flag.Parse()
	fmt.Printf("%8s %8s %8s %8s %8s %8s %8s %10s %11s %9s\n",
		"members", "RSS MiB", "PSS MiB", "anon MiB", "heap MiB", "stack MiB", "goroutines", "core %", "switches/s", "allocs/s")
	for _, s := range strings.Split(*sizes, ",") {
		n, err := strconv.Atoi(s)
		if err == nil {
			err = measure(n, *bin, *keep, *settle, *over, *profiles, *floor)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "idle: %s members: %v\n", s, err)
			os.Exit(1)
		}
	}
}

// measure runs a cluster of n members and prints one row. The sidecar is asked only after it has been watched from outside, as
// answering touches memory that it does without at rest; profiles, which cost more than all else, are taken last.
func measure(n int, bin, keep string, settle, over time.Duration, profiles string, floor bool) (err error) {
	c, err := startCluster(n, bin, keep)
	defer func() { err = errors.Join(err, c.stop()) }()
	if err != nil {
		return err
	}
	time.Sleep(settle)
	u, err := watch(c.measured.Process, over)
	if err != nil {
		return err
	}
	said, err := c.ask(over / 3)
	if err != nil {
		return err
	}
	const MiB = 1 << 20
	fmt.Printf("%8d %8.1f %8.1f %8.1f %8.1f %9.1f %10.0f %10.2f %11.0f %9.0f\n", n,
		u.rss/MiB, u.pss/MiB, u.anonymous/MiB, said.heap/MiB, said.stacks/MiB, said.goroutines, 100*u.core, u.switches, said.mallocs)
	if profiles != "" {
		err = c.profile(profiles, over)
	}
	if !floor || err != nil {
		return err
	}
	c.halt()
	if u, err = c.floor(settle, over); err == nil {
		fmt.Printf("%8s %8.1f %8.1f %8.1f %8s %9s %10s %10.2f %11.0f %9s\n",
			"floor", u.rss/MiB, u.pss/MiB, u.anonymous/MiB, "-", "-", "-", 100*u.core, u.switches, "-")
	}
	return err
}

// profile writes the sidecar's profiles.
func (c *cluster) profile(dir string, over time.Duration) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*over+30*time.Second)
	defer cancel()
	seconds := strconv.Itoa(max(1, int(over.Seconds())-1))
	var errs []error
	for name, query := range map[string]string{
		"heap": "heap?gc=1", "goroutines": "goroutine?debug=1", "cpu": "profile?seconds=" + seconds, "allocs": "allocs?seconds=" + seconds,
	} {
		b, err := lab.Get(ctx, "http://"+c.measured.Debug+"/debug/pprof/"+query)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d.pprof", name, c.n)), b, 0o644)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
