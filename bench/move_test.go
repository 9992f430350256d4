package main

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/ops/loadtest"
	"github.com/keyward/keyward/ring"
)

// Keys that are asked for during a move must be the giver's before and after, or the load would be moved as well.
func TestStayingKeysStay(t *testing.T) {
	l, err := stayingLoad(t.Context(), options{keys: 50, conns: 1}, serve(t, constant{}).addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	r := ring.New([]ring.Member{{ID: "a", Weight: 1}, {ID: "b", Weight: newcomerWeight}})
	seen := map[string]bool{}
	for _, c := range l.Calls {
		var m pb.RateLimitRequest
		if err := proto.Unmarshal(c.Message, &m); err != nil {
			t.Fatal(err)
		}
		key := m.Descriptors[0].Entries[1].Value
		if owner := r.At(r.Owner(ring.Hash(key))).ID; owner != "a" || seen[key] {
			t.Errorf("%s is of %s, seen before: %v", key, owner, seen[key])
		}
		seen[key] = true
	}
	if len(seen) != 50 {
		t.Errorf("%d keys", len(seen))
	}
}

func TestSeries(t *testing.T) {
	const scrape = `# TYPE keyward_handoff_keys_total counter
keyward_handoff_keys_total{direction="received"} 3
keyward_handoff_keys_total{direction="sent"} 1.2e+01
keyward_keys{table="owned"} 7
`
	for prefix, want := range map[string]float64{
		`keyward_handoff_keys_total{direction="sent"`: 12, `keyward_handoff_keys_total{`: 15, `keyward_keys{table="owned"`: 7, "none{": 0,
	} {
		if got := series([]byte(scrape), prefix); got != want {
			t.Errorf("%s: %v, want %v", prefix, got, want)
		}
	}
}

func TestLatenciesOfAMove(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	of := func(values ...time.Duration) (h loadtest.Histogram) {
		for _, v := range values {
			h.Add(v)
		}
		return h
	}
	d := driver{parts: []part{{at(0), at(2), of(9)}, {at(2), at(3), of(4, 2)}, {at(3), at(5), of(1)}, {at(5), at(7), of(8)}}}
	if got := d.between(at(1), at(6)); got.Count() != 3 || got.Quantile(1) != 4 || got.Quantile(0.1) != 1 {
		t.Errorf("%d latencies up to %v: the parts at the edges are of other times too", got.Count(), got.Quantile(1))
	}
	p := d.since(accounted{at: at(1), cpu: time.Second, decisions: 100}, accounted{at: at(6), cpu: 3 * time.Second, decisions: 200})
	if p.each() != 20_000 || p.decisions != 100 {
		t.Errorf("%v us a decision, %v decisions", p.each(), p.decisions)
	}
	var out strings.Builder
	idle := moved{Counters: 50, Giver: time.Second}
	loaded := moved{Counters: 100, Before: paced{decisions: 100, cpu: time.Second}, During: paced{decisions: 100, cpu: 3100 * time.Millisecond}}
	printMoves(&out, 10, idle, loaded)
	// Of 3.1 s, twice the idle move's second is the move's: 1.1 times the CPU before.
	if s := out.String(); !strings.Contains(s, "1.10 x") || !strings.Contains(s, ", met; with it 3.10 x") {
		t.Errorf("%s", s)
	}
}
