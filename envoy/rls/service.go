// Package rls implements Envoy's rate limit service. It decodes a call as opaque bytes, matches each descriptor
// against one version of the rules and passes all requests of the call to the Decider at once. From the results it
// builds the statuses, headers, metadata and statistics that envoyproxy/ratelimit would produce. gRPC and /json use
// the same Service.
package rls

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Decider decides the requests of one call, in order, and sets every result by the deadline. With stop, if any
// request is over its limit, only the requests that are over are charged.
type Decider interface {
	Decide(deadline policy.Deadline, stop bool, qs []owner.Request, as []owner.Result)
}

// AsyncDecider is a Decider that need not block its caller.
type AsyncDecider interface {
	Decider
	// Begin decides what can be decided at once. It returns true if every result is set. Otherwise it calls
	// done.Decided exactly once when all are, shortly after the deadline at the latest, on any goroutine and perhaps
	// before Begin returns. Until then the Decider owns qs and as. Decided does not block.
	Begin(deadline policy.Deadline, stop bool, qs []owner.Request, as []owner.Result, done interface{ Decided() }) bool
}

// Switches are the settings that are read again with every version of the rules. The zero value turns all of them
// off.
type Switches struct {
	Shadow          bool // SHADOW_MODE: answer OK whatever the decision
	Quota           bool // QUOTA_MODE: treat every descriptor as a quota
	DynamicMetadata bool // RESPONSE_DYNAMIC_METADATA
	Headers         bool // LIMIT_RESPONSE_HEADERS_ENABLED; once on, it stays on
	LimitHeader     string
	RemainingHeader string
	ResetHeader     string
}

// Options configure a Service.
type Options struct {
	Decider Decider
	// Name is called with the name of a hot key, or of one with holds: a domain, a descriptor for people (k=v,k2=v2), and the owner string by which
	// Envoy finds the key, empty if it is too long for a route. Owners count by digests and know no names. It is called
	// concurrently, for one key about once a second; nil for none.
	Name       func(k owner.Key, name owner.KeyName, terms *lease.Terms)
	Stats      *stats.StatStore
	Registerer prometheus.Registerer // for the keyward_* metrics; nil: not registered
	Tracer     Tracer                // nil: no traces
	// Denials is called for some of the refusals, with the number of refusals since its last call for the rule. The sample
	// has no value that a caller sent: no Descriptor. It must not block; nil for none.
	Denials    func(s DecisionSample, suppressed uint64)
	DenialRate float64 // calls of Denials per second and rule; default 1

	// Self is the name of this member. CallerGone is called with a caller, as owner.Who names it, whose connection has ended
	// and that has no older one here; it lived that long ago. It must not block. "" and nil: callers are not watched.
	Self       ring.ID
	CallerGone func(caller uint64, ago time.Duration)

	NearLimitRatio  float32       // NEAR_LIMIT_RATIO: part of a limit above which hits are near it; 0: all are
	Stop            bool          // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	DecisionTimeout time.Duration // for calls without a timeout; default 12 ms, below Envoy's default of 20 ms
	Limits          RequestLimits
	Additions       Additions
}

// Service answers rate limit calls. It is safe for concurrent use.
type Service struct {
	decider   Decider
	async     AsyncDecider // decider, if it is an AsyncDecider; else nil
	name      func(k owner.Key, name owner.KeyName, terms *lease.Terms)
	nameTimes nameTimes
	store     *stats.StatStore
	metrics   *metrics
	counts    serviceCounts
	current   atomic.Pointer[view]
	calls     sync.Pool
	taps      taps
	tracer    Tracer
	denials   *denials // nil: not reported
	ratio     float32
	stop      bool
	timeout   time.Duration
	limits    RequestLimits
	additions Additions
	callers   callers
	called    callTally
}

// view is one version of the rules, with what belongs to it. It is immutable.
type view struct {
	rules    *config.Rules
	version  uint64
	switches Switches
	// Statistics of the rules with a fixed name by RuleSpec.Index; created with the first hit.
	series []atomic.Pointer[stats.RuleStats]
}

// ErrNoRules is the error of calls before the first SetRules.
var ErrNoRules = errors.New("no rate limit configuration loaded")

