package holds

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/owner"
)

const (
	maxSessions = 1024
	maxWatched  = 16
	maxSlots    = 16384 // requests in flight that a session remembers
	sessionLife = 30 * time.Minute
	watchEvery  = time.Second
	resumeTime  = 10 * time.Second
)

// sessions are the callers that are known to live, with the requests in flight that they have reserved on this member.
type sessions struct {
	life   time.Duration
	resume time.Duration                     // for a caller to open a session again that the server has ended
	tick   func() (<-chan time.Time, func()) // ticks when the watched limits are to be read

	mu   sync.Mutex
	open map[sessionKey]*session
	// holders are the sessions of the requests in flight, by identity and id.
	holders map[sessionKey]*session
	count   int // streams
	closed  chan struct{}
	done    sync.WaitGroup
}

// sessionKey identifies a caller. Who has another certificate is another caller.
type sessionKey struct{ identity, caller string }

type session struct {
	streams int
	until   time.Time        // without streams: when its slots are released
	slots   map[string]*plan // to release, by id
}

func (x *sessions) init(life time.Duration) {
	if life <= 0 || life > sessionLife {
		life = sessionLife
	}
	x.life, x.resume = life, resumeTime
	x.open, x.closed = map[sessionKey]*session{}, make(chan struct{})
	x.holders = map[sessionKey]*session{}
	x.tick = func() (<-chan time.Time, func()) {
		t := time.NewTicker(watchEvery)
		return t.C, t.Stop
	}
}

func (x *sessions) close() {
	x.mu.Lock()
	select {
	case <-x.closed:
	default:
		close(x.closed)
	}
	x.mu.Unlock()
	x.done.Wait()
}

var (
	errSessions = status.Error(codes.ResourceExhausted, "too many sessions")
	errStopping = status.Error(codes.Unavailable, "the member is stopping")
)

// begin adds a stream of k, or returns an error if there are too many.
func (x *sessions) begin(k sessionKey) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.closed:
		return errStopping
	default:
	}
	s := x.open[k]
	if x.count >= maxSessions || s == nil && len(x.open) >= 2*maxSessions {
		return errSessions
	}
	if s == nil {
		s = &session{slots: map[string]*plan{}}
		x.open[k] = s
	}
	s.streams++
	x.count++
	x.done.Add(1)
	return nil
}

// end removes a stream of k. It returns what has to be released: all that the caller holds, if it has ended its last
// session.
func (x *sessions) end(k sessionKey, now time.Time, byCaller bool) (release []*plan) {
	x.mu.Lock()
	defer x.mu.Unlock()
	s := x.open[k]
	x.count--
	if s.streams--; s.streams > 0 {
		return nil
	}
	if !byCaller {
		s.until = now.Add(x.resume)
		return nil
	}
	return x.forget(k)
}

// expire returns what has to be released because the caller of k has not opened its session again in time.
func (x *sessions) expire(k sessionKey, now time.Time) (release []*plan) {
	x.mu.Lock()
	defer x.mu.Unlock()
	select {
	case <-x.closed: // the caller may have gone to another member
		return nil
	default:
	}
	if s := x.open[k]; s == nil || s.streams > 0 || s.until.After(now) {
		return nil
	}
	return x.forget(k)
}

// forget removes session k, and returns what it holds.
func (x *sessions) forget(k sessionKey) (slots []*plan) {
	for id, p := range x.open[k].slots {
		slots = append(slots, p)
		delete(x.holders, sessionKey{k.identity, id})
	}
	delete(x.open, k)
	return slots
}

// record adds the requests in flight that a call of a caller with a session has made, and removes those that it has
// settled.
func (x *sessions) record(p *plan, c *rls.Call, from *rls.Caller) {
	switch {
	case p.hold.Op == owner.Reserve && p.caller != "":
		if slots := p.inFlight(c); slots != nil {
			x.add(sessionKey{from.Hold.Identity, p.caller}, slots)
		}
	case p.hold.Op.Settles():
		x.mu.Lock()
		defer x.mu.Unlock()
		k := sessionKey{from.Hold.Identity, p.hold.ID}
		if s := x.holders[k]; s != nil {
			delete(s.slots, p.hold.ID)
			delete(x.holders, k)
		}
	}
}

func (x *sessions) add(k sessionKey, slots *plan) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if s := x.open[k]; s != nil && len(s.slots) < maxSlots {
		s.slots[slots.hold.ID] = slots
		x.holders[sessionKey{k.identity, slots.hold.ID}] = s
	}
}

