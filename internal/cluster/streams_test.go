package cluster

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// A member that does not find the others, for a reason that indicates a mistake, never starts its own cluster,
// whatever its name and however many members it expects. Until then it divides limits by at least two.
func TestMisconfiguredMemberNeverStarts(t *testing.T) {
	for _, id := range []ring.ID{"me-0", "me-1"} {
		for _, expect := range []int{0, 1, 3} {
			for what, c := range map[membership.Cause]joinStatus{
				membership.CauseLookup: {rounds: 1, listed: 1, unresolved: true, failure: "look up typo: no such host"},
				membership.CauseGossip: {rounds: 1, listed: 2, others: []string{"10.0.0.9:7946"}, foreign: 1, failure: "10.0.0.9:7946: EOF"},
			} {
				b := newBed(expect)
				b.self.ID, b.join = id, c
				if v := b.look(0).view; v.Joined || v.NRef < max(2, expect) || v.Problem != "" {
					t.Errorf("%s, expect %d, %s, at first: joined %v, N_ref %d, %s", id, expect, what, v.Joined,
						v.NRef, v.Problem)
				}
				for _, after := range []time.Duration{3 * time.Second, 26 * time.Second, 2 * time.Second, time.Hour} {
					v := b.look(after).view
					if v.Joined || v.Ring.Len() != 0 || v.NRef < max(2, expect) || v.Cause != what ||
						!strings.Contains(v.Problem, c.failure) {
						t.Fatalf("%s, expect %d, %s, after %v: joined %v, ring of %d, N_ref %d, %q: %s", id, expect,
							what, b.now.Sub(epoch), v.Joined, v.Ring.Len(), v.NRef, v.Cause, v.Problem)
					}
				}
				b.others = members(1)
				b.others[0].State = membership.Active
				b.look(time.Second)
				if v := b.look(time.Second).view; v.Problem != "" || v.Ring.Len() != 2 {
					t.Errorf("%s, expect %d, %s, having met one: ring of %d, %s", id, expect, what, v.Ring.Len(),
						v.Problem)
				}
			}
		}
	}
}

// When a name resolves at last, the member looks for others as long as it would have from its start.
func TestLateNameService(t *testing.T) {
	b := newBed(0)
	b.join = joinStatus{rounds: 1, listed: 1, unresolved: true}
	b.look(0)
	b.look(35 * time.Second)
	b.join = joinStatus{rounds: 2, listed: 3, others: []string{"10.0.0.10:7946", "10.0.0.11:7946"}}
	if v := b.look(time.Second).view; v.Joined || v.Ring.Len() != 0 || v.NRef != 3 {
		t.Errorf("as soon as the name resolves: joined %v, ring of %d, N_ref %d", v.Joined, v.Ring.Len(), v.NRef)
	}
	if v := b.look(28 * time.Second).view; v.Joined {
		t.Error("it started before the time of a cold start")
	}
	if v := b.look(2 * time.Second).view; !v.Joined || v.NRef != 3 {
		t.Errorf("after it: joined %v, N_ref %d", v.Joined, v.NRef)
	}
}

// Members with the same mistake meet each other. They are not a cluster while more addresses reject them than accept
// them. Meeting a running member ends this.
func TestSeveralWithTheSameMistake(t *testing.T) {
	for _, c := range []struct {
		met, foreign int
		runs, begins bool
	}{{1, 3, false, false}, {1, 1, false, true}, {2, 3, false, false}, {2, 2, false, true}, {1, 3, true, true}} {
		b := newBed(3)
		b.join = joinStatus{rounds: 1, listed: 1 + c.met + c.foreign, foreign: c.foreign}
		b.others = members(c.met)
		if c.runs {
			b.others[0].State = membership.Active
		}
		b.look(0)
		b.look(time.Minute)
		b.look(time.Minute)
		if on := b.view.Ring.Index("me-1") >= 0; on != c.begins {
			t.Errorf("%+v: on the ring %v", c, on)
		}
	}
}

