package connguard

import (
	"testing"
	"testing/synctest"
	"time"
)

// A connection that does not release its slot keeps it for 5 ms, then the next one continues.
func TestTurnsEndAfterFiveMilliseconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := one()
		stuck := &turnCredit{queue: l}
		stuck.enter()
		purses, order := inTurn(l, 1)
		time.Sleep(5*time.Millisecond - 1)
		synctest.Wait()
		if len(order()) > 0 {
			t.Error("the next one went on before 5 ms were over")
		}
		time.Sleep(1 + maxTurnPause)
		synctest.Wait()
		if len(order()) != 1 {
			t.Error("the next one waits longer than 5 ms and the pause between turns")
		}
		purses[0].Leave()
		stuck.Leave()
		time.Sleep(time.Second) // no timer is left
	})
}
