// Package loadtest loads rate limit services and compares what their decisions cost.
//
// Its client costs little, so that the measurement shows the servers: it encodes HTTP/2 frames ahead of time and writes many at once. One
// goroutine per connection sends the next call when it reads a response.
package loadtest

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"golang.org/x/net/http2/hpack"
)

// Target is the address of one server.
type Target struct {
	Addr string
	TLS  *tls.Config // nil: no TLS
}

// LoadCall is a call that the load repeats.
type LoadCall struct {
	Message []byte              // nil: the call has no body
	Headers []hpack.HeaderField // beyond the service's
	Target  int                 // the index of the target to send it to, if Options.Placed
}

// Options of a Load.
type Options struct {
	Service LoadTarget
	Targets []Target
	Calls   []LoadCall // one is taken at random each time
	Placed  bool       // each call goes to its own target; otherwise to any
	Conns   int        // connections in all; every target has at least one
}

// Load sends calls to servers. Its methods are not safe for concurrent use.
type Load struct {
	Options
	calls [][]encoded // by target; all alike unless Placed
	conns []*conn     // conns[i] is to target i % len(Targets)
}

// encoded is a call as it is sent.
type encoded struct {
	fields []hpack.HeaderField
	first  []byte // header block of the first call on a connection: it fills the server's table
	block  []byte // header block of any other
	body   []byte
}

