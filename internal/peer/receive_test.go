package peer

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// Messages have no effect unless they are from the member's current boot, for this boot, and young enough.
func TestMessageRefused(t *testing.T) {
	ms := newCluster(t, 2)
	m, other := ms[1], ms[0]
	before := m.Stats()
	counter := sampleMsg(protocol.Replica).Counters[:1]
	now := m.Now()
	for _, tt := range []struct {
		name       string
		from       ring.ID
		boot, to   uint64
		sent       int64
		garbage    bool
		want       string
		wantMerged bool
	}{
		{name: "unknown", from: "m9", boot: 3, to: bootOf("m1"), want: reasonUnknownMember},
		{name: "another boot", from: "m0", boot: bootOf("m0") + 2, to: bootOf("m1"), want: reasonBoot},
		{name: "no boot", from: "m0", to: bootOf("m1"), want: reasonBoot},
		{name: "any boot of this", from: "m0", boot: bootOf("m0"), to: 0, want: reasonBoot},
		{name: "old", from: "m0", boot: bootOf("m0"), to: bootOf("m1"), sent: -61 * int64(time.Second),
			want: reasonOld},
		{name: "garbage", from: "m0", boot: bootOf("m0"), to: bootOf("m1"), garbage: true, want: reasonMalformed},
		{name: "good", from: "m0", boot: bootOf("m0"), to: bootOf("m1")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := server{p: m.Peer, from: tt.from, fromBoot: tt.boot, toBoot: tt.to}
			msg := protocol.Message{Kind: protocol.Replica, Seq: 1, Now: now + tt.sent, Counters: counter}
			k, payload := payloadOf(t, &msg)
			if tt.garbage {
				payload = payload[:len(payload)-1]
			}
			s.receive(m.Now(), k, payload)
			if tt.want != "" {
				if n := testutil.ToFloat64(m.m.refused.WithLabelValues(tt.want)); n < 1 {
					t.Errorf("not refused as %s", tt.want)
				}
				if f := m.Stats(); f.Keys != before.Keys || !reflect.DeepEqual(f.Decided, before.Decided) {
					t.Errorf("%+v became %+v", before, f)
				}
			} else if n := testutil.CollectAndCount(m.m.refused); n != 4 {
				t.Errorf("%d reasons counted, want 4", n)
			}
		})
	}
	if a := other.decideOne(patience, newRequest(ownedBy(ringOf("m0", "m1"), "m1", 1)[0], 10,
		1)); a.Path != owner.Forwarded {
		t.Errorf("%+v", a)
	}
}

func TestSkews(t *testing.T) {
	m := newMember(t, "m0")
	s := &m.skews
	const sec = int64(time.Second)
	// The fastest reply is the best sample.
	s.addSample("m1", 100*sec, 103*sec+50, 100*sec+100)
	s.addSample("m1", 200*sec, 209*sec, 201*sec)
	if got := testutil.ToFloat64(m.m.skew.WithLabelValues("m1")); math.Abs(got-3) > 1e-6 {
		t.Errorf("skew %v, want 3", got)
	}
	// Old samples are dropped, and impossible ones are refused.
	s.addSample("m1", 300*sec, 0, 299*sec)
	for i := range int64(skewSamples) {
		s.addSample("m1", (300+i)*sec, (298+i)*sec+sec/2, (301+i)*sec)
	}
	if got := testutil.ToFloat64(m.m.skew.WithLabelValues("m1")); math.Abs(got+2) > 1e-6 {
		t.Errorf("skew %v, want -2", got)
	}
	if s.tooOld("m1", 1000*sec, 1062*sec-1) || !s.tooOld("m1", 1000*sec, 1062*sec+1) || s.tooOld("m2", 0, 1e18) {
		t.Error("age is not judged by the member's own clock")
	}
	s.reset()
	if s.tooOld("m1", 0, 1e18) {
		t.Error("a skew outlives the clock's jump")
	}
	m.alone()
	if s.addSample("m1", 1, 1, 2); testutil.CollectAndCount(m.m.skew) != 1 {
		t.Error("no gauge")
	}
	if m.alone(); testutil.CollectAndCount(m.m.skew) != 0 {
		t.Error("a gauge of a removed member")
	}
}
