//go:build !race

package hotkey

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSketchFindsHeavyKeysAndNoOthers(t *testing.T) {
	for name, law := range map[string]func(*rand.Rand) stream{"zipf": zipf, "random keys": attack} {
		t.Run(name, func(t *testing.T) {
			const n = 1_000_000
			next, s, truth := law(rand.New(rand.NewPCG(1, 2))), NewSketch(7), map[uint64]int{}
			for i := range int64(n) {
				k, now := next(), i*5*second/n
				truth[k]++
				got, most := s.Add(now, testKey(k)), float64(truth[k])/max(float64(now)/1e9, 1)
				if got > most*1.000001 {
					t.Fatalf("key %d: %v per second, more than %v", k, got, most)
				}
			}
			heavy, now := 0, 5*second-1
			for k, count := range truth {
				if count < n/1000 {
					continue
				}
				heavy++
				want := float64(count+1) / 5
				if got := s.Add(now, testKey(k)); math.Abs(got-want) > want/1000+1 {
					t.Errorf("key %d: %v per second, want %v within 0.1 %%", k, got, want)
				}
			}
			if heavy < 5 {
				t.Errorf("%d heavy keys: the stream tests nothing", heavy)
			}
		})
	}
}
