// Package rls speaks Envoy's rate limit service: a request is decoded as opaque bytes, every descriptor is matched with
// one version of the rules, all that must be counted goes to the Decider at once, and its answers become the statuses,
// headers, metadata and statistics that envoyproxy/ratelimit would give. The same Service stands behind gRPC and /json.
package rls

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
)

// Decider decides the questions of one request, in order, and fills every answer by the deadline. With stop, hits are
// charged to none but those that go over, as soon as one of them does.
type Decider interface {
	Decide(deadline owner.Deadline, stop bool, qs []owner.Request, as []owner.Result)
}

// AsyncDecider is a Decider that need not keep its caller waiting.
type AsyncDecider interface {
	Decider
	// Begin decides what can be decided at once: true when every answer is there. Otherwise done.Decided is called exactly
	// once, on any goroutine and perhaps before Begin returns, when all are: a moment after the deadline at the latest. Until
	// then qs and as are the Decider's. Decided does not block.
	Begin(deadline owner.Deadline, stop bool, qs []owner.Request, as []owner.Result, done interface{ Decided() }) bool
}

// Switches are the settings that are read anew with every version of the rules. The zero value switches all off.
type Switches struct {
	Shadow          bool // SHADOW_MODE: answer OK whatever was decided
	Quota           bool // QUOTA_MODE: treat every descriptor as a quota
	DynamicMetadata bool // RESPONSE_DYNAMIC_METADATA
	Headers         bool // LIMIT_RESPONSE_HEADERS_ENABLED; once on it stays on
	LimitHeader     string
	RemainingHeader string
	ResetHeader     string
}

// Options make a Service.
type Options struct {
	Decider Decider
	// Name is called with the name of a hot key: a domain, a descriptor for people (k=v,k2=v2), and the owner string by which
	// Envoy finds the key, empty if it is too long for a route. Owners count by digests and know no names. It is called
	// concurrently, for one key about once a second; nil for none.
	Name       func(k owner.Key, domain, name, ownerString string, terms *lease.Terms)
	Stats      *stats.Store
	Registerer prometheus.Registerer // of the keyward_* metrics; nil registers none
	Tracer     Tracer                // nil for none
	// Denials is called for some of the refusals, with the number of refusals since its last call for the rule. The sample
	// has no value that a caller sent: no Descriptor. It must not block; nil for none.
	Denials    func(s DecisionSample, suppressed uint64)
	DenialRate float64 // the most of them a second and rule; default 1

	NearLimitRatio  float32       // NEAR_LIMIT_RATIO: the part of a limit above which hits are near it; 0 for all of them
	Stop            bool          // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	DecisionTimeout time.Duration // for a call that has no timeout of its own; default 12 ms, under Envoy's default of 20
	Limits          RequestLimits
}

// Service answers rate limit requests. It is safe for concurrent use.
type Service struct {
	decider   Decider
	async     AsyncDecider // decider, where it is one; else nil
	name      func(k owner.Key, domain, name, ownerString string, terms *lease.Terms)
	nameTimes nameTimes
	store     *stats.Store
	metrics   *metrics
	counts    serviceCounts
	current   atomic.Pointer[view]
	calls     sync.Pool
	taps      taps
	tracer    Tracer
	denials   *denials // nil: nobody is told
	ratio     float32
	stop      bool
	timeout   time.Duration
	limits    RequestLimits
}

// view is one version of the rules with what goes with it.
type view struct {
	rules    *config.Rules
	version  uint64
	switches Switches
	series   []atomic.Pointer[stats.RuleStats] // statistics of the rules with a fixed name, by Rule.Index; filled when first hit
}

// Errors of the service, in the words of envoyproxy/ratelimit. In gRPC their code is UNKNOWN.
var (
	errNoDomain      = errors.New("rate limit domain must not be empty")
	errNoDescriptors = errors.New("rate limit descriptor list must not be empty")
	errNoRules       = errors.New("no rate limit configuration loaded")
	errOverrideUnit  = errors.New("rate limit override has an unknown unit")
)

