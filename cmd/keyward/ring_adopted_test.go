package main

import (
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/ring"
)

// TestRingOfMembersThatAdoptOne requires that the commands build the ring that the members of a /cluster document use.
func TestRingOfMembersThatAdoptOne(t *testing.T) {
	c := api.ClusterStatus{
		Members: []api.MemberStatus{
			{ID: "shard-0", Weight: 1, RingHost: "10.0.0.1:8080"}, {ID: "shard-1", Weight: 2, RingHost: "10.0.0.2:8080"},
			{ID: "joining", Weight: 1, RingHost: "10.0.0.3:8080"},
		},
		Ring: api.RingStatus{Members: []string{"shard-0", "shard-1"}, Parameters: "envoy/2048/8388608/murmur2"},
	}
	want := ring.EnvoyParameters(2048, 0, ring.Murmur2).New([]ring.Member{
		{ID: "shard-0", Weight: 1, Host: "10.0.0.1:8080"}, {ID: "shard-1", Weight: 2, Host: "10.0.0.2:8080"},
	})
	r, err := ringIn(&c)
	if err != nil || r.Fingerprint() != want.Fingerprint() {
		t.Errorf("%v, %v", r, err)
	}
	c.Ring.Parameters = ""
	if r, err = ringIn(&c); err != nil || r.Parameters().Envoy || r.Len() != 2 {
		t.Errorf("without parameters: %v, %v", r, err)
	}
	for _, bad := range []string{"maglev/65537", "envoy/0/1/xx"} {
		c.Ring.Parameters = bad
		if _, err := ringIn(&c); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

func TestRingOfAKind(t *testing.T) {
	hosts := []string{"10.0.0.1:8080", "10.0.0.2:8080=2"}
	members := []ring.Member{
		{ID: "10.0.0.1:8080", Weight: 1, Host: "10.0.0.1:8080"}, {ID: "10.0.0.2:8080", Weight: 2, Host: "10.0.0.2:8080"},
	}
	for kind, want := range map[string]ring.Parameters{
		"keyward":                    {},
		"envoy":                      ring.EnvoyParameters(0, 0, ring.XXHash),
		"envoy/2048/8388608/murmur2": ring.EnvoyParameters(2048, 0, ring.Murmur2),
	} {
		r, err := ringOfKind(kind, hosts)
		if err != nil || r.Fingerprint() != want.New(members).Fingerprint() {
			t.Errorf("%s: %v", kind, err)
		}
	}
	for _, kind := range []string{"", "maglev", "envoy/0/1/xx", "envoy/1/2/md5"} {
		if _, err := ringOfKind(kind, hosts); err == nil || !strings.Contains(err.Error(), "--ring") {
			t.Errorf("--ring %q: %v", kind, err)
		}
	}
}
