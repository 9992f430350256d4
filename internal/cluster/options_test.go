package cluster

import (
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/time/rate"

	"github.com/keyward/keyward/internal/membership"
)

func TestOptionsReportEveryFault(t *testing.T) {
	_, err := Start(Options{
		Node: strings.Repeat("n", 129), Weight: 2000, Expect: -1, Capacity: 1000, Role: 5,
		Bind: "a:b:c", Join: []string{"x:y", "srv+foo:1"}, Peer: strings.Repeat("p", 200), Cluster: strings.Repeat("c", 300),
	})
	if err == nil {
		t.Fatal("started")
	}
	for _, want := range []string{"node:", "weight:", "expect:", "role:", "--gossip-key-file", "--insecure", `"x:y"`, `"srv+foo:1"`, "gossip:", "peer:", "cluster:"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in: %v", want, err)
		}
	}
}

func TestStartFaults(t *testing.T) {
	long := strings.Repeat("a", membership.MaxAddress)
	for name, o := range map[string]Options{
		"no name":                {},
		"capacity":               {Node: "a", Capacity: 8193},
		"no key":                 {Node: "a", Bind: "127.0.0.1:0", Join: []string{"127.0.0.1:1"}},
		"key file missing":       {Node: "a", Bind: "127.0.0.1:0", Join: []string{"127.0.0.1:1"}, KeyFile: "/nonexistent"},
		"too much to gossip":     {Node: "a", Bind: "127.0.0.1:0", Join: []string{"127.0.0.1:1"}, Insecure: true, RLS: long, Peer: long, Route: long, Page: long},
		"foreign address":        {Node: "a", Bind: "192.0.2.1:0", Join: []string{"127.0.0.1:1"}, Insecure: true},
		"bad advertised address": {Node: "a", Bind: "127.0.0.1:0", Advertise: "a:b:c", Join: []string{"127.0.0.1:1"}, Insecure: true},
	} {
		if c, err := Start(o); err == nil {
			c.Close()
			t.Errorf("%s: started", name)
		}
	}
}

func TestParseEntry(t *testing.T) {
	for in, want := range map[string]entry{
		"10.0.0.1:1":                {"10.0.0.1", 1},
		"10.0.0.1":                  {"10.0.0.1", 7946},
		"[fd00::1]:7":               {"fd00::1", 7},
		"fd00::1":                   {"fd00::1", 7946},
		"[fd00::1]":                 {"fd00::1", 7946},
		"dns+keyward.ns.svc:7946":   {"keyward.ns.svc", 7946},
		"dns+keyward":               {"keyward", 7946},
		"keyward-0.keyward.ns.svc:": {"keyward-0.keyward.ns.svc", 7946},
		"":                          {},
		":7946":                     {},
		"a:0":                       {},
		"a:65536":                   {},
		"srv+a:1":                   {},
		"dns+dns+a:1":               {},
		"http://a:1":                {},
		"a b":                       {},
	} {
		got, err := parseEntry(in, defaultPort)
		if got != want || (err == nil) != (want != entry{}) {
			t.Errorf("%q: got %+v, %v", in, got, err)
		}
	}
}

// An entry that parseEntry accepts has a host and a port.
func FuzzParseEntry(f *testing.F) {
	f.Add("dns+a:1")
	f.Add("[::1]:7946")
	f.Fuzz(func(t *testing.T, s string) {
		if e, err := parseEntry(s, defaultPort); err == nil && (e.host == "" || e.port == 0) {
			t.Fatalf("%q: %+v", s, e)
		}
	})
}

func TestBestAddr(t *testing.T) {
	parse := func(s ...string) (out []netip.Addr) {
		for _, a := range s {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	cases := []struct {
		all   []netip.Addr
		only4 bool
		want  string
	}{
		{parse("127.0.0.1", "::1", "fe80::1", "198.51.100.7", "10.1.2.3", "fd00::5"), false, "10.1.2.3"},
		{parse("127.0.0.1", "::1", "fe80::1", "fd00::5"), false, "fd00::5"},
		{parse("127.0.0.1", "::1", "fe80::1", "fd00::5"), true, "127.0.0.1"},
		{parse("::1", "2001:db8::5", "198.51.100.7"), false, "198.51.100.7"},
	}
	for _, c := range cases {
		if got := bestAddr(c.all, c.only4); got.String() != c.want {
			t.Errorf("of %v: %v, want %s", c.all, got, c.want)
		}
	}
	if got := bestAddr(parse("fe80::1"), false); got.IsValid() {
		t.Errorf("link-local: %v", got)
	}
}

func TestLogLinesAreLimited(t *testing.T) {
	var out strings.Builder
	l := &logWriter{logger: slog.New(slog.NewTextHandler(&out, nil)), limit: rate.NewLimiter(0, 3)}
	for range 1000 {
		if n, err := l.Write([]byte("[ERR] memberlist: garbage\n")); n != 26 || err != nil {
			t.Fatal(n, err)
		}
	}
	_, _ = l.Write([]byte("[DEBUG] memberlist: not at this level\n"))
	if n := strings.Count(out.String(), "level=WARN msg=gossip event=garbage"); n != 3 ||
		strings.Count(out.String(), "\n") != 3 {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
