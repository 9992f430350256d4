package gate

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"
)

const (
	// mostUnfinished is how much of calls that are not whole yet all connections of a process may hold, in bytes.
	mostUnfinished = 64 << 20
	// fairUnfinished is what a connection may hold whatever the others do.
	fairUnfinished = 128 << 10
	// callSize is what a call takes beside its message.
	callSize = 8 << 10
)

var errUnfinished = errors.New("too many calls that are not whole")

// unfinished is what one connection holds of unary calls whose end has not come. gRPC bounds the calls of a connection and
// the size of each, and the product of the two is more than a process has. A call that comes whole in one piece, as Envoy's
// do, is never noted.
type unfinished struct {
	of   *atomic.Int64 // what all connections hold
	last uint32        // stream that began and has sent nothing yet; of the goroutine that reads alone

	own     atomic.Int64
	mu      sync.Mutex
	streams map[uint32]int // guarded by mu: bytes held; nil once the connection has ended
}

// received takes note of a frame of the client.
func (u *unfinished) received(f *frame) {
	id := f.stream()
	switch {
	case f.typ() == http2.FrameRSTStream || f.ends():
		if id == u.last {
			u.last = 0
		}
		u.release(id)
	case f.typ() == http2.FrameHeaders:
		if u.last != 0 {
			u.hold(u.last, callSize)
		}
		u.last = id
	case f.typ() == http2.FrameData:
		if id == u.last {
			u.last = 0
			u.hold(id, callSize)
		}
		u.hold(id, f.length())
	}
}

// sent takes note of a frame of the server: a call that it has ended holds nothing.
func (u *unfinished) sent(f *frame) {
	if f.typ() == http2.FrameRSTStream || f.ends() {
		u.release(f.stream())
	}
}

// tooMuch says that this connection is one of those to blame for what is held.
func (u *unfinished) tooMuch() bool {
	return u.of.Load() > mostUnfinished && u.own.Load() > fairUnfinished
}

func (u *unfinished) hold(id uint32, n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.streams == nil {
		return
	}
	u.streams[id] += n
	u.add(n)
}

func (u *unfinished) release(id uint32) {
	if u.own.Load() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if n, held := u.streams[id]; held {
		delete(u.streams, id)
		u.add(-n)
	}
}

func (u *unfinished) add(n int) {
	u.own.Add(int64(n))
	u.of.Add(int64(n))
}

// end forgets all.
func (u *unfinished) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.streams = nil
	u.of.Add(-u.own.Swap(0))
}