// New makes a Service without rules: until SetRules it answers every request with an error.
func New(o Options) *Service {
	s := &Service{
		decider: o.Decider, name: o.Name, store: o.Stats, metrics: newMetrics(o.Registerer), tracer: o.Tracer, denials: newDenials(o),
		ratio: o.NearLimitRatio, stop: o.Stop, timeout: o.DecisionTimeout, limits: o.Limits.withDefaults(),
	}
	if s.timeout <= 0 {
		s.timeout = 12 * time.Millisecond
	}
	s.async, _ = o.Decider.(AsyncDecider)
	s.counts = newServiceCounts(o.Stats)
	s.calls.New = func() any { return new(Call) }
	return s
}

// SetRules puts a version of the rules in force, whole, for the requests that come after it. It must not run
// concurrently with itself.
func (s *Service) SetRules(r *config.Rules, sw Switches) {
	if old := s.current.Load(); old != nil && old.switches.Headers && !sw.Headers {
		o := old.switches
		sw.Headers, sw.LimitHeader, sw.RemainingHeader, sw.ResetHeader = true, o.LimitHeader, o.RemainingHeader, o.ResetHeader
	}
	v := &view{rules: r, version: r.Hash(), switches: sw.withDefaults()}
	v.series = make([]atomic.Pointer[stats.RuleStats], len(r.Rules()))
	s.current.Store(v)
}

// Rules are the rules in force; nil before the first SetRules.
func (s *Service) Rules() *config.Rules {
	if v := s.current.Load(); v != nil {
		return v.rules
	}
	return nil
}

// CountLoad counts a load of the rules, good or bad, in config_load_success or config_load_error.
func (s *Service) CountLoad(err error) {
	if err != nil {
		s.counts.loadError.Add(1)
		return
	}
	s.counts.loadSuccess.Add(1)
}

func (sw Switches) withDefaults() Switches {
	or := func(s *string, d string) {
		if *s == "" {
			*s = d
		}
	}
	or(&sw.LimitHeader, "RateLimit-Limit")
	or(&sw.RemainingHeader, "RateLimit-Remaining")
	or(&sw.ResetHeader, "RateLimit-Reset")
	return sw
}

// Caller is what a door knows of a call beside its request.
type Caller struct {
	Key        string        // x-keyward-key: the owner string by which Envoy chose this member; "" when it chose any
	Timeout    time.Duration // the caller's own, what is left of it; 0 for none
	ReceivedAt time.Time     // when the call came; zero: now
}

// Call is one request being answered. It comes from a Service and goes back to it, with all the memory it grew.
type Call struct {
	Request  RateLimitRequest
	Response RateLimitResponse
	Err      error // set by Decide and Begin: the answer is this error

	slots        []slot
	requests     []owner.Request
	results      []owner.Result
	continuation continuation
	recording    *recording
	text         []byte     // scratch for names of statistics
	wire         []byte     // the door's copy of the message
	stream       *h2.Stream // where the lean door answers; nil for other doors
	duration     time.Duration
}

// keepBytes is how much scratch a Call may bring back to the pool: a flood of giant requests must not stay in memory.
const keepBytes = 64 << 10

// NewCall gives a Call to decode a request into.
func (s *Service) NewCall() *Call { return s.calls.Get().(*Call) }

// Release takes a Call back. Nothing of it may be used any more.
func (s *Service) Release(c *Call) {
	if cap(c.wire) > keepBytes || cap(c.text) > keepBytes || cap(c.Request.entries) > 1024 {
		return
	}
	c.Response.reset()
	clear(c.slots)
	clear(c.results)
	c.Err, c.continuation, c.stream = nil, continuation{}, nil
	s.calls.Put(c)
}

// Decode copies a message and decodes its request into c.
func (s *Service) Decode(c *Call, message []byte) error {
	c.wire = append(c.wire[:0], message...)
	return c.Request.Decode(c.wire, s.limits)
}
