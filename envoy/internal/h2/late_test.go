package h2

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// TestGivenUpAfterTheAnswer resets calls whose answers are on their way: their handlers learn of it once.
func TestGivenUpAfterTheAnswer(t *testing.T) {
	gone := make(chan string, 10)
	held := make(chan *Stream, 1)
	_, l, _ := start(t, "tcp", Options{Methods: map[string]Handler{
		echo: method(func(c *Stream) {
			m := string(c.Message())
			if m == "wait" {
				held <- c
				return
			}
			c.ReplyOr(text(m), func() { gone <- m })
		}),
	}})
	conn, _ := speak(t, l)
	k := &talk{t: t, conn: conn, Framer: http2.NewFramer(conn, conn), dec: hpack.NewDecoder(4096, nil)}
	k.enc = hpack.NewEncoder(&k.block)
	hear := func(id uint32) {
		for range answered(id) {
			k.hear()
		}
	}
	send := func(id uint32, m string) {
		k.open(id, false, good)
		k.message(id, true, m)
	}
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, <-gone)
		}
		if slices.Sort(got); !slices.Equal(got, want) || len(gone) > 0 {
			t.Errorf("gave up %q and %d, want %q", got, len(gone), want)
		}
	}
	for i := range uint32(3) {
		send(2*i+1, fmt.Sprint(i))
		hear(2*i + 1)
	}
	for _, id := range []uint32{1, 5, 1, 5} {
		_ = k.WriteRSTStream(id, http2.ErrCodeCancel)
	}
	send(7, "7") // its answer shows that the resets have been read
	hear(7)
	expect("0", "2")

	send(9, "wait")
	_ = k.WriteRSTStream(9, http2.ErrCodeCancel)
	send(11, "11")
	hear(11)
	(<-held).ReplyOr(text("late"), func() { gone <- "before the answer" })
	expect("before the answer")

	for i := range uint32(maxLate) { // only the last answers are remembered
		send(13+2*i, "more")
		hear(13 + 2*i)
	}
	_ = k.WriteRSTStream(11, http2.ErrCodeCancel)
	_ = k.WriteRSTStream(13, http2.ErrCodeCancel)
	send(1001, "end")
	hear(1001)
	expect("more")
}
