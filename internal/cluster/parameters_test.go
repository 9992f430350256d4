package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

var users = ring.EnvoyParameters(0, 0, ring.XXHash)

// usersMember returns a member that is configured for the ring of a user's cluster.
func usersMember(m membership.Member) membership.Member {
	m.RingParameters, m.RingHost = users, fmt.Sprintf("10.0.0.%d:8080", m.BootID)
	return m
}

// usersBed returns a testbed with n other active members, all of them configured for the ring of a user's cluster.
func usersBed(n int) *testbed {
	b := newBed(0)
	b.fill(n)
	b.self = usersMember(b.self)
	for i := range b.others {
		b.others[i] = usersMember(b.others[i])
	}
	return b
}

func TestMembersThatAgreeUseTheUsersRing(t *testing.T) {
	b := usersBed(2)
	b.look(0)
	o := b.look(time.Second)
	r := o.view.Ring
	if r.Parameters() != users || r.Len() != 3 || o.view.OtherRingParameters() != nil {
		t.Fatalf("ring %v of %d members, %v differ", r.Parameters(), r.Len(), o.view.OtherRingParameters())
	}
	var want []ring.Member
	for _, m := range append(b.others, b.self) {
		want = append(want, m.RingMember())
	}
	if r.Fingerprint() != users.New(want).Fingerprint() || r.At(0).Host != "10.0.0.1:8080" {
		t.Errorf("members %v", want)
	}
}

// TestOneOtherConfigurationKeepsTheOwnRing requires that all members use Keyward's own ring while one active member is
// configured for another one or is of an earlier version, with the fingerprint that such a member computes.
func TestOneOtherConfigurationKeepsTheOwnRing(t *testing.T) {
	for name, change := range map[string]func(*membership.Member){
		"no configuration": func(m *membership.Member) { m.RingParameters, m.RingHost = ring.Parameters{}, "" },
		"another size":     func(m *membership.Member) { m.RingParameters.MinSize = 2048 },
		"another function": func(m *membership.Member) { m.RingParameters.Hash = ring.Murmur2 },
		"a later version":  func(m *membership.Member) { m.RingParameters = ring.Parameters{Envoy: true} },
	} {
		b := usersBed(2)
		change(&b.others[1])
		b.look(0)
		o := b.look(time.Second)
		var plain []ring.Member
		for _, m := range append(slices.Clone(b.others), b.self) {
			x := m.RingMember()
			x.Host = ""
			plain = append(plain, x)
		}
		if o.view.Ring.Fingerprint() != ring.New(plain).Fingerprint() || o.view.Problem != "" {
			t.Errorf("%s: ring %v, problem %q", name, o.view.Ring.Parameters(), o.view.Problem)
		}
		if got := o.view.OtherRingParameters(); !slices.Equal(got, []ring.ID{"other-1"}) {
			t.Errorf("%s: %v differ", name, got)
		}
		// The last member with another configuration restarts.
		back := usersMember(boot("other-1", 12))
		back.State = membership.Active
		b.lose(1, true)
		b.others = append(b.others, back)
		if r := b.look(time.Second).view.Ring; r.Parameters() != users || r.Len() != 3 {
			t.Errorf("%s: after its restart, the ring is %v of %d members", name, r.Parameters(), r.Len())
		}
	}
	// Only unknown parameters: no member can build that ring.
	b := newBed(0)
	b.fill(2)
	b.self.Role = membership.RoleObserver
	for i := range b.others {
		b.others[i].RingParameters = ring.Parameters{Envoy: true}
	}
	b.look(0)
	if r := b.look(time.Second).view.Ring; r.Parameters().Envoy || r.Len() != 2 {
		t.Errorf("an observer builds the ring %v", r.Parameters())
	}
}

func TestTwoMembersWithOneHost(t *testing.T) {
	b := usersBed(2)
	b.self.RingHost = b.others[0].RingHost
	b.look(0)
	o := b.look(time.Second)
	if o.view.Cause != membership.CauseHost || !strings.Contains(o.view.Problem, `"other-0"`) || o.self.State != membership.Joining {
		t.Errorf("%v: %s %q", o.self.State, o.view.Cause, o.view.Problem)
	}
	if r := o.view.Ring; r.Len() != 2 || r.Parameters() != users {
		t.Errorf("%d members on the ring", r.Len())
	}
	// Two that are active at once: all members leave out the same one.
	b = usersBed(3)
	b.others[2].RingHost = b.others[1].RingHost
	b.look(0)
	if r := b.look(time.Second).view.Ring; r.Len() != 3 || r.Index("other-2") >= 0 {
		t.Errorf("%d members, the later one at %d", r.Len(), r.Index("other-2"))
	}
	b = usersBed(1)
	b.self.RingHost, b.others[0].RingHost = "same", "same"
	b.self.State = membership.Active
	b.joined = true
	if o := b.look(time.Second); o.self.State != membership.Active {
		t.Errorf("the earlier member becomes %v: %q", o.self.State, o.view.Problem)
	}
}

func TestRingParametersInGossip(t *testing.T) {
	m := usersMember(boot("a", 7))
	b := encode(&m)
	got, err := decode(b)
	if err != nil || got.RingParameters != users || got.RingHost != "10.0.0.7:8080" {
		t.Errorf("%+v, %v", got, err)
	}
	m.RingParameters.MinSize = ring.MaxMinSize + 1
	if got, err := decode(encode(&m)); err != nil || got.RingParameters != (ring.Parameters{Envoy: true}) {
		t.Errorf("parameters that no member may have: %+v, %v", got.RingParameters, err)
	}
	plain := boot("a", 7)
	own := plain
	own.RingParameters = ring.Parameters{}
	if string(encode(&plain)) != string(encode(&own)) || len(encode(&plain)) >= len(b) {
		t.Error("Keyward's own ring is announced")
	}
}
