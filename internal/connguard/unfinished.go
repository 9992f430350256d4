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
)

var errUnfinished = errors.New("client makes the process keep too much memory for incomplete calls")

// unfinished charges what one connection makes gRPC keep of calls that wait for their client. gRPC limits the calls
// of a connection and the size of each, but their product is more memory than a process has. Calls are streams: they
// stay open, and the server has read what the client sent when it answers.
type unfinished struct {
	account *budget.Account
	block   int  // bytes of the last header block; only used by the reading goroutine
	open    bool // the header block is incomplete
	over    atomic.Bool

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
		u.release(id)
	case http2.FrameData:
		u.hold(id, callCharge{message: int64(f.length())})
	}
}

// headers processes HEADERS and CONTINUATION.
func (u *unfinished) headers(f *frame) {
	if f.typ() == http2.FrameHeaders {
		u.block = 0
	}
	u.block += f.length()
	if u.open = !http2.Flags(f.part[4]).Has(http2.FlagHeadersEndHeaders); !u.open {
		u.hold(f.stream(), callCharge{headers: headersSize(u.block)})
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

// sent processes a frame from the server. A call that it ends is released. Of a call that it answers, the messages
// have been read.
func (u *unfinished) sent(f *frame) {
	switch {
	case f.typ() == http2.FrameRSTStream || f.ends():
		u.release(f.stream())
	case f.typ() == http2.FrameData:
		u.messagesRead(f.stream())
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
