package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

func askLog(k Key) Request {
	return Request{Key: k, RingPos: k[0], Hits: 1, Rule: limit.Rule{Window: 10 * time.Second, Limit: 1000, Algorithm: limit.SlidingLog}}
}

// Logs have the records that a small MaxKeys gives, also where many of their keys are in one shard.
func TestLogsOfOneShard(t *testing.T) {
	n := alone(Options{MaxKeys: 1024})
	var keys []Key
	for i := 0; len(keys) < 24; i++ {
		if s, _ := n.shard(key(i)); s == &n.shards[7] {
			keys = append(keys, key(i))
		}
	}
	for hits := range uint64(100) {
		now := t0 + int64(hits)*second/20
		for _, k := range keys {
			q := askLog(k)
			if a := n.Decide(now, &q); a.Authority != Full || a.Over || a.After != hits+1 {
				t.Fatalf("hit %d: %+v", hits, a)
			}
		}
	}
}

// What one shard takes is missing for the others, never the page that each has of its own; it comes back when it is over.
func TestRecordsAreCapped(t *testing.T) {
	n := alone(Options{MaxKeys: 1024})
	most, now, full := int64(3*1024/pageRecords), t0, 0
	for hits := range 40 {
		now += second / 20
		for i := range 512 {
			q := askLog(key(i))
			if a := n.Decide(now, &q); a.Authority == Overflow {
				full++
			} else if hits < 8 && a.Over {
				t.Fatalf("%+v", a)
			}
		}
		pages := 0
		for i := range n.shards {
			pages += len(n.shards[i].slab.pages)
		}
		if left := n.records.pages.Load(); left < 0 || int64(pages) > shards+most-left {
			t.Fatalf("%d pages, and %d left of %d", pages, left, most)
		}
	}
	if full == 0 {
		t.Error("never full: the test shows nothing")
	}
	for range 10 {
		n.Tick(now + 30*second)
	}
	if left := n.records.pages.Load(); left != most {
		t.Errorf("%d pages left when all is over, of %d", left, most)
	}
	if slots := n.records.domains[0].Load(); slots != 0 {
		t.Errorf("the domain is charged for %d slots when all is over", slots)
	}
}
