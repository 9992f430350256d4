package lab

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// A condition that the end of the wait interrupts returns only that the wait has ended: what was wrong before must be reported, too.
func TestAwaitReportsTheErrorBeforeTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries := 0
	err := Await(ctx, "a ring", func(ctx context.Context) error {
		if tries++; tries == 1 {
			return errors.New("3 of 10 calls")
		}
		cancel()
		return ctx.Err()
	})
	if err == nil || !strings.Contains(err.Error(), "3 of 10 calls") || !errors.Is(err, context.Canceled) {
		t.Errorf("Await returned %v, want the error of the first try and that of the end", err)
	}
}
