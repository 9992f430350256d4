package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/keyward/keyward/ring"
)

// requestOf returns a request by boot 1 of holder a.
func requestOf(seq uint64, window int64, have, left uint64) *GrantRequest {
	return &GrantRequest{Rule: perMinute, Seq: seq, Window: window, Have: have, Left: left, Want: true, Demand: 1e6}
}

// newBook returns a Book that has lent 50 hits of window 7 to a.
func newBook(t *testing.T) *Book {
	t.Helper()
	var b Book
	used := uint64(0)
	if n, _ := receiveAndGrant(&b, 0, "a", requestOf(1, 6, 0, 0), 7, 1000, &used); n != 50 {
		t.Fatalf("%d lent", n)
	}
	return &b
}

func TestCredits(t *testing.T) {
	for _, c := range []struct {
		name   string
		r      *GrantRequest
		bootID uint64
		window int64
		credit uint64
		ok     bool
	}{
		{"nothing is back", requestOf(2, 7, 50, 0), 1, 7, 0, true},
		{"a part is back", requestOf(2, 7, 20, 0), 1, 7, 30, true},
		{"the grant was lost", requestOf(2, 6, 0, 0), 1, 7, 50, true},
		{"a holder that has forgotten may have spent all", requestOf(2, 0, 0, 0), 1, 7, 0, true},
		{"the same again", requestOf(1, 7, 20, 0), 1, 7, 0, false},
		{"an older one", requestOf(0, 7, 20, 0), 1, 7, 0, false},
		{"the next boot has nothing of it", requestOf(2, 0, 0, 0), 2, 7, 0, true},
		{"the boot before says no more", requestOf(1, 7, 0, 0), 2, 7, 0, false},
		{"in the next window", requestOf(2, 7, 20, 0), 1, 8, 0, true},
		{"of a window to come", requestOf(2, 8, 0, 0), 1, 7, 0, false},
		{"in a window that is over", requestOf(2, 7, 20, 0), 1, 6, 0, false},
		{"more unspent than held", requestOf(2, 7, 20, 21), 1, 7, 0, false},
		{"more than granted, of a window that began here", requestOf(2, 8, 1, 0), 1, 8, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBook(t)
			credit, ok := b.Receive(1, Holder{"a", c.bootID}, c.r, c.window)
			if credit != c.credit || ok != c.ok {
				t.Errorf("%d, %v; want %d, %v", credit, ok, c.credit, c.ok)
			}
			if again, _ := b.Receive(1, Holder{"a", c.bootID}, c.r, c.window); again != 0 {
				t.Errorf("%d credited again", again)
			}
		})
	}
}

// TestForeignBalances requires that hits from another grantor are not credited.
func TestForeignBalances(t *testing.T) {
	var b Book
	used := uint64(500)
	receiveAndGrant(&b, 0, "a", requestOf(1, 7, 30, 30), 7, 1000, &used) // 30 are from another grantor
	if credit, ok := b.Receive(0, Holder{"a", 1}, requestOf(2, 7, 0, 0), 7); credit != 20 || !ok {
		t.Errorf("%d credited of 20 that were lent here", credit)
	}
}

func TestLendNeedsASize(t *testing.T) {
	b := newBook(t)
	if b.Grant(0, "a", 7, 1) != 0 || b.Grant(0, "b", 7, 1) != 0 || b.TakeViolations()[C1] != 2 {
		t.Error("granted without a request")
	}
	b.Receive(0, Holder{"a", 1}, requestOf(2, 7, 50, 0), 7)
	n, _ := b.Size(0, "a", requestOf(2, 7, 50, 0), Usage{50, 1000})
	if b.Grant(0, "a", 7, n+1) != 0 || b.Grant(0, "a", 8, n) != 0 {
		t.Error("granted more than allowed, or in another window")
	}
	if total := b.Grant(0, "a", 7, n-1); total != 49+n {
		t.Errorf("total %d", total)
	}
}

func TestReclaim(t *testing.T) {
	var b Book
	used := uint64(0)
	r := requestOf(1, 0, 0, 0)
	r.Terms = Terms{Reclaim: true, TTL: 5 * time.Second}
	n, _ := receiveAndGrant(&b, 0, "a", r, 7, 1000, &used)
	if b.Reclaim(6*second-1, 7) != 0 || b.Reclaim(6*second, 8) != 0 {
		t.Error("reclaimed too early, or in another window")
	}
	if c := b.Reclaim(6*second, 7); c != n || b.Unspent(6*second) != 0 || b.Reclaim(7*second, 7) != 0 {
		t.Errorf("%d reclaimed of %d", c, n)
	}
	// The holder has given up its balance by then and reports less.
	if credit, ok := b.Receive(8*second, Holder{"a", 1}, requestOf(2, 7, 10, 0), 7); credit != 0 || !ok {
		t.Errorf("%d, %v", credit, ok)
	}
	h := &Holding{Terms: r.Terms}
	h.Decide(0, perMinute, 1)
	q := h.Request(0)
	h.Accept(0, &Grant{Seq: q.Seq, Window: 7, Total: 50, Limit: 1000, Left: time.Minute, Flags: Hot})
	h.Decide(second, perMinute, 10)
	if h.Left(5*second-1) != 40 || h.Left(5*second) != 0 {
		t.Error("not reclaimed in time")
	}
	if q = h.Request(5 * second); q.Have != 10 || q.Left != 0 {
		t.Errorf("%+v", q)
	}
}

