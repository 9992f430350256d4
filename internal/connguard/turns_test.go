package connguard

import (
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// one returns a queue with one slot.
func one() *turnQueue { return &turnQueue{freeSlots: 1, pauses: true} }

// inTurn starts n connections that enter l one after the other, and returns the order of their turns.
func inTurn(l *turnQueue, n int) (purses []*turnCredit, order func() []int) {
	var mu sync.Mutex
	var all []int
	order = func() []int {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
	for i := range n {
		p := &turnCredit{queue: l}
		purses = append(purses, p)
		go func() {
			p.enter()
			mu.Lock()
			all = append(all, i)
			mu.Unlock()
			p.Leave()
		}()
		synctest.Wait()
	}
	return purses, order
}

// Connections continue in order of arrival, and the slot pauses for as long as the last turn took.
func TestTurnsAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := one()
		first := &turnCredit{queue: l}
		if first.enter() != 0 || first.holding.Load() != l {
			t.Fatal("an empty lane has no place")
		}
		if first.enter() != 0 || len(l.holders) != 1 {
			t.Error("who has a place takes another")
		}
		_, order := inTurn(l, 4)
		if len(order()) > 0 {
			t.Fatalf("%v go on while the place is taken", order())
		}
		time.Sleep(time.Millisecond)
		first.Leave()
		time.Sleep(time.Millisecond - 1)
		synctest.Wait()
		if len(order()) > 0 {
			t.Errorf("%v go on while the place rests", order())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if want := []int{0, 1, 2, 3}; !slices.Equal(order(), want) {
			t.Errorf("the order is %v, want %v", order(), want)
		}
		time.Sleep(3 * turnTimeout)
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.freeSlots != 1 || len(l.holders) != 0 || l.expiry != nil {
			t.Errorf("%d places left of 1, %d holders, a timer that runs on: %v", l.freeSlots, len(l.holders), l.expiry != nil)
		}
	})
}

// A connection that waits for something other than a processor loses its slot, so that it does not block others.
func TestLanePlacesExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := one()
		stuck := &turnCredit{queue: l}
		stuck.enter()
		began := time.Now()
		purses, order := inTurn(l, 2)
		time.Sleep(turnTimeout + maxTurnPause)
		synctest.Wait()
		if len(order()) != 2 {
			t.Errorf("%v went on after %v", order(), time.Since(began))
		}
		for _, p := range append(purses, stuck) {
			p.Leave() // too late, or again
		}
		if l.freeSlots != 1 || stuck.holding.Load() != nil {
			t.Errorf("%d places left of 1", l.freeSlots)
		}
		time.Sleep(turnTimeout)
	})
}

func TestLaneForgetsTheClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := one()
		first := &turnCredit{queue: l}
		first.enter()
		purses, order := inTurn(l, 3)
		l.cancelWait(purses[1])
		l.cancelWait(purses[1])
		synctest.Wait()
		if !slices.Equal(order(), []int{1}) {
			t.Errorf("%v go on, want the closed one", order())
		}
		first.Leave()
		time.Sleep(maxTurnPause)
		synctest.Wait()
		if !slices.Equal(order(), []int{1, 0, 2}) {
			t.Errorf("the order is %v", order())
		}
		time.Sleep(turnTimeout)
	})
}

// Of many waiting connections, only those whose clients are gone are closed.
func TestLaneEndsThoseWhoHaveGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := one()
		first := &turnCredit{queue: l}
		first.enter()
		var ended []int
		for i := range 2 * checkWaiters {
			p := &turnCredit{queue: l}
			p.gone = func() bool { return i%3 == 0 }
			p.cut = func() {
				ended = append(ended, i)
				l.cancelWait(p)
			}
			go func() {
				p.enter()
				p.Leave()
			}()
			synctest.Wait()
		}
		if n := len(ended); n < checkWaiters/4 || slices.ContainsFunc(ended, func(i int) bool { return i%3 != 0 }) {
			t.Errorf("%d ended: %v", n, ended)
		}
		first.Leave()
		time.Sleep(time.Second)
	})
}

func TestGone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("cannot be detected here")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if _, err := io.WriteString(c, "said before"); err != nil {
		t.Fatal(err)
	}
	if ClientClosed(in) {
		t.Error("a client that is there has gone")
	}
	c.Close()
	eventually(t, "gone", func() bool { return ClientClosed(in) })
}

// A few calls make up for any earlier cost, and a connection with calls never waits.
func TestCallsPayForConnections(t *testing.T) {
	p := &turnCredit{queue: one()}
	p.Spend(1 << 30)
	if p.enter(); p.holding.Load() == nil {
		t.Fatal("who has spent much needs no place")
	}
	p.Leave()
	p.Earn(3, 500)
	if p.enter(); p.holding.Load() != nil {
		t.Error("calls do not make up for what came before them")
	}
	for range 1000 {
		p.Spend(1500 + readCost)
		p.Earn(1, 500)
	}
	if n := p.credit.Load(); n < maxCredit-callCredit-500 || n > maxCredit+callCredit+500 {
		t.Errorf("%d saved", n)
	}
	p.Spend(2 * maxCredit)
	if p.enter(); p.holding.Load() == nil {
		t.Error("what was saved is without end")
	}
}

// Real connections: those without calls are read one at a time, and one with calls is read meanwhile.
func TestStrangersAreReadInTurn(t *testing.T) {
	reg := prometheus.NewRegistry()
	gates := New(reg)
	gates.turns.freeSlots = 1
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln := gates.Guard("rls").ListenInTurn(raw, 100)
	defer ln.Close()
	accepted := func() net.Conn {
		c, err := net.Dial("tcp", raw.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, "nothing"); err != nil {
			t.Fatal(err)
		}
		in, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	const strangers = 20
	var reading, most, read atomic.Int64
	for range strangers {
		go func(c net.Conn) {
			b := make([]byte, 64)
			c.(TurnTaker).Spend(initialCredit)
			_, _ = c.Read(b)
			most.Store(max(most.Load(), reading.Add(1)))
			for range 1000 {
				runtime.Gosched()
			}
			reading.Add(-1)
			read.Add(1)
			c.Close()
		}(accepted())
	}
	honest := accepted()
	honest.(TurnTaker).Spend(initialCredit)
	honest.(TurnTaker).Earn(10, 0)
	if n, err := honest.Read(make([]byte, 64)); n == 0 || err != nil || honest.(*conn).holding.Load() != nil {
		t.Errorf("%d bytes, %v, in the lane: %v", n, err, honest.(*conn).holding.Load() != nil)
	}
	for read.Load() < strangers {
		runtime.Gosched()
	}
	if most.Load() > 4 { // places may expire on a slow machine
		t.Errorf("%d of %d strangers were read at once", most.Load(), strangers)
	}
	if testutil.CollectAndCount(gates.waited) != 1 {
		t.Error("no wait is counted")
	}
}