// inFlight returns the plan that releases the requests in flight that c has made, or nil if it has made none.
func (p *plan) inFlight(c *rls.Call) *plan {
	r := &plan{domain: p.domain, hold: rls.HoldRequest{Op: owner.Release, ID: p.hold.ID}, caller: p.caller}
	for i := range p.descriptors {
		if o := c.Outcome(i); o.InFlight && o.Reserved > 0 {
			r.descriptors = append(r.descriptors, p.descriptors[i])
		}
	}
	if r.descriptors == nil {
		return nil
	}
	return r
}

// sessionMethod serves Session.
type sessionMethod struct{ *HoldServer }

// Serve implements h2.Handler.
func (m sessionMethod) Serve(k *h2.Stream) {
	r := new(pb.SessionRequest)
	err := decode(k.Message(), r)
	var watch *plan
	if err == nil {
		watch, err = planSession(r)
	}
	if err != nil {
		fail(k, err)
		return
	}
	key := sessionKey{k.Identity(), r.GetCaller()}
	if key.caller == "" {
		key.caller = newID()
	}
	if err := m.sessions.begin(key); err != nil {
		fail(k, err)
		return
	}
	go m.run(k, key, watch)
}

// planSession returns the plan that reads the watched limits, or nil if there are none.
func planSession(r *pb.SessionRequest) (*plan, error) {
	switch {
	case len(r.GetCaller()) > maxID:
		return nil, invalid("caller is longer than %d bytes", maxID)
	case len(r.GetWatch()) > maxWatched:
		return nil, invalid("there are more than %d limits to watch", maxWatched)
	case len(r.GetWatch()) == 0:
		return nil, nil
	}
	return newPlan(owner.Read, r.GetDomain(), r.GetWatch())
}

// run serves a session until its caller or the server ends it.
func (m sessionMethod) run(k *h2.Stream, key sessionKey, watch *plan) {
	ended := m.serve(k, key.caller, watch)
	k.End()
	m.releaseAll(m.sessions.end(key, time.Now(), ended), key)
	if !ended {
		time.AfterFunc(m.sessions.resume, func() { m.releaseAll(m.sessions.expire(key, time.Now()), key) })
	}
	m.sessions.done.Done()
}

// serve returns true when the caller has ended the session, and false when the server has.
func (m sessionMethod) serve(k *h2.Stream, caller string, watch *plan) bool {
	if k.Send(encoded{&pb.Notice{Caller: caller}}) != nil {
		return true
	}
	life := time.NewTimer(m.sessions.life)
	defer life.Stop()
	var tick <-chan time.Time
	if watch != nil {
		c, stop := m.sessions.tick()
		defer stop()
		tick = c
	}
	levels := make([]uint32, maxWatched)
	for {
		select {
		case <-k.Done():
			return true
		case <-life.C:
			return false
		case <-m.sessions.closed:
			return false
		case <-tick:
			if m.notify(k, watch, levels) != nil {
				return true
			}
		}
	}
}

// notify reads the watched limits and sends a notice for each level that has changed.
func (m sessionMethod) notify(k *h2.Stream, watch *plan, levels []uint32) error {
	c := m.service.NewCall()
	defer m.service.Release(c)
	watch.fill(c)
	m.service.DecideHold(c, watch.hold, rls.Caller{Hold: rls.HoldCaller{Address: k.RemoteAddr(), Identity: k.Identity()}})
	if c.Err != nil {
		return nil // the rules may change; the next tick tries again
	}
	for i := range watch.descriptors {
		u := usage(c, i)
		if n := level(u); n != levels[i] {
			levels[i] = n
			if err := k.Send(encoded{&pb.Notice{Watch: uint32(i), Level: n, Usage: u}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// level returns the level of a limit: 100 if nothing is left, 80 if at most a fifth is left, or 0.
func level(u *pb.LimitUsage) uint32 {
	switch used, left := u.GetSpent()+u.GetHeld(), uint64(u.GetLeft()); {
	case !u.GetCounted():
		return 0
	case left == 0:
		return 100
	case used/4 >= left:
		return 80
	}
	return 0
}

func (s *HoldServer) releaseAll(slots []*plan, key sessionKey) {
	for _, p := range slots {
		s.release(p, key)
	}
}

// release releases the requests in flight of a caller that has ended. The Decider repeats what no owner confirms.
func (s *HoldServer) release(p *plan, key sessionKey) {
	c := s.service.NewCall()
	defer s.service.Release(c)
	p.fill(c)
	s.service.DecideHold(c, p.hold, rls.Caller{Hold: rls.HoldCaller{Caller: key.caller, Identity: key.identity}})
}
