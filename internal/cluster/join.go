package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// entry is one item of Options.Join.
type entry struct {
	host string
	port uint16
}

// parseEntry parses host:port or dns+host:port. Both mean all addresses of host, which is resolved again in each
// round.
func parseEntry(s string, port uint16) (entry, error) {
	rest := strings.TrimPrefix(s, "dns+")
	if strings.ContainsAny(rest, "+/ ") {
		return entry{}, fmt.Errorf("%q is neither host:port nor dns+host:port", s)
	}
	host, port, err := splitAddr(rest, port)
	if err != nil {
		return entry{}, err
	}
	if host == "" || port == 0 {
		return entry{}, fmt.Errorf("%q lacks a host or a port", s)
	}
	return entry{host, port}, nil
}

// joiner keeps the cluster connected. It joins every address that should belong to a live member and does not,
// forever, because memberlist forgets the other side of a partition after a while and never looks for it.
type joiner struct {
	c       *Cluster
	entries []entry
	wake    chan struct{} // has room for one: a member was lost

	// Used by the join loop only.
	rounds  int
	known   map[entry][]netip.AddrPort       // last successful resolution
	unknown map[entry]error                  // errors of the last round
	foreign map[netip.AddrPort]*foreignError // addresses that answered, rejected this member, and were not joined since
	failing map[string]bool                  // names and addresses whose failure was logged

	mu   sync.Mutex
	lost map[netip.AddrPort]time.Time // guarded by mu: addresses of dead members, with the time of death
}

// maxLost is the maximum number of dead members' addresses that are still tried.
const maxLost = 1024

func newJoiner(c *Cluster, join []string) (*joiner, error) {
	j := &joiner{
		c: c, wake: make(chan struct{}, 1), known: make(map[entry][]netip.AddrPort),
		unknown: make(map[entry]error), foreign: make(map[netip.AddrPort]*foreignError),
		failing: make(map[string]bool), lost: make(map[netip.AddrPort]time.Time),
	}
	for _, s := range join {
		e, err := parseEntry(s, defaultPort)
		if err != nil {
			return nil, fmt.Errorf("join: %w", err)
		}
		j.entries = append(j.entries, e)
	}
	return j, nil
}