func TestHoldersAreBounded(t *testing.T) {
	var b Book
	for i := range maxHolders + 10 {
		_, ok := b.Receive(0, Holder{ring.ID(fmt.Sprint(i)), 1}, requestOf(1, 7, 0, 0), 7)
		if ok != (i < maxHolders) {
			t.Fatalf("holder %d: %v", i, ok)
		}
	}
	later := perMinute.End(7) + int64(forgetAfter)
	if _, ok := b.Receive(later, Holder{"new", 1}, requestOf(1, 8, 0, 0), 9); !ok || len(b.Holders(later)) != 1 {
		t.Error("expired records are kept")
	}
}

// FuzzReceive requires that no request is credited with more than was lent in its window.
func FuzzReceive(f *testing.F) {
	f.Add([]byte("\x01\x00\x07\x05\x02\x03abcdefghijklmnopqrstuvwxyz0123456789"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var b Book
		var now int64
		var h Holding
		window, lent := int64(7), uint64(0)
		for len(in) >= 8 {
			c := in[:8]
			in = in[8:]
			r := requestOf(uint64(c[0]), int64(c[1]%10), uint64(c[2]), uint64(c[3]))
			r.Terms.Reclaim = c[6]&2 != 0
			if r.Have == 255 {
				r.Have, r.Left = 1<<64-1, 1<<64-2
			}
			if now += int64(c[7]) * second / 16; c[6]&4 != 0 {
				window, lent = window+1, 0
			}
			holder := ring.ID(c[4:5])
			credit, ok := b.Receive(now, Holder{holder, uint64(c[5] % 3)}, r, window)
			credit += b.Reclaim(now, window)
			if credit > lent {
				t.Fatalf("%d credited of %d", credit, lent)
			}
			if lent -= credit; ok {
				n, _ := b.Size(now, holder, r, Usage{lent, 1000})
				g := Grant{
					Seq: r.Seq, Window: window, Total: b.Grant(now, holder, window, n), Limit: 1000,
					Left: time.Duration(c[7]) * time.Second, Flags: GrantFlags(c[6]),
				}
				lent += n
				h.Decide(now, perMinute, uint64(c[3]))
				if c[6]&1 != 0 {
					g.Seq = h.Request(now).Seq
				}
				h.Accept(now, &g)
				h.ReceiveNotice(now, &Notice{Window: int64(c[1]), Kind: NoticeKind(c[2] % 5), Left: time.Duration(c[3]) - 9})
			}
			if lent > 1000 || h.left > h.have {
				t.Fatalf("%d lent; %d left of %d", lent, h.left, h.have)
			}
		}
	})
}

// TestReclaimFailed requires that the hits of a holder that is not live are returned once, if the rule says so, and
// that a holder that was only cut off can return no hits that were lent again.
func TestReclaimFailed(t *testing.T) {
	for _, crash := range []bool{false, true} {
		var b Book
		used := uint64(0)
		r := requestOf(1, 0, 0, 0)
		r.Terms = Terms{ReclaimCrash: crash}
		n, _ := receiveAndGrant(&b, 0, "a", r, 7, 1000, &used)
		live := true
		isLive := func(h Holder) bool { return live || h != Holder{"a", 1} }
		if b.ReclaimFailed(7, isLive) != 0 {
			t.Error("reclaimed from a live holder")
		}
		live = false
		want := uint64(0)
		if crash {
			want = n
		}
		if b.ReclaimFailed(8, isLive) != 0 {
			t.Error("reclaimed in another window")
		}
		if c := b.ReclaimFailed(7, isLive); c != want || b.ReclaimFailed(7, isLive) != 0 {
			t.Errorf("reclaim: crash %v: %d reclaimed of %d", crash, c, n)
		}
		if !crash {
			continue
		}
		if credit, ok := b.Receive(second, Holder{"a", 1}, requestOf(2, 7, n-10, 0), 7); credit != 0 || !ok {
			t.Errorf("%d credited again, %v", credit, ok)
		}
	}
}
