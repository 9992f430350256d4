package connguard

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/keyward/keyward/internal/budget"
)

const (
	// callSize is what a call takes in addition to its headers and message.
	callSize = 8 << 10
	// fieldSize is what a byte of a header block can become at most: a field of the table, kept by its name and its value.
	fieldSize = 34
	// listSize is what a header list can become at most: gRPC bounds it.
	listSize = 128 << 10
	// shortBlock is how long the header block of a unary call is, in bytes, that is not noted while gRPC answers it.
	shortBlock = 512
)

var errUnfinished = errors.New("too much is kept of calls that are not whole")

// unfinished charges what one connection makes gRPC keep of calls that wait for their client. gRPC bounds the calls of a
// connection and the size of each, and the product of the two is more than a process has. A unary call that comes whole in one
// piece, as Envoy's do, is never noted.
type unfinished struct {
	account *budget.Account
	streams bool   // calls are streams: they stay open, and what their client sent is read when the server answers
	last    uint32 // unary call that began and has sent nothing yet; of the goroutine that reads alone
	block   int    // bytes of its header block
	open    bool   // the header block has no end yet
	over    atomic.Bool
	begun   uint32 // call that the server has answered a part of; of the goroutine that writes alone

	mu    sync.Mutex
	calls map[uint32]held // guarded by mu; nil once the connection has ended
	part  int64           // of a frame or a header block that is not whole; of the goroutine that reads alone
}

// held is what one call is charged, in bytes.
type held struct{ headers, message int64 }

// headersSize is what a call with a header block of n bytes may take.
func headersSize(n int) int64 { return callSize + min(int64(n)*fieldSize, listSize) }

// received takes note of a frame of the client.
func (u *unfinished) received(f *frame) {
	id := f.stream()
	switch f.typ() {
	case http2.FrameHeaders, http2.FrameContinuation:
		u.headers(f)
	case http2.FrameRSTStream:
		u.forgetLast(id)
		u.release(id)
	case http2.FrameData:
		u.data(f)
	}
}

// headers takes note of HEADERS and CONTINUATION.
func (u *unfinished) headers(f *frame) {
	id := f.stream()
	if f.typ() == http2.FrameHeaders {
		if u.last != 0 && u.last != id {
			u.hold(u.last, held{headers: headersSize(u.block)})
		}
		u.last, u.block = id, 0
	}
	u.block += f.length()
	u.open = !http2.Flags(f.part[4]).Has(http2.FlagHeadersEndHeaders)
	switch {
	case u.open:
	case u.streams:
		u.hold(id, held{headers: headersSize(u.block)})
		u.last = 0
	case f.ends():
		u.whole(id)
	}
}

// whole takes note of the end of a unary call. What is noted of it stays until the server ends it.
func (u *unfinished) whole(id uint32) {
	if id != u.last {
		return
	}
	if u.last = 0; u.block > shortBlock {
		u.hold(id, held{headers: headersSize(u.block)})
	}
}

// data takes note of DATA.
func (u *unfinished) data(f *frame) {
	id := f.stream()
	if f.ends() && !u.streams {
		u.whole(id)
		return
	}
	if id == u.last {
		u.last = 0
		u.hold(id, held{headers: headersSize(u.block)})
	}
	u.hold(id, held{message: int64(f.length())})
}

func (u *unfinished) forgetLast(id uint32) {
	if id == u.last {
		u.last = 0
	}
}

// rest takes note of what is not whole after a read: n bytes of a frame, and a header block.
func (u *unfinished) rest(n int) {
	part := int64(n)
	if u.open {
		part += headersSize(u.block)
	}
	if part == u.part {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls != nil {
		u.charge(part - u.part)
		u.part = part
	}
}

// sent takes note of a frame of the server: a call that it has ended holds nothing, and what came of a stream that it
// answers was read.
func (u *unfinished) sent(f *frame) {
	id := f.stream()
	switch {
	case f.typ() == http2.FrameRSTStream || f.ends():
		if id == u.begun {
			u.begun = 0
		}
		u.release(id)
	case f.typ() != http2.FrameData:
	case u.streams:
		u.read(id)
	default:
		if u.begun != 0 && u.begun != id {
			u.stays(u.begun)
		}
		u.begun = id
	}
}

// stays notes a call that has been answered a part and no end, such as one that watches health.
func (u *unfinished) stays(id uint32) {
	u.mu.Lock()
	_, noted := u.calls[id]
	u.mu.Unlock()
	if !noted {
		u.hold(id, held{headers: headersSize(shortBlock)})
	}
}

// tooMuch reports whether this connection is one of those to blame for what is kept.
func (u *unfinished) tooMuch() bool { return u.over.Load() }

func (u *unfinished) charge(n int64) {
	if !u.account.Charge(n) && n > 0 {
		u.over.Store(true)
	}
}

func (u *unfinished) hold(id uint32, more held) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls == nil {
		return
	}
	h := u.calls[id]
	u.calls[id] = held{h.headers + more.headers, h.message + more.message}
	u.charge(more.headers + more.message)
}

func (u *unfinished) release(id uint32) {
	if u.account.Held() == 0 {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if h, is := u.calls[id]; is {
		delete(u.calls, id)
		u.charge(-h.headers - h.message)
	}
}

func (u *unfinished) read(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h, is := u.calls[id]; is && h.message > 0 {
		u.calls[id] = held{headers: h.headers}
		u.charge(-h.message)
	}
}

// end forgets all.
func (u *unfinished) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = nil
	u.account.Close()
}
