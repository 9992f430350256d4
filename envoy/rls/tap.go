package rls

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// TapOptions choose the decisions that a tap receives. The zero value of a field chooses all.
type TapOptions struct {
	Domain string  // only this domain
	Text   string  // only descriptors that contain this text; see DecisionSample.Descriptor
	Over   bool    // only decisions over the limit
	Rate   float64 // decisions per second at most; default 10
}

// DecisionSample is the decision about one descriptor.
type DecisionSample struct {
	Time       time.Time // when its call was received
	Domain     string
	Descriptor string // k=v,k2=v2; at most the first 1 KiB
	Rule       string // full key of the rule that matched; empty if none did, or if the request brought its own limit
	Hits       uint64
	Limit      uint32
	Remaining  uint32
	Owner      uint64 // ring position of the key
	Code       Code
	Op         owner.Op
	Path       owner.Path
	Authority  owner.Authority
	Counted    bool // a limit applies; else all numbers but Hits are 0
}

// maxSampleText is the most bytes of DecisionSample.Descriptor.
const maxSampleText = 1 << 10

// Tap calls see for some of the decisions until stop is called. It samples at most o.Rate decisions per second, at
// random times. see may be called concurrently and must not block. Without a tap, a call pays for one atomic load.
func (s *Service) Tap(o TapOptions, see func(DecisionSample)) (stop func()) {
	if o.Rate <= 0 {
		o.Rate = 10
	}
	t := &tap{o: o, gap: int64(float64(time.Second) / o.Rate), see: see}
	s.taps.change(func(list []*tap) []*tap { return append(list, t) })
	return func() {
		s.taps.change(func(list []*tap) []*tap { return slices.DeleteFunc(list, func(x *tap) bool { return x == t }) })
	}
}

// taps are the active taps.
type taps struct {
	mu   sync.Mutex             // held by change
	list atomic.Pointer[[]*tap] // nil: none; the slice is immutable
}

func (t *taps) change(f func([]*tap) []*tap) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*tap
	if old := t.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if list = f(list); len(list) == 0 {
		t.list.Store(nil)
		return
	}
	t.list.Store(&list)
}

// show passes an answered call to the taps.
func (t *taps) show(c *Call, now time.Time) {
	list := t.list.Load()
	if list == nil {
		return
	}
	for _, one := range *list {
		one.show(c, now)
	}
}

// tap is one active tap.
type tap struct {
	o    TapOptions
	gap  int64 // mean time between two samples, in ns
	next atomic.Int64
	see  func(DecisionSample)
}

func (t *tap) show(c *Call, now time.Time) {
	at, next := now.UnixNano(), t.next.Load()
	if at < next || len(c.slots) == 0 {
		return
	}
	// Starting with the first descriptor would always hide the second. Constant gaps could fall in step with the
	// traffic.
	first := rand.IntN(len(c.slots))
	for n := range c.slots {
		i := (first + n) % len(c.slots)
		if !t.wants(c, i) {
			continue
		}
		if t.next.CompareAndSwap(next, at+t.gap/2+rand.Int64N(t.gap+1)) {
			t.see(c.sample(i, now))
		}
		return
	}
}

func (t *tap) wants(c *Call, i int) bool {
	if t.o.Domain != "" && t.o.Domain != c.Request.Domain || t.o.Over && c.Response.Statuses[i].Code != OverLimit {
		return false
	}
	if t.o.Text == "" {
		return true
	}
	c.text = appendDescriptor(c.text[:0], c.Request.Descriptors[i].Entries)
	return bytes.Contains(c.text, []byte(t.o.Text))
}

// sample returns a copy of the decision about descriptor i: the call's memory will be reused.
func (c *Call) sample(i int, now time.Time) DecisionSample {
	c.text = appendDescriptor(c.text[:0], c.Request.Descriptors[i].Entries)
	s := DecisionSample{
		Time: now, Domain: strings.Clone(c.Request.Domain),
		Descriptor: string(c.text[:min(len(c.text), maxSampleText)]),
		Code:       c.Response.Statuses[i].Code,
	}
	s.Hits, s.Op = hits(&c.Request, &c.Request.Descriptors[i])
	l := &c.slots[i]
	if r := l.match.Rule; r != nil {
		s.Rule = r.FullKey
	}
	if !l.counted() {
		return s
	}
	a := &c.results[l.request]
	s.Counted, s.Limit, s.Remaining, s.Owner = true, l.match.Limit.Limit, c.Response.Statuses[i].Remaining,
		l.match.Owner
	s.Path, s.Authority = a.Path, a.Authority
	return s
}

// appendDescriptor appends a descriptor as text: k=v,k2=v2. Different descriptors may have the same text.
func appendDescriptor(dst []byte, entries []config.Entry) []byte {
	for i := range entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, entries[i].Key...), '='), entries[i].Value...)
	}
	return dst
}
