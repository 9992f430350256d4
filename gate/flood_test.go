package gate

import (
	"testing"
	"time"
)

func TestFloodsOfConnectionsAreAcceptedInTurn(t *testing.T) {
	l, now := &listener{}, time.Now()
	for range acceptBurst {
		if d := l.early(now); d > 0 {
			t.Fatalf("the first %d wait: %v", acceptBurst, d)
		}
	}
	for i := range 100 {
		if d := l.early(now); d != time.Duration(i+1)*acceptEvery {
			t.Fatalf("connection %d comes %v early", i, d)
		}
	}
	if d := l.early(now.Add(time.Second)); d > 0 {
		t.Errorf("a second later one waits for %v", d)
	}
}
