package connguard

import (
	"errors"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/keyward/keyward/internal/budget"
)

const (
	// callSize is the number of bytes of a call in addition to its headers and message.
	callSize = 8 << 10
	// fieldSize is the most bytes that a byte of a header block can become: an indexed field, with its name and
	// value.
	fieldSize = 34
	// listSize is the largest header list in bytes; gRPC limits it.
	listSize = 128 << 10
	// shortBlock is the largest header block of a unary call in bytes that is not charged while gRPC answers the
	// call.
	shortBlock = 512
)

var errUnfinished = errors.New("client makes the process keep too much memory for incomplete calls")

// unfinished charges what one connection makes gRPC keep of calls that wait for their client. gRPC limits the calls
// of a connection and the size of each, but their product is more memory than a process has. A unary call that
// arrives complete in one piece, as those of Envoy do, is not tracked.
type unfinished struct {
	account   *budget.Account
	streams   bool   // calls are streams: they stay open, and the server reads what the client sent when it answers
	last      uint32 // unary call that has begun without data; only used by the reading goroutine
	block     int    // bytes of its header block
	open      bool   // the header block is incomplete
	over      atomic.Bool
	answering uint32 // call that the server has begun to answer; only used by the writing goroutine

	mu    sync.Mutex
	calls map[uint32]callCharge // guarded by mu; nil once the connection has ended
	part  int64                 // bytes of an incomplete frame or header block; only used by the reading goroutine
}

// callCharge is the number of bytes that one call is charged.
type callCharge struct{ headers, message int64 }

// headersSize returns the most bytes that a call with a header block of n bytes may take.
func headersSize(n int) int64 { return callSize + min(int64(n)*fieldSize, listSize) }

// received processes a frame from the client.
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

// headers processes HEADERS and CONTINUATION.
func (u *unfinished) headers(f *frame) {
	id := f.stream()
	if f.typ() == http2.FrameHeaders {
		if u.last != 0 && u.last != id {
			u.hold(u.last, callCharge{headers: headersSize(u.block)})
		}
		u.last, u.block = id, 0
	}
	u.block += f.length()
	u.open = !http2.Flags(f.part[4]).Has(http2.FlagHeadersEndHeaders)
	switch {
	case u.open:
	case u.streams:
		u.hold(id, callCharge{headers: headersSize(u.block)})
		u.last = 0
	case f.ends():
		u.endUnary(id)
	}
}

// endUnary processes the end of a unary request. Its charge stays until the server ends the call.
func (u *unfinished) endUnary(id uint32) {
	if id != u.last {
		return
	}
	if u.last = 0; u.block > shortBlock {
		u.hold(id, callCharge{headers: headersSize(u.block)})
	}
}

// data processes DATA.
func (u *unfinished) data(f *frame) {
	id := f.stream()
	if f.ends() && !u.streams {
		u.endUnary(id)
		return
	}
	if id == u.last {
		u.last = 0
		u.hold(id, callCharge{headers: headersSize(u.block)})
	}
	u.hold(id, callCharge{message: int64(f.length())})
}

func (u *unfinished) forgetLast(id uint32) {
	if id == u.last {
		u.last = 0
	}
}

// rest charges what is incomplete after a read: n bytes of a frame, and a header block.
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

// sent processes a frame from the server. A call that it ends is released. On a stream that it answers, the messages
// have been read.
func (u *unfinished) sent(f *frame) {
	id := f.stream()
	switch {
	case f.typ() == http2.FrameRSTStream || f.ends():
		if id == u.answering {
			u.answering = 0
		}
		u.release(id)
	case f.typ() != http2.FrameData:
	case u.streams:
		u.messagesRead(id)
	default:
		if u.answering != 0 && u.answering != id {
			u.holdOpen(u.answering)
		}
		u.answering = id
	}
}

// holdOpen charges a call that has a response without an end, such as a watch of health.
func (u *unfinished) holdOpen(id uint32) {
	u.mu.Lock()
	_, noted := u.calls[id]
	u.mu.Unlock()
	if !noted {
		u.hold(id, callCharge{headers: headersSize(shortBlock)})
	}
}

// exceeded reports whether this connection exceeds its share.
func (u *unfinished) exceeded() bool { return u.over.Load() }

func (u *unfinished) charge(n int64) {
	if !u.account.Charge(n) && n > 0 {
		u.over.Store(true)
	}
}

func (u *unfinished) hold(id uint32, more callCharge) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls == nil {
		return
	}
	h := u.calls[id]
	u.calls[id] = callCharge{h.headers + more.headers, h.message + more.message}
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

func (u *unfinished) messagesRead(id uint32) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h, is := u.calls[id]; is && h.message > 0 {
		u.calls[id] = callCharge{headers: h.headers}
		u.charge(-h.message)
	}
}

// end releases everything.
func (u *unfinished) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = nil
	u.account.Close()
}
