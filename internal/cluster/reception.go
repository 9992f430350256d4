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
	maxSilent    = 1024 // streams whose first bytes have not arrived yet
	maxWaiting   = 256  // streams that have begun and wait to be read
	maxReading   = 8    // streams that are read at the same time
	maxPerSource = 4    // of them from one source address, or one /64 of IPv6

	beginTimeout = 500 * time.Millisecond // for the first bytes of a stream
	beginGrace   = 10 * time.Millisecond  // after it, to read what arrived while this process was not running
	slowAfter    = 500 * time.Millisecond // after which a stream may be closed in favor of others
	minRate      = 32 << 10               // bytes per second; slower streams are closed in favor of others
)

// Reasons for closing a stream, as labels of the metric.
const (
	refusedSilent  = "silent"
	refusedCrowded = "crowded_out"
)

var errCrowded = errors.New("crowded out")

// streamQueue decides which inbound streams are read, and when. Any host may open any number of them:
//   - A stream is read only after its first bytes have arrived.
//   - At a limit, the oldest stream of the address with the most streams is closed, not the new stream.
//   - While others wait, a stream that is slower than minRate is closed.
//   - The newest stream is read first. A member's exchange takes milliseconds, so streams that wait longer are not
//     members'.
type streamQueue struct {
	refused func(reason string)

	mu      sync.Mutex       // guards all below
	silent  []*inboundStream // oldest first
	waiting []*inboundStream // oldest first
	reading []*inboundStream // oldest first
	closed  bool
}

// sourceAddress returns the address to which a stream is accounted.
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

// admit blocks until b may be read, and reports whether it may. If not, b is closed. Closing done ends the wait.
func (r *streamQueue) admit(b *inboundStream, done <-chan struct{}) bool {
	b.source, b.admitted = sourceAddress(b.Conn), make(chan struct{})
	if !r.add(b, &r.silent, maxSilent) {
		return false
	}
	err := b.readBeginning()
	if !r.leave(b, &r.silent) {
		return false // closed in favor of another
	}
	if err != nil {
		_ = b.Conn.Close()
		if !errors.Is(err, io.EOF) { // a client that connects and closes is a probe
			r.refused(refusedSilent)
		}
		return false
	}
	if !r.add(b, &r.waiting, maxWaiting) {
		return false
	}
	return r.wait(b, done)
}

// wait blocks until b is admitted, and reports whether it was.
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

// add appends b to a list, and closes another stream if the list is full. It reports whether the port is still open.
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

// oldestOfMost returns the index of the oldest stream of the address that has the most streams.
func oldestOfMost(list []*inboundStream) int {
	count, most := make(map[netip.Addr]int), 0
	for _, b := range list {
		count[b.source]++
		most = max(most, count[b.source])
	}
	return slices.IndexFunc(list, func(b *inboundStream) bool { return count[b.source] == most })
}

// leave removes b from a list, and reports whether it was in it.
func (r *streamQueue) leave(b *inboundStream, list *[]*inboundStream) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(*list, b)
	if i >= 0 {
		*list = slices.Delete(*list, i, i+1)
	}
	return i >= 0
}

// admitWaiting admits waiting streams while there are free places, and closes those that are too slow while others
// wait.
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
			_ = b.Conn.Close() // memberlist gets an error, and closes b
		}
	}
}

// readingFrom returns the number of admitted streams of an address. The caller holds r.mu.
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

// close closes all streams that have not been admitted.
func (r *streamQueue) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, b := range slices.Concat(r.silent, r.waiting) {
		_ = b.Conn.Close()
	}
	r.silent, r.waiting = nil, nil
}

// inboundStream is a stream that another host has opened.
type inboundStream struct {
	net.Conn
	left        int
	compression *streamPrefix // nil: compressed streams are allowed
	first       []byte        // bytes that readBeginning has received and Read has not returned yet
	queue       *streamQueue

	source      netip.Addr
	admitted    chan struct{} // closed when it may be read
	admittedAt  time.Time     // when admitted was closed
	transferred atomic.Int64  // bytes read and written
	crowded     atomic.Bool   // closed while it was read
}

// readBeginning receives the first bytes of the stream: the label, if there is one, and the type of the message. Read
// returns them again.
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

// slow reports whether b has been admitted for a while and is slower than minRate. The caller holds the queue's lock.
func (b *inboundStream) slow(now time.Time) bool {
	d := now.Sub(b.admittedAt)
	return d >= slowAfter && float64(b.transferred.Load()) < d.Seconds()*minRate
}

// Read reads up to the limit of the stream.
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

// Write writes, and counts the bytes as progress.
func (b *inboundStream) Write(p []byte) (int, error) {
	n, err := b.Conn.Write(p)
	b.transferred.Add(int64(n))
	if err != nil && b.crowded.Load() {
		err = errCrowded
	}
	return n, err
}

// Close closes the stream, and admits the next one.
func (b *inboundStream) Close() error {
	defer b.queue.release(b)
	return b.Conn.Close()
}
