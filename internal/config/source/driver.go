package source

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/config"
)

// VersionsOptions say how versions are switched. The zero value suits a member that stands alone.
type VersionsOptions struct {
	Self       string                         // this member's ID: left out of what gossip says
	Wait       time.Duration                  // how long new rules wait for members that do not have them; default 90 s
	OnSwitch   func(*config.Rules)            // called after other rules came into force
	Announce   func(inForce, prepared uint64) // called when gossip is to tell the others something new
	Registerer prometheus.Registerer          // where keyward_rules_* and keyward_config_* go; default: nowhere
	Logger     *slog.Logger                   // default: nowhere
}

// Versions holds the rules in force and those that wait for the other members. Its methods are safe for concurrent
// use. OnSwitch and Announce are called one at a time, in order, without a lock held: they may call back.
type Versions struct {
	o       VersionsOptions
	metrics *metrics
	current atomic.Pointer[config.Rules]
	read    chan struct{} // closed by the first Event
	once    sync.Once

	mu        sync.Mutex
	agreement agreement     // guarded by mu, as all below
	prepared  *config.Rules // rules of agreement.prepared
	history   history
	failure   string    // why the last attempt failed; empty when it did not
	failed    time.Time // when
	timer     *time.Timer
	closed    bool
	calls     []func() // effects that are not performed yet, in order
	calling   bool     // someone performs them
}

// NewVersions starts without rules.
func NewVersions(o VersionsOptions) *Versions {
	if o.Wait <= 0 {
		o.Wait = 90 * time.Second
	}
	if o.OnSwitch == nil {
		o.OnSwitch = func(*config.Rules) {}
	}
	if o.Announce == nil {
		o.Announce = func(_, _ uint64) {}
	}
	o.Logger = loggerOr(o.Logger)
	return &Versions{
		o:         o,
		metrics:   newMetrics(o.Registerer),
		read:      make(chan struct{}),
		agreement: agreement{wait: int64(o.Wait)},
	}
}

// Current are the rules in force; nil before the first.
func (v *Versions) Current() *config.Rules { return v.current.Load() }

// Read is closed once the source has made its first attempt, whatever came of it, and OnSwitch was told.
func (v *Versions) Read() <-chan struct{} { return v.read }

// Offer takes what a source has read, or why it could not.
func (v *Versions) Offer(e LoadResult) {
	now := time.Now()
	v.mu.Lock()
	v.metrics.read(e, now)
	if e.Err != nil {
		v.failure, v.failed = e.Err.Error(), now
		text := "rules not loaded, the old ones stay"
		if v.agreement.inForce == 0 {
			text = "rules not loaded, and there are none from before: this member is not ready"
		}
		v.o.Logger.Error(text, "source", e.Source, "from", e.Detail, "error", e.Err)
	} else {
		v.failure = ""
		v.loadLocked(e, now)
	}
	v.calls = append(v.calls, func() { v.once.Do(func() { close(v.read) }) }) // after OnSwitch, whoever performs it
	v.unlockAndCall()
}

func (v *Versions) loadLocked(e LoadResult, now time.Time) {
	hash := e.Rules.Hash()
	known := hash == v.agreement.inForce || hash == v.agreement.prepared
	eff := v.agreement.load(now.UnixNano(), hash)
	if eff.replaced != 0 {
		v.history.replace(now)
		v.prepared = nil
	}
	if !known {
		v.history.prepare(Version{Hash: hash, Source: e.Source, Detail: e.Detail, Loaded: now})
		v.prepared = e.Rules
		v.o.Logger.Info("rules loaded", "source", e.Source, "from", e.Detail, "version", Hex(hash), "rules", len(e.Rules.Rules()))
	}
	v.performLocked(eff, now)
}

// SetMembers takes what gossip says of the live members that load rules.
func (v *Versions) SetMembers(members []MemberRules) {
	others := slices.DeleteFunc(slices.Clone(members), func(m MemberRules) bool { return m.ID == v.o.Self })
	v.mu.Lock()
	now := time.Now()
	v.performLocked(v.agreement.heard(now.UnixNano(), others), now)
	v.unlockAndCall()
}

func (v *Versions) tick() {
	v.mu.Lock()
	if !v.closed {
		now := time.Now()
		lacking := v.agreement.lacking()
		eff := v.agreement.step(now.UnixNano())
		if eff.switched == timeout {
			v.o.Logger.Warn("rules come into force although members have not read them", "members", lacking)
		}
		v.performLocked(eff, now)
	}
	v.unlockAndCall()
}

func (v *Versions) performLocked(e effects, now time.Time) {
	a := &v.agreement
	if e.switched != "" {
		rules := v.prepared
		v.prepared = nil
		v.current.Store(rules)
		v.history.switchTo(a.inForce, e.switched, now)
		v.metrics.switches.WithLabelValues(string(e.switched)).Inc()
		v.o.Logger.Info("rules in force", "version", Hex(a.inForce), "reason", string(e.switched))
		v.calls = append(v.calls, func() { v.o.OnSwitch(rules) })
	}
	if e.announce {
		inForce, prepared := a.inForce, a.prepared
		v.calls = append(v.calls, func() { v.o.Announce(inForce, prepared) })
	}
	v.metrics.show(a)
	v.armLocked(now)
}

// armLocked sets the timer to the deadline of what is prepared.
func (v *Versions) armLocked(now time.Time) {
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
	if v.agreement.prepared != 0 && !v.closed {
		v.timer = time.AfterFunc(time.Duration(v.agreement.deadline()-now.UnixNano()), v.tick)
	}
}

// unlockAndCall performs the calls in the order in which they were asked for. Whoever finds another one at it leaves
// its own to that one, so that a callback may call back.
func (v *Versions) unlockAndCall() {
	defer v.mu.Unlock()
	if v.calling {
		return
	}
	v.calling = true
	for len(v.calls) > 0 {
		call := v.calls[0]
		v.calls = v.calls[1:]
		v.mu.Unlock()
		call()
		v.mu.Lock()
	}
	v.calling = false
}

// Close ends the waiting. What is in force stays.
func (v *Versions) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.timer != nil {
		v.timer.Stop()
	}
}

// VersionsStatus is what there is to say about the rules, for people.
type VersionsStatus struct {
	InForce     uint64
	Prepared    uint64    // 0: none
	Deadline    time.Time // when Prepared comes into force whatever the others have
	WaitingFor  []string  // members that have not read Prepared
	Disagreeing []string  // members that answer by other rules
	Failure     string    // why the last attempt to read rules failed; empty when it did not
	Failed      time.Time
	Versions    []Version // the last ten, newest first
}

// Status is a copy of what is known now.
func (v *Versions) Status() VersionsStatus {
	v.mu.Lock()
	defer v.mu.Unlock()
	a := &v.agreement
	s := VersionsStatus{
		InForce: a.inForce, Prepared: a.prepared,
		WaitingFor: a.lacking(), Disagreeing: a.disagreeing(),
		Failure: v.failure, Versions: slices.Clone(v.history),
	}
	if a.prepared != 0 {
		s.Deadline = time.Unix(0, a.deadline())
	}
	if v.failure != "" {
		s.Failed = v.failed
	}
	slices.Reverse(s.Versions)
	return s
}
