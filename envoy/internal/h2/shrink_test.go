package h2

import (
	"errors"
	"testing"
	"time"
)

// Spare memory is released, and memory in use is not.
func TestShrink(t *testing.T) {
	c := &conn{peakStreams: 4 * smallStreamMap, streams: map[uint32]*Stream{3: {id: 3}}}
	c.spare, c.out = make([]byte, 1), make([]byte, 0, 1)
	c.in.buf, c.headers.block = make([]byte, 4*smallInput), make([]byte, 1)
	if !c.hasSpareMemory() {
		t.Error("nothing to give back")
	}
	c.shrink()
	if c.spare != nil || c.out != nil || c.headers.block != nil || c.peakStreams != 1 || len(c.streams) != 1 || c.streams[3] == nil || len(c.in.buf) > smallInput {
		t.Errorf("%d streams, width %d, %d bytes of input", len(c.streams), c.peakStreams, len(c.in.buf))
	}
	if c.hasSpareMemory() {
		t.Error("there is more to give back")
	}
	c.headers.id, c.headers.block, c.out = 5, make([]byte, 1), make([]byte, 1)
	if c.shrink(); c.headers.block == nil || c.out == nil {
		t.Error("a header block that has begun, or an answer, is lost")
	}
}

func TestTimeoutOfACall(t *testing.T) {
	now := time.Now()
	for _, k := range []*Stream{{receivedAt: now}, {receivedAt: now, timeout: time.Hour}, {receivedAt: now.Add(-time.Hour), timeout: time.Second}} {
		d := k.Timeout(time.Now())
		if (d == 0) != (k.timeout == 0) || d < 0 || d > k.timeout {
			t.Errorf("began %v, timeout %v: %v left", k.receivedAt, k.timeout, d)
		}
	}
}

type temporary bool

func (e temporary) Error() string   { return "temporary" }
func (e temporary) Temporary() bool { return bool(e) }

func TestErrorsThatPass(t *testing.T) {
	if !isTemporary(temporary(true)) || isTemporary(temporary(false)) || isTemporary(errors.New("closed")) {
		t.Error("a listener goes on after an error that does not pass, or ends after one that does")
	}
}