// Errors of the service, in the words of envoyproxy/ratelimit. Their gRPC code is UNKNOWN.
var (
	errNoDomain      = errors.New("rate limit domain must not be empty")
	errNoDescriptors = errors.New("rate limit descriptor list must not be empty")
	errOverrideUnit  = errors.New("rate limit override has an unknown unit")
)

// New returns a Service without rules. It answers every call with an error until SetRules is called.
func New(o Options) *Service {
	s := &Service{
		decider: o.Decider, name: o.Name, store: o.Stats, metrics: newMetrics(o.Registerer), tracer: o.Tracer,
		denials: newDenials(o),
		ratio:   o.NearLimitRatio, stop: o.Stop, timeout: o.DecisionTimeout, limits: o.Limits.withDefaults(),
		additions: o.Additions,
	}
	if s.timeout <= 0 {
		s.timeout = 12 * time.Millisecond
	}
	s.callers.self, s.callers.gone = o.Self, o.CallerGone
	s.async, _ = o.Decider.(AsyncDecider)
	s.counts = newServiceCounts(o.Stats)
	s.calls.New = func() any { return new(Call) }
	return s
}

// SetRules puts a version of the rules into force for all later calls. It must not be called concurrently.
func (s *Service) SetRules(r *config.Rules, sw Switches) {
	if old := s.current.Load(); old != nil && old.switches.Headers && !sw.Headers {
		o := old.switches
		sw.Headers, sw.LimitHeader, sw.RemainingHeader, sw.ResetHeader = true, o.LimitHeader, o.RemainingHeader,
			o.ResetHeader
	}
	v := &view{rules: r, version: r.Hash(), switches: sw.withDefaults()}
	s.callers.on.Store(slices.ContainsFunc(r.Rules(), func(x *config.RuleSpec) bool {
		return x.Limit.Algorithm == limit.InFlight
	}))
	v.series = make([]atomic.Pointer[stats.RuleStats], len(r.Rules()))
	s.current.Store(v)
}

// Rules returns the rules in force, or nil before the first SetRules.
func (s *Service) Rules() *config.Rules {
	if v := s.current.Load(); v != nil {
		return v.rules
	}
	return nil
}

// CountLoad counts a load of the rules in config_load_success, or in config_load_error if err is not nil.
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

// Caller describes the origin of a call: what is not part of its request.
type Caller struct {
	// X-keyward-key: the owner string by which Envoy chose this member; "" if it chose any member.
	Key        string
	Timeout    time.Duration // what is left of the caller's timeout; 0: none
	ReceivedAt time.Time     // when the call was received; zero: now
	Hold       HoldCaller
}

// Call is one call being answered. NewCall returns it and Release takes it back, with the memory that it uses.
type Call struct {
	Request  RateLimitRequest
	Response rateLimitResponse
	Err      error // set by Decide and Begin: the call fails with this error

	slots        []slot
	requests     []owner.Request
	reserves     int  // requests that make holds
	holds        int  // requests of an API about holds
	isAPI        bool // api applies
	set          bool // a rule requires that all of the requests are charged or none
	results      []owner.Result
	api          HoldRequest
	continuation continuation
	recording    *recording
	text         []byte     // scratch for names of statistics
	wire         []byte     // a copy of the message
	stream       *h2.Stream // the inline server's stream; nil for other servers
	duration     time.Duration
}

// keepBytes is the most scratch memory in bytes that a released Call keeps, so that a flood of giant requests does
// not stay in memory.
const keepBytes = 64 << 10

// NewCall returns a Call to decode a request into.
func (s *Service) NewCall() *Call { return s.calls.Get().(*Call) }

// Release takes back a Call. It must not be used afterwards.
func (s *Service) Release(c *Call) {
	if cap(c.wire) > keepBytes || cap(c.text) > keepBytes || cap(c.Request.entries) > 1024 {
		return
	}
	c.Response.reset()
	clear(c.slots)
	clear(c.results)
	c.Err, c.continuation, c.stream = nil, continuation{}, nil
	c.api, c.isAPI = HoldRequest{}, false
	s.calls.Put(c)
}

// Decode copies a message and decodes the request from it into c.
func (s *Service) Decode(c *Call, message []byte) error {
	c.wire = append(c.wire[:0], message...)
	return c.Request.Decode(c.wire, s.limits)
}
