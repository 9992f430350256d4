package main

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// The aims of the decision path without the transport.
const (
	aimNanoseconds = 500
	aimAllocations = 0
)

// path is the whole of a lone member but its transport.
type path struct {
	rules   *config.Rules
	node    *owner.Node
	peer    *peer.Peer
	service *rls.Service
	entries [][]config.Entry // one a key
	wire    [][]byte         // one encoded request a key
}

func newPath(keys int) (*path, error) {
	p := &path{}
	var err error
	if p.rules, err = config.Load([]config.File{{Name: "bench.yaml", Content: []byte(rules)}}, config.Options{Cluster: "bench"}); err != nil {
		return nil, err
	}
	p.node = owner.New(owner.Options{Self: "a"})
	if p.peer, err = peer.New(peer.Options{Node: p.node, Self: "a"}); err != nil {
		return nil, err
	}
	p.peer.SetView(&membership.View{Self: "a", Ring: ring.New([]ring.Member{{ID: "a", Weight: 1}}), NRef: 1, Joined: true})
	p.service = rls.New(rls.Options{Decider: p.peer, Stats: stats.New(stats.Options{}), Registerer: prometheus.NewRegistry()})
	p.service.SetRules(p.rules, rls.Switches{})
	for i := range keys {
		req := request(i)
		var entries []config.Entry
		for _, e := range req.Descriptors[0].Entries {
			entries = append(entries, config.Entry{Key: e.Key, Value: e.Value})
		}
		message, err := proto.Marshal(req)
		if err != nil {
			return nil, err
		}
		p.entries, p.wire = append(p.entries, entries), append(p.wire, message)
	}
	return p, nil
}

// rlsCaller has a timeout and no key, as the load's calls do.
var rlsCaller = rls.Caller{Timeout: callTimeout}

// step is a part of the path, for one call of the given key.
type step struct {
	name string
	aim  bool // it is the decision path: the aims are its
	run  func(key int)
}

func (p *path) steps() []step {
	var m config.Match
	qs, as := make([]owner.Request, 1), make([]owner.Result, 1)
	match := func(key int) {
		p.rules.Match("bench", p.entries[key], nil, &m)
		qs[0] = owner.Request{Key: owner.Key(m.Digest), RingPos: m.Owner, Rule: m.Limit, Hits: 1}
	}
	now := p.peer.Now()
	out := make([]byte, 0, 256)
	return []step{
		{name: "match two entries, digest, owner's place (config.Match)", run: match},
		{name: "count (owner.Node.TakeAll)", run: func(key int) {
			qs[0].Key[0] = uint64(key) * 0x9e3779b97f4a7c15
			p.node.DecideAll(now, false, qs, as)
		}},
		{name: "decision path: match and count", aim: true, run: func(key int) {
			match(key)
			p.node.DecideAll(now, false, qs, as)
		}},
		{name: "the same with peer's clock (peer.Peer.Decide)", aim: true, run: func(key int) {
			match(key)
			p.peer.Decide(policy.Deadline{}, false, qs, as)
		}},
		{name: "decode, decide, statistics, encode (rls.Service)", run: func(key int) {
			c := p.service.NewCall()
			_ = p.service.Decode(c, p.wire[key])
			p.service.Decide(c, rlsCaller)
			out = c.Response.Append(out[:0])
			p.service.Release(c)
		}},
	}
}

// microbench prints CPU time and allocations of the steps of a decision.
func microbench(w io.Writer) error {
	const keys, runs, each = 1000, 7, 200_000
	p, err := newPath(keys)
	if err != nil {
		return err
	}
	defer p.peer.Close()
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "CPU time of one thread, %d keys, median (min..max) of %d runs of %d calls\tns\t\tallocations\t\t\n", keys, runs, each)
	missed := false
	for _, s := range p.steps() {
		ns, err := threadTime(runs, each, func(i int) { s.run(i % keys) })
		if err != nil {
			return err
		}
		i := 0
		allocs := testing.AllocsPerRun(10*keys, func() { s.run(i % keys); i++ })
		verdict := ""
		if s.aim {
			verdict = "aim met"
			if ns[len(ns)/2] > aimNanoseconds || allocs > aimAllocations {
				verdict, missed = "AIM MISSED", true
			}
		}
		fmt.Fprintf(t, "%s\t%.0f\t(%.0f..%.0f)\t%g\t%s\t\n", s.name, ns[len(ns)/2], ns[0], ns[len(ns)-1], allocs, verdict)
	}
	_ = t.Flush()
	fmt.Fprintf(w, "aim of the decision path: under %d ns and %d allocations\n", aimNanoseconds, aimAllocations)
	if missed {
		return errors.New("the decision path misses its aim")
	}
	return nil
}

// threadTime is the nanoseconds of CPU that a call takes, sorted, one value a run. Not the wall's time: others use the
// machine, too.
func threadTime(runs, each int, call func(i int)) ([]float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var ns []float64
	for range runs + 1 {
		before, err1 := threadCPU()
		for i := range each {
			call(i)
		}
		after, err2 := threadCPU()
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		ns = append(ns, float64(after-before)/float64(each))
	}
	ns = ns[1:] // the first one warms up
	slices.Sort(ns)
	return ns, nil
}

func threadCPU() (time.Duration, error) {
	var t unix.Timespec // getrusage(2) would count whole ticks of the kernel
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano()), err
}
