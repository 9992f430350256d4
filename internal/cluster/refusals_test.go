package cluster

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

func TestSourceOf(t *testing.T) {
	for line, want := range map[string]string{
		"Decrypt packet failed: No installed keys could decrypt the message from=10.1.2.3:7946": "10.1.2.3",
		"failed to receive: EOF from=[2001:db8::7]:55311":                                       "2001:db8::7",
		"unequal label from=127.0.0.1:40000 more":                                               "127.0.0.1",
		"Decrypt packet failed":                                                                 "",
		"from=a-name":                                                                           "",
	} {
		got, ok := sourceOf(line)
		if ok != (want != "") || ok && got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v %v", line, got, ok)
		}
	}
}

// A source is recorded once, and foreign hosts cannot make the list long.
func TestRefusalsAreLimited(t *testing.T) {
	var r refusals
	now := time.Unix(1e9, 0)
	for i := range 100 {
		r.add(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 20)}), "key", now.Add(time.Duration(i)*time.Second))
	}
	if n := len(r.last); n != maxRefusals || r.last[n-1].From != netip.AddrFrom4([4]byte{10, 0, 0, 19}) {
		t.Errorf("%d: %v", n, r.last)
	}
	r.add(r.last[3].From, "key", now.Add(time.Hour))
	if n := len(r.last); n != maxRefusals || !r.last[n-1].At.Equal(now.Add(time.Hour)) {
		t.Errorf("again: %d: %v", n, r.last)
	}
}

// Members name the source of gossip with another key.
func TestRefusalsNameTheSource(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := keyed("a-0", dir, "r")
	first := up(t, a)
	b := keyed("b", dir, "w")
	b.Join = []string{first.Gossip()}
	up(t, b)
	eventually(t, "the refusal", func() bool {
		all := first.Refusals()
		return len(all) == 1 && all[0].Reason == "key" && all[0].From == netip.MustParseAddr("127.0.0.1")
	})
	if strings.Contains(first.View().Problem, "key") {
		t.Error(first.View().Problem)
	}
}
