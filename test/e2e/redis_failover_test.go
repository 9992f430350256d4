package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/internal/lab"
)

// redisPair is a Redis that lends to three regions, and a replica of it. Regions reach the one at the address of their WAN,
// which can be changed, as a failover does.
type redisPair struct {
	*realRegions
	replica *lab.Process
	second  string // address of the replica
	link    *wan   // from the replica to the primary
}

func newRedisPair(t *testing.T, query string) *redisPair {
	t.Helper()
	p := &redisPair{realRegions: newRealRedis(t)}
	redisDo(t, p.addr, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
	p.link = startWAN(t, p.addr, 0)
	var err error
	if p.second, err = (lab.Ports{}).Addr(); err != nil {
		t.Fatal(err)
	}
	p.replica = startRedis(t, p.dir, p.second, "--replicaof", "127.0.0.1 "+port(p.link.addr), "--repl-diskless-sync-delay", "0")
	p.replicates(p.second)
	p.addRegions("fail_closed", func(addr string) string { return "redis://" + addr + "/" + query }, lab.Options{})
	return p
}

// redisDo sends a command to a Redis.
func redisDo(t *testing.T, addr, name string, args ...any) any {
	t.Helper()
	reply, err := redisCall(addr, name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v", name, args, err)
	}
	return reply
}

func redisCall(addr, name string, args ...any) (any, error) {
	c, err := redigo.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Do(name, args...)
}

// replicates waits until a replica has a copy and the connection to its primary.
func (p *redisPair) replicates(addr string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 10*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the replica", func(context.Context) error {
		info, err := redigo.String(redisCall(addr, "INFO", "replication"))
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New("not connected")
		}
		return err
	}); err != nil {
		p.t.Fatal(err)
	}
}

// lent returns what each region has of a window, by the records of a Redis that has those of one key.
func (p *redisPair) lent(addr string, window int64) map[string]int {
	p.t.Helper()
	keys, err := redigo.Strings(redisDo(p.t, addr, "KEYS", fmt.Sprintf("{kw*}:fed:*:%d", window)), nil)
	if err != nil || len(keys) != 1 {
		p.t.Fatal(keys, err)
	}
	fields, err := redigo.StringMap(redisDo(p.t, addr, "HGETALL", keys[0]), nil)
	if err != nil {
		p.t.Fatal(err)
	}
	lent := map[string]int{}
	for name, line := range fields {
		if region, ok := strings.CutPrefix(name, "l"); ok {
			var boot, seq string
			var have int
			if _, err := fmt.Sscan(line, &boot, &seq, &have); err != nil {
				p.t.Fatal(line, err)
			}
			lent[region] = have
		}
	}
	return lent
}

// failOver kills the primary and promotes the replica. It returns what the primary had lent of the window, and the replica
// does not know. Regions reach neither of them until connect.
func (p *redisPair) failOver(window int64) (lost int) {
	p.t.Helper()
	redisDo(p.t, p.addr, "CLIENT", "PAUSE", 60_000, "WRITE") // it lends no more than the next line reads
	was := p.lent(p.addr, window)
	p.redis.Kill()
	redisDo(p.t, p.second, "REPLICAOF", "NO", "ONE")
	is := p.lent(p.second, window)
	for region, have := range was {
		lost += max(0, have-is[region])
	}
	return lost
}

// connect has regions reach the promoted replica.
func (p *redisPair) connect(regions ...*realRegion) {
	for _, r := range regions {
		r.wan.to.Store(p.second)
		r.wan.cut(true)
		r.wan.cut(false)
	}
}

// moment is an event so long after the start of a window.
type moment struct {
	after time.Duration
	do    func(window int64)
}

// during has all regions ask for more than the limit in one window, in which the moments happen.
func (x *realRegions) during(key string, moments ...moment) (window int64, s *windowTally) {
	x.t.Helper()
	window = x.limit.of(time.Now()) + 1
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, m := range moments {
			time.Sleep(time.Until(x.limit.begin(window).Add(m.after)))
			m.do(window)
		}
	}()
	s = x.loadFrom(window, "shared", key, 1, 150, 90, 90)
	<-done
	return window, s
}

func (x *realRegions) repaired() (sum float64) {
	for i := range x.list {
		sum += x.metric(i, "keyward_federation_repaired_hits_total")
	}
	return sum
}

// goesOn requires that most of the limit was admitted in the window, which regions can only if they are lent some after
// the failure. It returns how many hits were admitted above the limit.
func (x *realRegions) goesOn(window int64, s *windowTally) (over int) {
	x.t.Helper()
	if used := s.used(window, 1); used < 0.85 {
		x.t.Errorf("%.0f %% of the limit used", 100*used)
	} else {
		x.t.Logf("%.0f %% of the limit used, %d failed, p99 %v", 100*used, s.failed, s.quantile(0.99))
	}
	return s.admitted[window] - regionLimit
}

// TestRedisFailover kills a Redis in the middle of a window and promotes its replica, which has confirmed each grant. The
// former primary returns as its replica. Nothing is admitted above the limit.
func TestRedisFailover(t *testing.T) {
	p := newRedisPair(t, "?wait=1")
	var lost int
	window, s := p.during("confirmed", moment{2500 * time.Millisecond, func(window int64) {
		lost = p.failOver(window)
		p.redis = startRedis(t, p.dir, p.addr, "--replicaof", "127.0.0.1 "+port(p.second))
		redisDo(t, p.second, "CONFIG", "SET", "repl-diskless-sync-delay", "0")
		p.replicates(p.addr)
		p.connect(p.list...)
	}})
	if over := p.goesOn(window, s); over > 0 || p.repaired() != 0 {
		t.Errorf("%d above the limit, %.0f repaired, %d were lent and not confirmed", over, p.repaired(), lost)
	}
}

// TestRedisFailoverLosesWrites promotes a replica that has lacked its primary's writes for a while. What regions report is
// charged again. What they are admitted above the limit is at most what the primary had lent meanwhile.
func TestRedisFailoverLosesWrites(t *testing.T) {
	p := newRedisPair(t, "")
	var lost int
	window, s := p.during("reported", moment{time.Second, func(int64) { p.link.cut(true) }}, moment{3 * time.Second, func(window int64) {
		lost = p.failOver(window)
		p.connect(p.list...)
	}})
	over, repaired := p.goesOn(window, s), p.repaired()
	if lost == 0 || over > lost || repaired == 0 || repaired > float64(lost) {
		t.Errorf("%d above the limit, %d lost, %.0f repaired", over, lost, repaired)
	} else {
		t.Logf("%d above the limit, %d lost, %.0f repaired", over, lost, repaired)
	}
}

// TestRedisFailoverWithoutARegion is the same, but one region is cut off from then on: its hits, of which the replica has no record,
// are lent again.
func TestRedisFailoverWithoutARegion(t *testing.T) {
	p := newRedisPair(t, "")
	var lost int
	window, s := p.during("silent", moment{500 * time.Millisecond, func(int64) { p.link.cut(true) }}, moment{2500 * time.Millisecond, func(window int64) {
		lost = p.failOver(window)
		p.list[0].wan.cut(true)
		p.connect(p.list[1:]...)
	}})
	over, repaired := p.goesOn(window, s), p.repaired()
	if over <= 0 || over > lost || repaired == 0 || repaired > float64(lost) {
		t.Errorf("%d above the limit, %d lost, %.0f repaired", over, lost, repaired)
	} else {
		t.Logf("%d above the limit, %d lost, %.0f repaired", over, lost, repaired)
	}
}
