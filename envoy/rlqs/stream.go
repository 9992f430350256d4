package rlqs

import (
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/keyward/keyward/envoy/internal/h2"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/budget"
	"github.com/keyward/keyward/internal/config"
)

// quotaStream is a stream of one Envoy and domain. It implements h2.DuplexReceiver.
type quotaStream struct {
	server  *QuotaServer
	number  uint64 // 0: refused
	duplex  *h2.Duplex
	account *budget.Account // of the ids

	// Only the connection's goroutine uses these.
	domain   string          // "" before the first report
	usages   []BucketUsage   // of the message being processed, for the book
	reported []*streamBucket // their buckets
	sweptAt  time.Time       // when idle buckets were last looked for

	mu      sync.Mutex // guards the fields below; not held while the book is called
	buckets map[string]*streamBucket
	isOpen  bool // the book's Opened was called
	over    bool // the book's Closed was or will be called, if Opened was
}

// streamBucket is a bucket of a stream. Only the connection's goroutine uses it, except for wire.
type streamBucket struct {
	*QuotaBucket
	wire      []byte // the encoded id
	matcher   rls.RuleMatcher
	booked    bool      // the book keeps the bucket, and answers for it
	allowedAt time.Time // when ALLOW_ALL was last assigned here; zero: never
	usedAt    time.Time // when hits were last reported
}

const (
	allowTTL    = 24 * time.Hour
	allowRenew  = allowTTL / 2
	sweepEvery  = 10 * time.Second
	abandonIdle = time.Hour
	abandonSoon = time.Minute // the same when more than half of the ids are in use that streams may have

	streamMemory = 1 << 20 // bytes that the ids of a stream may always take

	// maxIDBytes is the size of the largest id that is matched. A longer one is refused, as rls refuses a descriptor that
	// is too long, and is not kept.
	maxIDBytes  = 16 << 10
	oversizeTTL = time.Hour
)

// Receive implements h2.DuplexReceiver.
func (k *quotaStream) Receive(message []byte) {
	now := k.duplex.Now()
	var r usageReport
	if err := r.decode(message); err != nil {
		k.fault(now, rejectMalformed, codes.InvalidArgument, err.Error())
		return
	}
	switch {
	case k.domain == "" && r.domain == "":
		k.fault(now, rejectMalformed, codes.InvalidArgument, "the first usage report has no domain")
		return
	case k.domain == "":
		if k.domain = strings.Clone(r.domain); !k.begin(now) {
			return
		}
	case r.domain != "" && r.domain != k.domain:
		k.fault(now, rejectMalformed, codes.InvalidArgument, "the domain of the stream changed")
		return
	}
	k.process(now, &r)
}

// begin reports the stream to the book. It returns false if the stream is over.
func (k *quotaStream) begin(now time.Time) bool {
	e := EnvoyStream{
		Name: rls.EnvoyName(k.duplex), Address: hostOf(k.duplex.RemoteAddr()), Identity: k.duplex.Identity(), Domain: k.domain,
	}
	if e.Name == "" {
		e.Name = e.Address
	}
	k.server.book.Opened(now, k.number, e)
	k.mu.Lock()
	k.isOpen = true
	over := k.over
	k.mu.Unlock()
	if over { // another goroutine has ended the stream meanwhile
		k.server.book.Closed(now, k.number)
	}
	return !over
}

// hostOf returns the host of an address of TCP, or the whole of another one.
func hostOf(a net.Addr) string {
	if host, _, err := net.SplitHostPort(a.String()); err == nil {
		return host
	}
	return a.String()
}

// process passes on the usage of limited buckets, and answers for the others.
func (k *quotaStream) process(now time.Time, r *usageReport) {
	m := k.server.service.Matcher()
	var response quotaResponse
	k.usages, k.reported = k.usages[:0], k.reported[:0]
	for i := range r.usages {
		response = k.usage(now, m, &r.usages[i], response)
	}
	response = k.sweep(now, response)
	if len(response) > 0 && k.duplex.Send(response) != nil {
		k.fault(now, rejectUnread, codes.ResourceExhausted, "the client does not read")
		return
	}
	if len(k.usages) > 0 {
		k.server.book.Reported(now, k.number, k.usages)
	}
	for i, b := range k.reported {
		b.booked = !k.usages[i].Declined
	}
	clear(k.usages)
	clear(k.reported)
}

// usage processes the usage of one bucket, and returns the response with the action for it.
func (k *quotaStream) usage(now time.Time, m rls.RuleMatcher, u *reportedUsage, response quotaResponse) quotaResponse {
	var space [256]byte
	key := appendKey(space[:0], k.domain, u.id)
	if len(key) > maxIDBytes {
		k.server.metrics.rejected[rejectOversize].Inc()
		return response.add(encodeID(u.id), Assignment{Kind: AssignDeny, TTL: oversizeTTL})
	}
	b := k.bucket(m, key, u.id)
	switch {
	case b == nil && u.allowed+u.denied == 0:
		return response.add(encodeID(u.id), Assignment{Kind: AssignAbandon})
	case b == nil:
		return response
	}
	b.matcher.CountUsage(k.domain, b.Entries, &b.Match, u.allowed, u.denied)
	if u.allowed+u.denied > 0 || b.usedAt.IsZero() {
		b.usedAt = now
	}
	if b.Limited() || b.booked {
		k.usages = append(k.usages, BucketUsage{
			Bucket: b.QuotaBucket, Allowed: u.allowed, Denied: u.denied, Elapsed: u.elapsed(),
		})
		k.reported = append(k.reported, b)
		return response
	}
	if b.Fit == FitOwner || now.Sub(b.allowedAt) < allowRenew { // of the former, the Envoy keeps to its no_assignment_behavior
		return response
	}
	b.allowedAt = now
	return response.add(b.wire, Assignment{Kind: AssignAllow, TTL: allowTTL})
}