// addLost records the address of a dead member, and wakes the join loop.
func (j *joiner) addLost(gossip string, now time.Time) {
	at, err := netip.ParseAddrPort(gossip)
	if err != nil {
		return
	}
	j.mu.Lock()
	if len(j.lost) < maxLost {
		j.lost[at] = now
	}
	j.mu.Unlock()
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// lostAddresses returns the addresses of dead members that memberlist still remembers.
func (j *joiner) lostAddresses(now time.Time) []netip.AddrPort {
	j.mu.Lock()
	defer j.mu.Unlock()
	maps.DeleteFunc(j.lost,
		func(_ netip.AddrPort, since time.Time) bool { return now.Sub(since) > j.c.o.Timing.LostMemory })
	return slices.Collect(maps.Keys(j.lost))
}

func (j *joiner) removeLost(a netip.AddrPort) {
	j.mu.Lock()
	delete(j.lost, a)
	j.mu.Unlock()
}

// run joins until ctx ends. It starts after a random delay, and again after a loss, so that members do not act at the
// same time.
func (j *joiner) run(ctx context.Context) {
	sleep(ctx, rand.N(j.c.o.Timing.JoinDelay))
	for {
		wait := j.c.o.Timing.JoinIdle
		if missing := j.round(ctx); missing {
			wait = j.c.o.Timing.JoinRetry
		}
		if !j.c.View().Joined {
			wait = min(j.c.o.Timing.JoinRetry, time.Second)
		}
		timer := time.NewTimer(jittered(wait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		case <-j.wake:
			timer.Stop()
			sleep(ctx, rand.N(j.c.o.Timing.JoinDelay))
		}
	}
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// round resolves all names, joins the addresses that are not live members', and reports whether any is still missing.
func (j *joiner) round(ctx context.Context) (missing bool) {
	targets, blind := j.resolve(ctx)
	live := j.live()
	var try []netip.AddrPort
	for _, a := range targets {
		if !live[a] {
			try = append(try, a)
		}
	}
	for _, a := range j.lostAddresses(time.Now()) {
		switch {
		case live[a]:
			j.removeLost(a)
		case !slices.Contains(try, a):
			try = append(try, a)
		}
	}
	ok := j.joinAll(ctx, try)
	if ctx.Err() != nil {
		return true
	}
	j.c.metrics.missing.Set(float64(len(try) - len(ok)))
	j.pruneFailures(try)
	j.rounds++
	c := joinStatus{
		rounds: j.rounds, listed: len(targets) + 1, blind: blind,
		unresolved: len(j.known) == 0, foreign: len(j.foreign), failure: j.failure(),
	}
	for _, a := range targets {
		c.others = append(c.others, a.String())
		if live[a] || ok[a] {
			c.reached = append(c.reached, a.String())
		}
	}
	j.c.table.setJoinStatus(c)
	return len(ok) < len(try)
}

// failure describes for people why this member has not met the others: an address that rejects it, or names that
// cannot be resolved.
func (j *joiner) failure() string {
	by, detail := map[string][]string{}, map[string]string{}
	for a, err := range j.foreign {
		by[err.what] = append(by[err.what], a.String())
		detail[err.what] = err.detail
	}
	var failed []string
	for what, addrs := range by {
		slices.Sort(addrs)
		failed = append(failed, fmt.Sprintf("%s: %s (%s)", strings.Join(addrs, ", "), what, detail[what]))
	}
	for e, err := range j.unknown {
		if err != nil && len(by) == 0 {
			failed = append(failed, e.host+": "+err.Error())
		}
	}
	slices.Sort(failed)
	return strings.Join(failed, "; ")
}

// pruneFailures removes the failures of addresses that are no longer tried.
func (j *joiner) pruneFailures(tried []netip.AddrPort) {
	maps.DeleteFunc(j.failing, func(what string, _ bool) bool {
		return !slices.ContainsFunc(j.entries, func(e entry) bool { return e.host == what }) &&
			!slices.ContainsFunc(tried, func(a netip.AddrPort) bool { return a.String() == what })
	})
}

// live returns the gossip addresses of all live members.
func (j *joiner) live() map[netip.AddrPort]bool {
	out := make(map[netip.AddrPort]bool)
	for _, m := range j.c.table.others() {
		if at, err := netip.ParseAddrPort(m.Gossip); err == nil {
			out[at] = true
		}
	}
	return out
}

// resolve returns the current addresses of all entries, without this member's own. A name that cannot be resolved
// keeps its addresses, so a failed name service does not affect a running cluster. Blind reports whether a name may
// exist and has no address yet.
func (j *joiner) resolve(ctx context.Context) (out []netip.AddrPort, blind bool) {
	for _, e := range j.entries {
		ips, err := j.lookup(ctx, e.host)
		j.unknown[e] = err
		if j.report(ctx, failedLookup, e.host, err) {
			j.known[e] = atPort(ips, e.port)
		}
		var dns *net.DNSError
		if isUnknown := errors.As(err, &dns) && dns.IsNotFound; err != nil && !isUnknown && len(j.known[e]) == 0 {
			blind = true
		}
		for _, a := range j.known[e] {
			if !j.c.gossip.selfAddresses[a] && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	return out, blind
}

func atPort(ips []netip.Addr, port uint16) []netip.AddrPort {
	out := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		out[i] = netip.AddrPortFrom(ip.Unmap(), port)
	}
	return out
}

func (j *joiner) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	ips, err := j.c.o.Resolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(ips) == 0 {
		err = fmt.Errorf("look up %s: no address", host)
	}
	return ips, err
}

// joinMessages are the log messages for a failure and its end, by reason.
var joinMessages = map[string]struct{ failed, recovered string }{
	failedLookup: {"cannot look up name; retrying", "name resolves again"},
	failedJoin:   {"cannot join address; retrying", "address joined again"},
}

// report counts a failure, and logs it when it begins and when it ends. It reports whether err is nil.
func (j *joiner) report(ctx context.Context, reason, what string, err error) bool {
	switch {
	case ctx.Err() != nil:
	case err != nil:
		j.c.metrics.joinFailures.WithLabelValues(reason).Inc()
		if !j.failing[what] {
			j.failing[what] = true
			j.c.log.Warn(joinMessages[reason].failed, "address", what, "error", err)
		}
	case j.failing[what]:
		delete(j.failing, what)
		j.c.log.Info(joinMessages[reason].recovered, "address", what)
	}
	return err == nil
}

// joinAll joins all addresses in try, several at a time, and returns those that answered.
func (j *joiner) joinAll(ctx context.Context, try []netip.AddrPort) map[netip.AddrPort]bool {
	errs := make([]error, len(try))
	slots := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for i, a := range try {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = j.c.gossip.join(a)
			<-slots
		})
	}
	wg.Wait()
	ok := make(map[netip.AddrPort]bool)
	for i, a := range try {
		if j.report(ctx, failedJoin, a.String(), errs[i]) {
			ok[a] = true
		}
		if e := (*foreignError)(nil); errors.As(errs[i], &e) {
			j.foreign[a] = e
		}
	}
	// An address that does not answer for a while, as during a restart, is still the same process.
	maps.DeleteFunc(j.foreign, func(a netip.AddrPort, e *foreignError) bool {
		return ok[a] || !slices.Contains(try, a) || time.Since(e.at) > j.c.o.Timing.ColdStart
	})
	return ok
}
