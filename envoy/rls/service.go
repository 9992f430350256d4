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

	"github.com/keyward/keyward/config"
	"github.com/keyward/keyward/envoy/stats"
	"github.com/keyward/keyward/owner"
)

// Decider decides the questions of one request, in order, and fills every answer before the deadline. With stop, hits are
// charged to none but those that go over, as soon as one of them does.
type Decider interface {
	Decide(deadline time.Time, stop bool, qs []owner.Question, as []owner.Answer)
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
	Decider    Decider
	Namer      Namer // nil for none
	Stats      *stats.Store
	Registerer prometheus.Registerer // of the keyward_* metrics; nil registers none
	Tracer     Tracer                // nil for none
	Denials    func(Denial)          // is told of some of the refusals, and must not wait; nil for none
	DenialRate float64               // the most of them a second and rule; default 1

	NearLimitRatio  float32       // NEAR_LIMIT_RATIO: the part of a limit above which hits are near it; 0 for all of them
	Stop            bool          // STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT
	DecisionTimeout time.Duration // for a call that has no timeout of its own; default 12 ms, under Envoy's default of 20
	Bounds          Bounds
}

// Service answers rate limit requests. It is safe for concurrent use.
type Service struct {
	decider Decider
	namer   Namer
	named   namings
	store   *stats.Store
	metrics *metrics
	counts  serviceCounts
	current atomic.Pointer[view]
	calls   sync.Pool
	taps    taps
	tracer  Tracer
	denials *denials // nil: nobody is told
	ratio   float32
	stop    bool
	timeout time.Duration
	bounds  Bounds
}

// view is one version of the rules with what goes with it.
type view struct {
	rules    *config.Rules
	version  uint64
	switches Switches
	series   []atomic.Pointer[stats.Rule] // statistics of the rules with a fixed name, by Rule.Index; filled when first hit
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
		decider: o.Decider, namer: o.Namer, store: o.Stats, metrics: newMetrics(o.Registerer), tracer: o.Tracer, denials: newDenials(o),
		ratio: o.NearLimitRatio, stop: o.Stop, timeout: o.DecisionTimeout, bounds: o.Bounds.withDefaults(),
	}
	if s.timeout <= 0 {
		s.timeout = 12 * time.Millisecond
	}
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
	v.series = make([]atomic.Pointer[stats.Rule], len(r.Rules()))
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
	Key     string        // x-keyward-key: the owner string by which Envoy chose this member; "" when it chose any
	Timeout time.Duration // the caller's own, what is left of it; 0 for none
}

// Call is one request being answered. It comes from a Service and goes back to it, with all the memory it grew.
type Call struct {
	Request  Request
	Response Response
	Err      error // set by Decide: the answer is this error

	slots     []slot
	questions []owner.Question
	answers   []owner.Answer
	trace     *traced
	text      []byte // scratch for names of statistics
	wire      []byte // the door's copy of the message
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
	clear(c.answers)
	c.Err = nil
	s.calls.Put(c)
}

// Decode copies a message and decodes its request into c.
func (s *Service) Decode(c *Call, message []byte) error {
	c.wire = append(c.wire[:0], message...)
	return c.Request.Decode(c.wire, s.bounds)
}

// Decide answers c.Request in c.Response, or in c.Err.
func (s *Service) Decide(c *Call, from Caller) {
	begin := time.Now()
	c.Response.reset()
	if c.Err = s.decide(c, from, begin); c.Err != nil {
		s.counts.serviceError.Add(1)
		c.Response.reset()
	}
	s.metrics.took(time.Since(begin))
}

func (s *Service) decide(c *Call, from Caller, now time.Time) error {
	req := &c.Request
	v := s.current.Load()
	switch {
	case req.Excess != Within:
		s.refuseExcess(c, v)
		return nil
	case req.Domain == "":
		return errNoDomain
	case len(req.Descriptors) == 0:
		return errNoDescriptors
	case v == nil:
		return errNoRules
	}
	s.match(c, v)
	s.ask(c, v)
	if len(c.questions) > 0 {
		s.put(c, now.Add(s.budget(from)))
	}
	s.count(c, v, from, now)
	if err := s.respond(c, v); err != nil {
		return err
	}
	s.taps.show(c, now)
	if s.denials != nil && c.Response.Code == OverLimit {
		s.denials.see(c, now)
	}
	return nil
}

// put puts the questions to the Decider.
func (s *Service) put(c *Call, deadline time.Time) {
	if c.trace != nil {
		c.trace.Decided = time.Now()
		defer func() { c.trace.Found = time.Now() }()
	}
	s.decider.Decide(deadline, s.stop, c.questions, c.answers)
}

// budget is the part of the caller's timeout in which the answer must be found: the rest is for its way back. Past its
// own timeout Envoy lets the request through uncounted.
func (s *Service) budget(from Caller) time.Duration {
	if from.Timeout <= 0 {
		return s.timeout
	}
	return from.Timeout / 10 * 6
}

// refuseExcess answers a request beyond the bounds. It is no error, which would be an admission, and no charge, which
// would need a key.
func (s *Service) refuseExcess(c *Call, v *view) {
	s.metrics.oversize[c.Request.Excess].Inc()
	for range c.Request.Descriptors {
		c.Response.Statuses = append(c.Response.Statuses, Status{Code: OverLimit, Reset: 1})
	}
	c.Response.Code = OverLimit
	if v != nil && v.switches.Shadow {
		c.Response.Code = OK
		s.counts.globalShadow.Add(1)
	}
}
