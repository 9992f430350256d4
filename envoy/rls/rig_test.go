package rls

import (
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// lone is a Decider over a real owner.Node in a cluster of one, at a time set by the test.
type lone struct {
	node     *owner.Node
	now      atomic.Int64 // Unix nanoseconds
	deadline atomic.Int64
	alive    atomic.Int64
	after    func(qs []owner.Request, as []owner.Result) // may change the answers
}

func newLone(at time.Time) *lone {
	l := &lone{node: owner.New(owner.Options{Self: "a"})}
	l.now.Store(at.UnixNano())
	l.node.Tick(at.UnixNano())
	l.node.SetMembership(at.UnixNano(), &membership.View{
		Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true,
	})
	return l
}

func (l *lone) Decide(deadline policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	l.deadline.Store(deadline.Silent.UnixNano())
	l.alive.Store(deadline.Alive.UnixNano())
	l.node.DecideAll(l.now.Load(), stop, qs, as)
	if l.after != nil {
		l.after(qs, as)
	}
}

func (l *lone) advance(d time.Duration) { l.node.Tick(l.now.Add(int64(d))) }

// clock is a time in the middle of the window of every unit except year: 2222 s after the epoch.
var clock = time.Unix(2222, 0)

// rig is a service with its dependencies.
type rig struct {
	*Service
	lone  *lone
	stats *stats.StatStore
	reg   *prometheus.Registry
}

func newRig(t testing.TB, yaml string, change ...func(*Options, *Switches)) *rig {
	t.Helper()
	r := &rig{lone: newLone(clock), stats: stats.New(stats.Options{}), reg: prometheus.NewRegistry()}
	o := Options{Decider: r.lone, Stats: r.stats, Registerer: r.reg, NearLimitRatio: 0.8}
	var sw Switches
	for _, c := range change {
		c(&o, &sw)
	}
	r.Service = New(o)
	if yaml != "" {
		r.SetRules(load(t, yaml), sw)
	}
	return r
}

func load(t testing.TB, yaml string) *config.Rules {
	t.Helper()
	rules, err := config.Load([]config.File{{Name: "rules.yaml", Content: []byte(yaml)}}, config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// serve decides an encoded request of a caller with that key, and encodes the response into out.
func (r *rig) serve(message []byte, key string, out []byte) []byte {
	c := r.NewCall()
	defer r.Release(c)
	_ = r.Decode(c, message)
	r.Decide(c, Caller{Key: key})
	return c.Response.Append(out[:0])
}

// try answers a request as a server does.
func (r *rig) try(t testing.TB, req *pb.RateLimitRequest, from ...Caller) (*pb.RateLimitResponse, error) {
	t.Helper()
	return r.tryWire(t, encodeRequest(t, req), from...)
}

func (r *rig) tryWire(t testing.TB, message []byte, from ...Caller) (*pb.RateLimitResponse, error) {
	t.Helper()
	c := r.NewCall()
	defer r.Release(c)
	if err := r.Decode(c, message); err != nil {
		return nil, err
	}
	r.Decide(c, append(from, Caller{})[0])
	if c.Err != nil {
		return nil, c.Err
	}
	resp := new(pb.RateLimitResponse)
	if err := proto.Unmarshal(c.Response.Append(nil), resp); err != nil {
		t.Fatalf("the response does not read: %v", err)
	}
	return resp, nil
}

// ask is try for calls that must succeed.
func (r *rig) ask(t testing.TB, req *pb.RateLimitRequest, from ...Caller) *pb.RateLimitResponse {
	t.Helper()
	resp, err := r.try(t, req, from...)
	if err != nil {
		t.Fatalf("%v: %v", req, err)
	}
	return resp
}

// counts returns the statistics of one rule, in the order total, over, near, within, shadow, cache, negative.
func (r *rig) counts(key string) [7]uint64 {
	s := r.stats.Rule(key)
	return [7]uint64{
		s.TotalHits.Value(), s.OverLimit.Value(), s.NearLimit.Value(), s.WithinLimit.Value(),
		s.ShadowMode.Value(), s.OverLimitWithLocalCache.Value(), s.TotalNegativeHits.Value(),
	}
}

func (r *rig) counter(name string) uint64 {
	return r.stats.Counter("ratelimit.service." + name).Value()
}

// metric returns the value of a keyward_* series, by its label values in alphabetical order of the label names.
func (r *rig) metric(t testing.TB, name string, values ...string) float64 {
	t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	series:
		for _, m := range f.GetMetric() {
			for i, l := range m.GetLabel() {
				if l.GetValue() != values[i] {
					continue series
				}
			}
			if h := m.GetHistogram(); h != nil {
				return float64(h.GetSampleCount())
			}
			return m.GetCounter().GetValue()
		}
	}
	t.Fatalf("no series %s%q", name, values)
	return 0
}
