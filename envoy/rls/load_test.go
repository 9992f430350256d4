package rls

import (
	"errors"
	"math"
	"testing"
	"time"
)

func TestLoadsAreCounted(t *testing.T) {
	r := newRig(t, "")
	r.CountLoad(nil)
	r.CountLoad(errors.New("a fault"))
	r.CountLoad(errors.New("another"))
	if g, b := r.Service.counts.loadSuccess.Value(), r.Service.counts.loadError.Value(); g != 1 || b != 2 {
		t.Errorf("%d good and %d bad", g, b)
	}
	if orMax(0) != math.MaxInt64 || orMax(time.Second) != time.Second {
		t.Error("no age is not for ever, or an age is")
	}
}