// New prepares the calls and connects to all targets.
func New(ctx context.Context, o Options) (*Load, error) {
	if len(o.Targets) == 0 || len(o.Calls) == 0 {
		return nil, errors.New("a load needs targets and calls")
	}
	l := &Load{Options: o, calls: make([][]encoded, len(o.Targets))}
	for t, target := range o.Targets {
		for _, c := range o.Calls {
			if o.Placed && c.Target != t {
				continue
			}
			e, err := encode(&o.Service, target.Addr, c)
			if err != nil {
				return nil, err
			}
			l.calls[t] = append(l.calls[t], e)
		}
		if len(l.calls[t]) == 0 {
			return nil, fmt.Errorf("no call is for %s", target.Addr)
		}
	}
	for range (o.Conns + len(o.Targets) - 1) / len(o.Targets) {
		for t := range o.Targets {
			l.conns = append(l.conns, &conn{load: l, target: t, random: rand.New(rand.NewPCG(1, uint64(len(l.conns))))})
		}
	}
	if err := l.connect(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// encode makes what is sent for a call. The headers that all calls share are put into the server's table by the first; a call's own are sent
// as they are, as they would be by a client that knows that they change (RFC 7541, 6.2.3).
func encode(s *LoadTarget, addr string, c LoadCall) (e encoded, err error) {
	var out bytes.Buffer
	enc := hpack.NewEncoder(&out)
	fields := append(append([]hpack.HeaderField(nil), s.Headers...), hpack.HeaderField{Name: ":authority", Value: addr})
	copy(fields[1:], append(fields[len(fields)-1:], fields[1:len(fields)-1]...)) // pseudo headers come first
	for _, h := range c.Headers {
		fields = append(fields, hpack.HeaderField{Name: h.Name, Value: h.Value, Sensitive: true})
	}
	for _, into := range []*[]byte{&e.first, &e.block} {
		out.Reset()
		for _, f := range fields {
			if err := enc.WriteField(f); err != nil {
				return e, err
			}
		}
		*into = bytes.Clone(out.Bytes())
	}
	e.fields = fields
	if c.Message != nil && s.Framed {
		e.body = binary.BigEndian.AppendUint32([]byte{0}, uint32(len(c.Message)))
	}
	e.body = append(e.body, c.Message...)
	if max(len(e.body), len(e.first)) > maxPayload {
		return e, fmt.Errorf("a call of %d bytes and %d bytes of headers: at most %d fit", len(e.body), len(e.first), maxPayload)
	}
	return e, nil
}

// connect makes the connections that there are not, or no longer.
func (l *Load) connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var all sync.WaitGroup
	errs := make([]error, len(l.conns))
	for i, c := range l.conns {
		if !c.usable() {
			all.Go(func() { errs[i] = c.dial(ctx) })
		}
	}
	all.Wait()
	return errors.Join(errs...)
}

// Close ends the connections.
func (l *Load) Close() {
	for _, c := range l.conns {
		c.close()
	}
}

// Calls counts the calls of one run.
type Calls struct {
	OK, Over, Errors int
	Elapsed          time.Duration
	Latency          Histogram // of those answered; at a rate from when each was due
	Err              error     // one of the errors
}

// Answered returns the number of calls that got a decision.
func (r *Calls) Answered() int { return r.OK + r.Over }

func (r *Calls) merge(o *Calls) {
	r.OK += o.OK
	r.Over += o.Over
	r.Errors += o.Errors
	r.Latency.Merge(&o.Latency)
	if r.Err == nil {
		r.Err = o.Err
	}
}

// Phase describes a load: Inflight calls at any time, or, if Rate is not 0, Rate calls a second, however long
// responses take.
type Phase struct {
	Inflight int     `json:"inflight,omitempty"`
	Rate     float64 `json:"rate,omitempty"`
}

func (p Phase) String() string {
	if p.Rate > 0 {
		return fmt.Sprintf("%.0f calls a second", p.Rate)
	}
	return fmt.Sprintf("%d in flight", p.Inflight)
}

// drainTime is how long the last calls of a run may take. A call's own timeout should end it long before.
const drainTime = 10 * time.Second

// Run sends calls for the given time. It returns an error if it cannot connect; failed calls are counted in the Result.
func (l *Load) Run(ctx context.Context, p Phase, length time.Duration) (Calls, error) {
	if err := l.connect(ctx); err != nil {
		return Calls{}, err
	}
	r := &round{open: make(chan struct{}), begin: time.Now(), paced: p.Rate > 0}
	r.end = r.begin.Add(length)
	r.calls.Store(1)
	for _, c := range l.conns {
		c.enter(r)
	}
	if p.Rate > 0 {
		l.pace(ctx, r, p.Rate)
	} else {
		l.fill(r, p.Inflight)
	}
	r.leave() // the run's own
	l.await(ctx, r)
	sum := Calls{Elapsed: r.over().Sub(r.begin)}
	for _, c := range l.conns {
		part := c.exit()
		sum.merge(&part)
	}
	return sum, ctx.Err()
}

// fill opens the calls; each answer opens the next one.
func (l *Load) fill(r *round, inflight int) {
	// One that stays with its connection asks one target only; fewer calls than targets go around instead.
	r.wander = inflight < len(l.Targets)
	for i := range inflight {
		c := l.conns[i%len(l.conns)]
		r.calls.Add(1)
		c.ask(r.begin, true)
	}
}

// await waits until all calls have ended, and ends those that take too long.
func (l *Load) await(ctx context.Context, r *round) {
	late := time.NewTimer(time.Until(r.end) + drainTime)
	defer late.Stop()
	select {
	case <-r.open:
		return
	case <-late.C:
	case <-ctx.Done():
	}
	for _, c := range l.conns {
		c.close()
	}
	<-r.open
}

// pick is a call for a target.
func (l *Load) pick(target int, random *rand.Rand) *encoded {
	calls := l.calls[target]
	return &calls[random.IntN(len(calls))]
}

// Once sends a call to each target over its first connection and returns the first error.
func (l *Load) Once(ctx context.Context) error {
	for t := range l.Targets {
		one := &Load{Options: l.Options, calls: l.calls, conns: l.conns[t : t+1]}
		got, err := one.Run(ctx, Phase{Inflight: 1}, 0)
		if err != nil {
			return err
		}
		if got.Answered() == 0 {
			return fmt.Errorf("ask %s: %w", l.Targets[t].Addr, got.Err)
		}
	}
	return nil
}

func dialNet(ctx context.Context, t Target) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", t.Addr)
	if err != nil || t.TLS == nil {
		return c, err
	}
	config := t.TLS.Clone()
	config.NextProtos = []string{"h2"}
	if config.ServerName == "" {
		config.ServerName, _, _ = net.SplitHostPort(t.Addr)
	}
	secure := tls.Client(c, config)
	if err := secure.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return secure, nil
}
