package owner

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/limit"
)

func askLog(key Key) Request {
	return Request{Key: key, RingPos: key[0], Hits: 1, Rule: limit.Rule{Window: 10 * time.Second, Limit: 1000, Algorithm: limit.SlidingLog}}
}

// TestLogsOfOneShard requires that logs find the records that a small MaxKeys allows, also if many of their keys are
// in one shard.
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
			req := askLog(k)
			if res := n.Decide(now, &req); res.Authority != Full || res.Over || res.After != hits+1 {
				t.Fatalf("hit %d: %+v", hits, res)
			}
		}
	}
}