// A member that had no streams with a running cluster does not start its own when all of its members disappear at
// once: they will return. When they do, they do not count the isolated member.
func TestIsolatedMemberDoesNotTakeOver(t *testing.T) {
	b := connectedBed()
	b.look(0)
	b.agree()
	b.look(time.Minute)
	if v := b.view; !v.SelfMember().Isolated || v.Cause != membership.CauseStreams {
		t.Fatalf("isolated %v, %s", v.SelfMember().Isolated, v.Problem)
	}
	for range 3 {
		b.lose(0, false)
	}
	for range 3 {
		if v := b.look(time.Hour).view; v.Ring.Index("me-1") >= 0 || !v.SelfMember().Isolated {
			t.Fatalf("alone: on the ring %v", v.Ring.Index("me-1") >= 0)
		}
	}
	b.others = members(1) // another isolated one, of the same CA
	b.others[0].Peer, b.others[0].Isolated, b.status.streams.With = "10.0.0.9:7947", true, []ring.ID{b.others[0].ID}
	b.look(time.Second)
	if v := b.look(time.Hour).view; v.Ring.Index("me-1") >= 0 {
		t.Error("two isolated members started a cluster")
	}
	b.others[0].Isolated = false // repaired
	for range 3 {
		b.look(time.Minute)
	}
	if v := b.view; v.Ring.Index("me-1") < 0 || v.SelfMember().Isolated {
		t.Errorf("repaired: %s", v.Problem)
	}
	g := newBed(0)
	g.streams, g.others = true, members(1)
	g.others[0].Peer, g.others[0].Isolated = "10.0.0.9:7947", true
	g.join = joinStatus{rounds: 1, listed: 2, others: []string{g.others[0].Gossip}}
	g.look(0)
	g.look(time.Minute)
	if v := g.look(time.Minute).view; v.Ring.Index("me-1") < 0 {
		t.Errorf("next to an isolated member: %s", v.Problem)
	}
}

