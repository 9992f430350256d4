package source

import (
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
)

// VersionsOptions configure how versions are switched. The zero value is suitable for a standalone member.
type VersionsOptions struct {
	Self       string                         // this member's ID; its own entries in gossip are ignored
	Wait       time.Duration                  // how long new rules wait for members that do not have them; default 90 s
	OnSwitch   func(*config.Rules)            // called after new rules came into force
	Announce   func(inForce, prepared uint64) // called when gossip must announce a change
	Registerer prometheus.Registerer          // of keyward_rules_* and keyward_config_*; nil: none
	Logger     *slog.Logger                   // nil: no logs
}

// Versions holds the rules in force and the rules that wait for the other members. Its methods are safe for
// concurrent use. OnSwitch and Announce are called one at a time, in order, without a lock held, so they may call
// Versions.
type Versions struct {
	o       VersionsOptions
	metrics *metrics
	current atomic.Pointer[config.Rules]
	read    chan struct{} // closed after the first LoadResult
	once    sync.Once

	mu        sync.Mutex
	agreement agreement     // this and all fields below are guarded by mu
	prepared  *config.Rules // rules of agreement.prepared
	history   history
	failure   string    // error of the last attempt; empty if it succeeded
	failed    time.Time // time of failure
	timer     *time.Timer
	closed    bool
	calls     []func() // pending callbacks, in order
	calling   bool     // a goroutine is running them
}

// NewVersions returns a Versions without rules.
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

// Current returns the rules in force, or nil before the first.
func (v *Versions) Current() *config.Rules { return v.current.Load() }

// Read returns a channel that is closed after the first attempt to load rules, successful or not, and after OnSwitch
// was called.
func (v *Versions) Read() <-chan struct{} { return v.read }

// Offer processes the result of an attempt to load rules.
func (v *Versions) Offer(e LoadResult) {
	now := time.Now()
	v.mu.Lock()
	v.metrics.read(e, now)
	if e.Err != nil {
		v.failure, v.failed = e.Err.Error(), now
		text := "cannot load rules; the previous rules stay in force"
		if v.agreement.inForce == 0 {
			text = "cannot load rules; there are no previous rules, so this member is not ready"
		}
		v.o.Logger.Error(text, "source", e.Source, "address", e.Detail, "error", e.Err)
	} else {
		v.failure = ""
		v.loadLocked(e, now)
	}
	v.calls = append(v.calls, func() { v.once.Do(func() { close(v.read) }) }) // after OnSwitch
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
		v.o.Logger.Info("rules loaded", "source", e.Source, "address", e.Detail, "rules", Hex(hash), "rule_count",
			len(e.Rules.Rules()))
	}
	v.performLocked(eff, now)
}

// SetView applies a new view of the cluster: which versions the other members have announced. Observers and members
// that are leaving are ignored.
func (v *Versions) SetView(view *membership.View) {
	var members []memberRules
	for i := range view.Members {
		m := &view.Members[i]
		if m.Role == membership.RoleMember && m.State != membership.Leaving {
			members = append(members, memberRules{ID: string(m.ID), InForce: m.InForce, Prepared: m.Prepared})
		}
	}
	v.setMembers(members)
}

// setMembers sets the live members that load rules, as reported by gossip.
func (v *Versions) setMembers(members []memberRules) {
	others := slices.DeleteFunc(slices.Clone(members), func(m memberRules) bool { return m.ID == v.o.Self })
	v.mu.Lock()
	now := time.Now()
	v.performLocked(v.agreement.setMembers(now.UnixNano(), others), now)
	v.unlockAndCall()
}

func (v *Versions) tick() {
	v.mu.Lock()
	if !v.closed {
		now := time.Now()
		lacking := v.agreement.lacking()
		eff := v.agreement.step(now.UnixNano())
		if eff.switched == timeout {
			v.o.Logger.Warn("activating rules that some members have not loaded", "members", lacking)
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
		v.o.Logger.Info("rules activated", "rules", Hex(a.inForce), "cause", string(e.switched))
		v.calls = append(v.calls, func() { v.o.OnSwitch(rules) })
	}
	if e.announce {
		inForce, prepared := a.inForce, a.prepared
		v.calls = append(v.calls, func() { v.o.Announce(inForce, prepared) })
	}
	v.metrics.show(a)
	v.armLocked(now)
}

// armLocked sets the timer to the deadline of the prepared rules.
func (v *Versions) armLocked(now time.Time) {
	if v.timer != nil {
		v.timer.Stop()
		v.timer = nil
	}
	if v.agreement.prepared != 0 && !v.closed {
		v.timer = time.AfterFunc(time.Duration(v.agreement.deadline()-now.UnixNano()), v.tick)
	}
}

// unlockAndCall runs the pending callbacks in order and releases the lock. If another goroutine is running callbacks,
// it leaves them to that one, so that a callback may call Versions.
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

// Close stops the timer. The rules in force stay.
func (v *Versions) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.closed = true
	if v.timer != nil {
		v.timer.Stop()
	}
}

// VersionsStatus describes the versions for display.
type VersionsStatus struct {
	InForce     uint64
	Prepared    uint64    // 0 if none
	Deadline    time.Time // when Prepared comes into force at the latest
	WaitingFor  []string  // members that have not loaded Prepared
	Disagreeing []string  // members that use other rules
	Failure     string    // error of the last attempt to load rules; empty if it succeeded
	Failed      time.Time
	Versions    []Version // the last ten, newest first
}

// Status returns the current status.
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