// bucket returns the bucket of an id by the rules in force, or nil if the stream has too many.
func (k *quotaStream) bucket(m rls.RuleMatcher, key []byte, id []config.Entry) *streamBucket {
	k.mu.Lock()
	defer k.mu.Unlock()
	old := k.buckets[string(key)]
	if old != nil && old.matcher == m || k.over {
		return old
	}
	b := &streamBucket{matcher: m}
	if old != nil {
		b.QuotaBucket, b.wire, b.booked, b.usedAt = newBucket(m, old.Key, k.domain, id), old.wire, old.booked, old.usedAt
	} else {
		if n := bucketMemory(len(key)); len(k.buckets) >= k.server.limits.Buckets || !k.account.Charge(n) {
			if len(k.buckets) < k.server.limits.Buckets {
				k.account.Charge(-n)
			}
			k.server.metrics.rejected[rejectBuckets].Inc()
			return nil
		}
		b.QuotaBucket, b.wire = newBucket(m, string(key), k.domain, id), encodeID(id)
	}
	k.buckets[b.Key] = b
	if b.Fit < FitUnlimited {
		k.server.metrics.unmatched[b.Fit].Inc()
	}
	return b
}

// bucketMemory returns the number of bytes that a bucket takes, by the length of its key.
func bucketMemory(key int) int64 { return int64(768 + 3*key) }

// sweep abandons ids that have not been used for long and that the book does not keep, and returns the response with
// their actions.
func (k *quotaStream) sweep(now time.Time, response quotaResponse) quotaResponse {
	if now.Sub(k.sweptAt) < sweepEvery {
		return response
	}
	k.sweptAt = now
	k.mu.Lock()
	defer k.mu.Unlock()
	most := abandonIdle
	if len(k.buckets) > k.server.limits.Buckets/2 || !k.account.HasSpare(0) {
		most = abandonSoon
	}
	for _, b := range k.buckets {
		if idle := now.Sub(b.usedAt); !b.booked && (idle >= most || b.Limited() && idle >= abandonSoon) {
			response = response.add(b.wire, Assignment{Kind: AssignAbandon})
			k.forget(b)
		}
	}
	return response
}

// forget removes a bucket. k.mu is held.
func (k *quotaStream) forget(b *streamBucket) {
	delete(k.buckets, b.Key)
	k.account.Charge(-bucketMemory(len(b.Key)))
}

// send sends assignments of the book.
func (k *quotaStream) send(serial uint64, assignments []Assignment) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.over {
		return ErrClosed
	}
	var response quotaResponse
	var unknown error
	for _, a := range assignments {
		if b := k.buckets[a.Key]; b != nil {
			response = response.add(b.wire, a)
		} else {
			unknown = ErrBucket // without effect in the Envoy, which does not have it
		}
	}
	err := k.duplex.Send(response)
	if err == nil {
		err = k.duplex.Ping(serial)
	}
	if err != nil {
		go k.fault(time.Now(), rejectUnread, codes.ResourceExhausted, err.Error())
		return err
	}
	for _, a := range assignments {
		if b := k.buckets[a.Key]; a.Kind == AssignAbandon && b != nil {
			k.forget(b)
		}
	}
	return unknown
}

// PingAnswered implements h2.DuplexReceiver.
func (k *quotaStream) PingAnswered(serial uint64) {
	k.server.book.Acked(k.duplex.Now(), k.number, serial)
}

// ClientDone implements h2.DuplexReceiver.
func (k *quotaStream) ClientDone() { k.end(k.duplex.Now()) }

// Draining implements h2.DuplexReceiver. The Envoy opens the stream again on another connection.
func (k *quotaStream) Draining() { k.end(k.duplex.Now()) }

// Gone implements h2.DuplexReceiver.
func (k *quotaStream) Gone() { k.close(time.Now()) }

// end ends the stream with status OK.
func (k *quotaStream) end(now time.Time) {
	k.duplex.End()
	k.close(now)
}

// fault ends the stream of an Envoy that does what it must not.
func (k *quotaStream) fault(now time.Time, why rejectReason, code codes.Code, message string) {
	k.server.metrics.rejected[why].Inc()
	k.duplex.Fail(code, message)
	k.close(now)
}

// close forgets the stream, and reports its end to the book once.
func (k *quotaStream) close(now time.Time) {
	k.server.remove(k)
	k.mu.Lock()
	reported := k.isOpen && !k.over
	k.over, k.buckets = true, nil
	k.account.Close()
	k.mu.Unlock()
	if reported {
		k.server.book.Closed(now, k.number)
	}
}
