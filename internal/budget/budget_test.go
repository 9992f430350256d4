package budget

import (
	"bytes"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
)

func TestChargesCountInEveryAccountAbove(t *testing.T) {
	all := New(1000, 100)
	port, other := all.Child(400, 100), all.Child(400, 100)
	a, b, c := port.Open(), port.Open(), other.Open()
	for _, tt := range []struct {
		what string
		a    *Account
		n    int64
		want bool
	}{
		{"below all limits", a, 300, true},
		{"a little beyond the port's limit, within the fair part", b, 100, true},
		{"the same, one byte more", b, 1, false},
		{"who keeps much is to blame", a, 1, false},
		{"another port", c, 390, true},
		{"back below", a, -202, true},
		{"beyond the limit of all", c, 500, false},
	} {
		if got := tt.a.Charge(tt.n); got != tt.want {
			t.Errorf("%s: %v", tt.what, got)
		}
	}
	if port.Held() != 200 || other.Held() != 890 || all.Held() != 1090 {
		t.Errorf("%d, %d, %d held", port.Held(), other.Held(), all.Held())
	}
	a.Close()
	a.Close()
	b.Close()
	c.Close()
	if n, open := all.Held()+port.Held()+other.Held(), all.open.Load()+port.open.Load(); n != 0 || open != 0 {
		t.Errorf("%d held, %d open", n, open)
	}
}

// Any number of connections keep at most twice the limit together.
func TestFairPartsShrink(t *testing.T) {
	all := New(1000, 500)
	var kept int64
	for range 100 {
		a := all.Open()
		for range 1000 {
			if !a.Charge(1) {
				a.Charge(-a.Held()) // it is cut
				break
			}
		}
		kept = max(kept, all.Held())
	}
	if kept > 2000 {
		t.Errorf("%d of 1000 kept", kept)
	}
}

func TestSpareIsHalf(t *testing.T) {
	all := New(1000, 1000)
	a := all.Open()
	a.Charge(400)
	if !a.HasSpare(100) || a.HasSpare(101) {
		t.Error("half of the limit is to stay free")
	}
}

func TestNoAccount(t *testing.T) {
	var none *Account
	a := none.Open()
	if !a.Charge(1<<40) || !a.HasSpare(1<<40) || a.Held() != 0 {
		t.Error("no account allows everything")
	}
	a.Close()
}

func TestChargesOfManyAreTakenBack(t *testing.T) {
	all := New(1<<20, 1<<10)
	var done sync.WaitGroup
	for range 8 {
		done.Go(func() {
			for range 1000 {
				a := all.Open()
				a.Charge(100)
				a.Charge(-30)
				a.Close()
			}
		})
	}
	done.Wait()
	if all.Held() != 0 || all.open.Load() != 0 {
		t.Errorf("%d held, %d open", all.Held(), all.open.Load())
	}
}

func TestMeter(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	all := New(100, 10)
	a := all.Open()
	over := 0
	c := Conn{far, NewMeter(a, 0, func() { over++ })}
	say := func(n int) { go func() { _, _ = near.Write(make([]byte, n)) }() }
	say(20)
	if _, err := io.ReadFull(c, make([]byte, 20)); err != nil || a.Held() != 20*factor {
		t.Error(err, a.Held())
	}
	c.Stop()
	say(200)
	if _, err := io.ReadFull(c, make([]byte, 200)); err != nil || a.Held() != 0 {
		t.Error(err, a.Held())
	}
	c.Start()
	say(200)
	if _, err := io.Copy(new(bytes.Buffer), c); !errors.Is(err, ErrOver) || over != 1 {
		t.Errorf("%v, called %d times", err, over)
	}
	a.Close()
	if all.Held() != 0 {
		t.Error(all.Held())
	}
}
