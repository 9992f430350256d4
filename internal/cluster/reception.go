package cluster

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxSilent    = 1024 // streams whose beginning has not come yet
	maxWaiting   = 256  // streams that have begun and wait to be read
	maxReading   = 8    // streams that are read at once
	maxPerSource = 4    // of them, from one source address; of IPv6, from one /64

	beginTimeout = 500 * time.Millisecond // in which the beginning of a stream has to come
	beginGrace   = 10 * time.Millisecond  // after it, to read what has come while this process was not running
	slowAfter    = 500 * time.Millisecond // after which a stream may have to make room for others
	minRate      = 32 << 10               // bytes a second: a slower stream makes room
)

// Reasons to close a stream, as counted.
const (
	refusedSilent  = "silent"
	refusedCrowded = "crowded_out"
)

var errCrowded = errors.New("crowded out")

// streamQueue decides which of the incoming streams are read, and when. Strangers may open any number of them:
//   - a stream takes one of the places to be read only after its beginning has come,
//   - at a bound the oldest stream closes, of the address that has most of them, and not the new one,
//   - while others wait, a stream that is read slower than minRate closes,
//   - the newest stream is read first: a member's exchange takes milliseconds, so those that wait longer are not members'.
type streamQueue struct {
	refused func(reason string)

	mu      sync.Mutex       // guards all below
	silent  []*inboundStream // the oldest first
	waiting []*inboundStream // the oldest first
	reading []*inboundStream // the oldest first
	closed  bool
}

// sourceAddress is the address that a stream is accounted to.
func sourceAddress(c net.Conn) netip.Addr {
	tcp, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	a := tcp.AddrPort().Addr().Unmap()
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return a
}

// admit returns when b may be read, and reports whether it may be read at all. If not, b is closed. The channel done ends the wait.
func (r *streamQueue) admit(b *inboundStream, done <-chan struct{}) bool {
	b.source, b.admitted = sourceAddress(b.Conn), make(chan struct{})
	if !r.add(b, &r.silent, maxSilent) {
		return false
	}
	err := b.readBeginning()
	if !r.leave(b, &r.silent) {
		return false // closed for another one
	}
	if err != nil {
		_ = b.Conn.Close()
		if !errors.Is(err, io.EOF) { // who only connects and goes away is a probe
			r.refused(refusedSilent)
		}
		return false
	}
	if !r.add(b, &r.waiting, maxWaiting) {
		return false
	}
	return r.wait(b, done)
}

// wait returns when it is b's turn to be read, and reports whether it came.
func (r *streamQueue) wait(b *inboundStream, done <-chan struct{}) bool {
	again := time.NewTicker(slowAfter / 5)
	defer again.Stop()
	for {
		r.admitWaiting(time.Now())
		select {
		case <-b.admitted:
			return true
		case <-again.C:
		case <-done:
		}
		r.mu.Lock()
		gone := !slices.Contains(r.waiting, b) && !slices.Contains(r.reading, b)
		r.mu.Unlock()
		if gone {
			return false
		}
	}
}

// add appends b to a list, and closes the stream that has to go for it. It reports whether the port is still open.
func (r *streamQueue) add(b *inboundStream, list *[]*inboundStream, bound int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = b.Conn.Close()
		return false
	}
	if len(*list) >= bound {
		i := oldestOfMost(*list)
		_ = (*list)[i].Conn.Close()
		*list = slices.Delete(*list, i, i+1)
		r.refused(refusedCrowded)
	}
	*list = append(*list, b)
	return true
}

// oldestOfMost is the index of the oldest stream of the address that has most streams.
func oldestOfMost(list []*inboundStream) int {
	count, most := make(map[netip.Addr]int), 0
	for _, b := range list {
		count[b.source]++
		most = max(most, count[b.source])
	}
	return slices.IndexFunc(list, func(b *inboundStream) bool { return count[b.source] == most })
}

// leave removes b from a list, and reports whether it was there.
func (r *streamQueue) leave(b *inboundStream, list *[]*inboundStream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(*list, b)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}