// A running cluster takes precedence over any number of newcomers. If only one member is on the ring, most of all
// members decide; if none is, half.
func TestEnoughStreams(t *testing.T) {
	for _, c := range []struct {
		name string
		ties streamCounts
		want bool
	}{
		{"no other member", streamCounts{}, true},
		{"one of one joining member", streamCounts{all: 1, connected: 1}, true},
		{"none of one joining member", streamCounts{all: 1}, false},
		{"one of two joining members", streamCounts{all: 2, connected: 1}, true},
		{"one of three joining members", streamCounts{all: 3, connected: 1}, false},
		{"two of three on the ring", streamCounts{all: 3, connected: 2, active: 3, activeConnected: 2}, true},
		{"one of three on the ring", streamCounts{all: 3, connected: 1, active: 3, activeConnected: 1}, false},
		{"many newcomers, none of three on the ring", streamCounts{all: 12, connected: 9, active: 3}, false},
		{"the one on the ring", streamCounts{all: 5, connected: 1, active: 1, activeConnected: 1}, true},
		{"another newcomer, not the one on the ring", streamCounts{all: 2, connected: 1, active: 1}, true},
		{"not the only other member, on the ring", streamCounts{all: 1, active: 1}, false},
		{"one of two newcomers, not the one on the ring", streamCounts{all: 3, connected: 1, active: 1}, false},
	} {
		if got := c.ties.enough(); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// A member that started alone and has never had a stream gives up its place when several others are there, because
// they are reachable and it is not.
func TestIsolatedMemberGivesUpItsPlace(t *testing.T) {
	b := newBed(0)
	b.streams, b.join = true, joinStatus{rounds: 1, listed: 1}
	b.look(0)
	b.look(time.Minute)
	if b.view.SelfMember().State != membership.Active {
		t.Fatal("not alone on its ring")
	}
	b.others = members(1)
	b.others[0].Peer = "10.0.0.8:7947"
	b.look(time.Second)
	if v := b.look(time.Minute).view; v.SelfMember().State != membership.Active {
		t.Error("it gave up its place for one without streams")
	}
	b.others = members(2)
	b.others[0].Peer, b.others[1].Peer = "10.0.0.8:7947", "10.0.0.9:7947"
	b.look(time.Second)
	if v := b.look(time.Minute).view; v.SelfMember().State != membership.Joining ||
		v.Cause != membership.CauseStreams {
		t.Errorf("with two others: %v, %s", v.SelfMember().State, v.Problem)
	}
	b.status.streams.With = []ring.ID{"other-0"}
	b.look(time.Second)
	if v := b.look(time.Minute).view; v.SelfMember().State != membership.Active || v.Problem != "" {
		t.Errorf("repaired: %v, %s", v.SelfMember().State, v.Problem)
	}
}

// No member starts a cluster before its first round, however long that takes.
func TestNoStartBeforeTheFirstRound(t *testing.T) {
	b := newBed(0)
	b.join = joinStatus{}
	if v := b.look(time.Hour).view; v.Joined || v.Ring.Len() != 0 {
		t.Errorf("joined %v, ring of %d", v.Joined, v.Ring.Len())
	}
}

// ExpectTimeout ends the wait after a mistake as well.
func TestMisconfiguredUntilExpectTimeout(t *testing.T) {
	b := newBed(3)
	b.expectTimeout, b.join = time.Minute, joinStatus{rounds: 1, listed: 1, unresolved: true}
	b.look(0)
	if v := b.look(time.Minute - time.Second).view; v.Joined || v.NRef != 3 {
		t.Errorf("before: joined %v, N_ref %d", v.Joined, v.NRef)
	}
	if v := b.look(time.Second).view; !v.Joined || v.NRef != 1 || v.Problem != "" {
		t.Errorf("after: joined %v, N_ref %d, %s", v.Joined, v.NRef, v.Problem)
	}
}

// A running member that is alone has the full limit, even if an address in its list rejects it.
func TestRunningMemberIsNotMisconfigured(t *testing.T) {
	b := newBed(0)
	b.self.ID, b.join = "me-0", joinStatus{rounds: 1, listed: 1}
	b.look(0)
	b.join = joinStatus{rounds: 2, listed: 1, foreign: 1, failure: "10.0.0.9:7946: EOF"}
	if v := b.look(time.Minute).view; !v.Joined || v.NRef != 1 || v.Problem != "" {
		t.Errorf("joined %v, N_ref %d, %s", v.Joined, v.NRef, v.Problem)
	}
}

// Without Expect, a member that has met none of the listed others keeps its share of as many as are listed.
func TestListedButNeverMet(t *testing.T) {
	b := newBed(0)
	b.join = joinStatus{rounds: 1, listed: 3, others: []string{"10.0.0.8:7946", "10.0.0.9:7946"}}
	b.look(0)
	if v := b.look(time.Hour).view; !v.Joined || v.NRef != 3 {
		t.Errorf("joined %v, N_ref %d, want 3", v.Joined, v.NRef)
	}
	b.join = joinStatus{rounds: 2, listed: 1}
	if v := b.look(time.Second).view; v.NRef != 1 {
		t.Errorf("without listed members: N_ref %d", v.NRef)
	}
}

// connectedBed returns a member that joins a cluster of three, and needs streams.
func connectedBed() *testbed {
	b := newBed(0)
	b.streams = true
	b.fill(3)
	for i := range b.others {
		b.others[i].Established, b.others[i].Peer = true, "10.0.0.9:7947"
	}
	return b
}

// A member takes its place when it has streams with half of the members that count, and never before.
func TestMemberWithoutStreamsStaysOffTheRing(t *testing.T) {
	b := connectedBed()
	b.look(0)
	b.agree()
	if v := b.look(time.Second).view; v.Problem != "" || v.Ring.Index("me-1") >= 0 {
		t.Errorf("at first: on the ring %v, %s", v.Ring.Index("me-1") >= 0, v.Problem)
	}
	b.status.streams = Streams{With: []ring.ID{"other-0"}, Without: "other-1: certificate has expired"}
	for _, after := range []time.Duration{4 * time.Second, time.Minute, time.Hour} {
		b.look(after)
		v := b.look(time.Second).view
		if v.Ring.Index("me-1") >= 0 || v.SelfMember().State != membership.Joining ||
			v.Cause != membership.CauseStreams || !strings.Contains(v.Problem, "with 1 of 3 other members") || !strings.Contains(v.Problem, "certificate has expired") {
			t.Fatalf("after %v: %v, on the ring %v, %q: %s", b.now.Sub(epoch), v.SelfMember().State,
				v.Ring.Index("me-1") >= 0, v.Cause, v.Problem)
		}
	}
	b.status.streams.With = []ring.ID{"other-0", "other-2"}
	for range 3 {
		b.look(time.Minute)
	}
	if v := b.view; v.Ring.Index("me-1") < 0 || v.Problem != "" {
		t.Errorf("with two of three: on the ring %v, %s", v.Ring.Index("me-1") >= 0, v.Problem)
	}
	b.status.streams.With = nil
	if v := b.look(time.Minute).view; v.SelfMember().State != membership.Active {
		t.Error("a member gave up its place because it lost streams")
	}
}

// One member on the ring admits the full limit: a member that stays off the ring counts itself in addition.
func TestOffTheRingDividesByOneMore(t *testing.T) {
	b := newBed(0)
	b.streams = true
	b.fill(1)
	b.others[0].Established, b.others[0].Peer, b.others[0].NRef = true, "10.0.0.9:7947", 1
	b.look(0)
	b.agree()
	b.look(time.Minute)
	if v := b.look(time.Minute).view; v.Cause != membership.CauseStreams || v.NRef != 2 {
		t.Errorf("%q: N_ref %d, want 2", v.Cause, v.NRef)
	}
}

// If no member is on the ring yet, the joining ones decide: one of three that is unreachable leaves the other two
// alone.
func TestStreamsInAColdStart(t *testing.T) {
	for _, c := range []struct {
		with []ring.ID
		on   bool
	}{{nil, false}, {[]ring.ID{"other-1"}, true}} {
		b := newBed(3)
		b.streams, b.others = true, members(2)
		b.others[0].Peer, b.others[1].Peer = "10.0.0.8:7947", "10.0.0.9:7947"
		b.status.streams.With = c.with
		b.look(0)
		b.look(time.Minute)
		if on := b.view.Ring.Index("me-1") >= 0; on != c.on {
			t.Errorf("with streams to %v: on the ring %v", c.with, on)
		}
	}
}

// The others learn by gossip that a member is isolated. When all of them restart, they form a cluster at once,
// without it.
func TestOthersLearnWhoIsIsolated(t *testing.T) {
	virtual(t, func(t *testing.T) {
		start := func(name string, with []ring.ID, join ...string) *Cluster {
			o := options(name, join...)
			o.Streams, o.Peer, o.Expect = true, "127.0.0.1:1", 2
			withFastProbes(&o)
			c := up(t, o)
			c.SetStreams(Streams{With: with, Without: "bad certificate"})
			return c
		}
		a := start("a-0", []ring.ID{"b"})
		b := start("b", []ring.ID{"a-0"}, a.Gossip())
		odd := start("odd", nil, a.Gossip(), b.Gossip())
		eventually(t, "two on the ring, and one isolated", func() bool {
			x, found := a.View().Find("odd")
			return a.View().Ring.Len() == 2 && found && x.Isolated && odd.View().Cause == membership.CauseStreams
		})
		old := []string{a.Gossip(), b.Gossip()}
		a.Close()
		b.Close()
		a = start("a-0", []ring.ID{"b"}, append(old, odd.Gossip())...)
		b = start("b", []ring.ID{"a-0"}, a.Gossip(), odd.Gossip())
		eventually(t, "two joined without the isolated one", func() bool {
			v, w := a.View(), b.View()
			return v.Joined && w.Joined && v.Ring.Len() == 2 && v.Ring.Fingerprint() == w.Ring.Fingerprint() &&
				v.Ring.Index("odd") < 0
		})
		if v := odd.View(); v.SelfMember().State != membership.Joining {
			t.Errorf("the isolated member is %v", v.SelfMember().State)
		}
	})
}

// shortStart makes a member's cold start end at once.
func shortStart(o *Options) { o.Timing.ColdStart, o.Timing.Alone = time.Millisecond, time.Millisecond }

// keyed returns a member whose gossip key is c repeated.
func keyed(name, dir, c string) Options {
	o := options(name)
	o.Insecure, o.KeyFile = false, filepath.Join(dir, c)
	if err := os.WriteFile(o.KeyFile, []byte(base64.StdEncoding.EncodeToString([]byte(strings.Repeat(c, 32)))), 0o600); err != nil {
		panic(err)
	}
	return o
}

// With another key or label, or a name that does not resolve, a member reports the problem and never starts its own
// cluster. When the mistake is corrected, it joins.
func TestMisconfiguredMemberWaits(t *testing.T) {
	dir := t.TempDir()
	first := keyed("a-0", dir, "r")
	right, wrong := first.KeyFile, keyed("", dir, "w").KeyFile
	a := up(t, first)
	eventually(t, "one", func() bool { return whole(a) })
	z := newZone(t)
	for _, c := range []struct {
		name   string
		cause  membership.Cause
		text   string
		change func(*Options)
	}{
		{"key", membership.CauseGossip, "--gossip-key-file", func(o *Options) { o.KeyFile = wrong }},
		{"label", membership.CauseGossip, "--cluster", func(o *Options) { o.Cluster = "another" }},
		{"name", membership.CauseLookup, "lookup typo.test", func(o *Options) {
			o.Join, o.Resolver = []string{"dns+typo.test" + a.Gossip()[strings.LastIndexByte(a.Gossip(), ':'):]}, resolver(t, z)
		}},
	} {
		o := options("b-"+c.name, a.Gossip())
		o.Insecure, o.KeyFile = false, right
		shortStart(&o)
		o.Timing.ColdStart = 3 * time.Second // a busy machine may not answer the first attempt in time
		c.change(&o)
		begin := time.Now()
		b := up(t, o)
		eventually(t, c.name+": reported",
			func() bool { return b.View().Cause == c.cause && strings.Contains(b.View().Problem, c.text) })
		searched := rounds(b, 3)
		throughout(t, c.name+": waiting", func() bool {
			return !b.View().Joined && b.View().Ring.Len() == 0 && b.View().NRef >= 2
		}, func() bool { return searched() && time.Since(begin) > o.Timing.ColdStart })
		if got := testutil.ToFloat64(b.metrics.offRing.WithLabelValues(string(c.cause))); got != 1 {
			t.Errorf("%s: keyward_off_ring is %v", c.name, got)
		}
		switch c.name {
		case "key":
			key, err := os.ReadFile(right)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(wrong, key, 0o600); err != nil {
				t.Fatal(err)
			}
		case "name":
			z.set("typo.test", "127.0.0.1")
		default:
			continue
		}
		eventually(t, c.name+": mended", func() bool { return whole(a, b) })
		b.Leave(t.Context())
		eventually(t, "one on the ring again", func() bool { return whole(a) })
	}
}
