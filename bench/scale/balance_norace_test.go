//go:build !race

package main

import (
	"math"
	"testing"
)

// The space of a ring is divided without rest, evenly to within what 1024 points a member give, and a join moves what it must.
func TestBalance(t *testing.T) {
	for _, n := range []int{2, 3, 10, 30} {
		b, err := BalanceOf(n)
		if err != nil {
			t.Fatal(err)
		}
		sigma := 1 / math.Sqrt(1024)
		if b.Least < 1-5*sigma || b.Most > 1+5*sigma || b.Least > 1 || b.Most < 1 {
			t.Errorf("%d members own from %.3f to %.3f times the mean", n, b.Least, b.Most)
		}
		if want := float64(n - 1); b.Successors != want {
			t.Errorf("%d members: %.1f successors of one that is lost, want %.0f", n, b.Successors, want)
		}
		if math.Abs(b.Join-1) > 5*sigma {
			t.Errorf("%d members: a join moves %.3f of what it must", n, b.Join)
		}
		if even := float64(n) / float64(n-1); b.Second < even-1e-9 || b.Second > even*(1+5*sigma) {
			t.Errorf("%d members: after a loss one owns %.3f times the mean, evenly %.3f", n, b.Second, even)
		}
	}
}