// admitWaiting lets waiting streams be read as far as there are places, and closes those that are too slow while others wait.
func (r *streamQueue) admitWaiting(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := len(r.waiting) - 1; i >= 0 && len(r.reading) < maxReading; i-- {
		b := r.waiting[i]
		if r.readingFrom(b.source) >= maxPerSource {
			continue
		}
		r.waiting = slices.Delete(r.waiting, i, i+1)
		r.reading = append(r.reading, b)
		b.admittedAt = now
		close(b.admitted)
	}
	if len(r.waiting) == 0 {
		return
	}
	for _, b := range r.reading {
		if b.slow(now) && b.crowded.CompareAndSwap(false, true) {
			_ = b.Conn.Close() // memberlist hears of it, and closes b
		}
	}
}

// readingFrom is the number of streams of an address that are read.
func (r *streamQueue) readingFrom(a netip.Addr) (n int) {
	for _, b := range r.reading {
		if b.source == a {
			n++
		}
	}
	return n
}

// release gives b's place to the next stream.
func (r *streamQueue) release(b *inboundStream) {
	if r.leave(b, &r.reading) {
		r.admitWaiting(time.Now())
	}
}

// close closes all streams that are not read yet.
func (r *streamQueue) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, b := range slices.Concat(r.silent, r.waiting) {
		_ = b.Conn.Close()
	}
	r.silent, r.waiting = nil, nil
}

// inboundStream is an incoming stream.
type inboundStream struct {
	net.Conn
	left        int
	compression *streamPrefix // nil: all may come in
	first       []byte        // the beginning, which has been received and not been read yet
	queue       *streamQueue

	source      netip.Addr
	admitted    chan struct{} // closed when it may be read
	admittedAt  time.Time     // when that was
	transferred atomic.Int64  // bytes read and written
	crowded     atomic.Bool   // closed while it was read
}

// readBeginning receives the beginning of the stream: the label, if there is one, and the type of what follows. It is left to be read.
func (b *inboundStream) readBeginning() error {
	if err := b.SetReadDeadline(time.Now().Add(beginTimeout)); err != nil {
		return err
	}
	buf, n, need, late := make([]byte, 2+maxLabel+1), 0, 1, false
	for n < need {
		k, err := b.Conn.Read(buf[n:need])
		n += k
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded) && !late:
			late = true
			if err := b.SetReadDeadline(time.Now().Add(beginGrace)); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		switch {
		case buf[0] != typeLabeled:
		case n == 1:
			need = 2
		case n >= 2:
			need = 2 + int(buf[1]) + 1
		}
	}
	b.first = buf[:n]
	return b.SetReadDeadline(time.Time{})
}

// slow reports whether b has been read for a while and is behind minRate. The lock of its reception is held.
func (b *inboundStream) slow(now time.Time) bool {
	d := now.Sub(b.admittedAt)
	return d >= slowAfter && float64(b.transferred.Load()) < d.Seconds()*minRate
}

// Read reads as much as is left.
func (b *inboundStream) Read(p []byte) (n int, err error) {
	if b.left <= 0 {
		return 0, errTooMuch
	}
	p = p[:min(len(p), b.left)]
	if len(b.first) > 0 {
		n = copy(p, b.first)
		b.first = b.first[n:]
	} else {
		n, err = b.Conn.Read(p)
	}
	b.left -= n
	b.transferred.Add(int64(n))
	if b.compression != nil && b.compression.isCompressed(p[:n]) {
		return 0, errCompressed
	}
	if err != nil && b.crowded.Load() {
		err = errCrowded
	}
	return n, err
}

// Write writes, and counts what was written as progress.
func (b *inboundStream) Write(p []byte) (int, error) {
	n, err := b.Conn.Write(p)
	b.transferred.Add(int64(n))
	if err != nil && b.crowded.Load() {
		err = errCrowded
	}
	return n, err
}

// Close closes the stream.
func (b *inboundStream) Close() error {
	defer b.queue.release(b)
	return b.Conn.Close()
}
