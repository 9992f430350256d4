package stats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"
)

// StatsdOptions configure a Statsd.
type StatsdOptions struct {
	Address    string            // host:port
	Network    string            // "tcp" (default) or "udp"; DogStatsD is always UDP
	Dog        bool              // use the DogStatsD protocol
	Interval   time.Duration     // time between two flushes; default 10 s
	Retry      time.Duration     // time from a failure to the next attempt; default 3 s
	Tags       map[string]string // added to every statistic
	DogTags    []string          // name:value, sent unchanged; only for DogStatsD
	Mogrifiers []Mogrifier       // only for DogStatsD
	Logger     *slog.Logger      // nil: no logs
}

// Statsd sends the increments of a Store's counters, its gauges and a sample of its timers at every interval. It
// reads the Store when it sends, without a queue: while the server is unavailable the increments accumulate.
type Statsd struct {
	o      StatsdOptions
	store  *StatStore
	format *format
	buffer batch
	cancel context.CancelFunc
	done   chan struct{}

	counters map[*StatCounter]*sentCounter
	gauges   map[*Gauge]label
	scratch  []time.Duration

	mu     sync.Mutex
	timers []*reservoir // guarded by mu
}

// sentCounter is the state of a counter at the server.
type sentCounter struct {
	label label
	value uint64
}

const (
	dialTimeout  = 1500 * time.Millisecond
	writeTimeout = time.Second
)

// StartStatsd starts sending. It returns an error only for invalid options: if the server is unavailable, it retries.
func StartStatsd(s *StatStore, o StatsdOptions) (*Statsd, error) {
	o.Network = cmp.Or(o.Network, "tcp")
	if o.Dog {
		o.Network = "udp"
	}
	if o.Interval <= 0 {
		o.Interval = 10 * time.Second
	}
	if o.Retry <= 0 {
		o.Retry = 3 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if _, _, err := net.SplitHostPort(o.Address); err != nil {
		return nil, fmt.Errorf("statsd address: %w", err)
	}
	f, err := newFormat(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &Statsd{
		o: o, store: s, format: f, cancel: cancel, done: make(chan struct{}),
		counters: map[*StatCounter]*sentCounter{}, gauges: map[*Gauge]label{},
	}
	d.buffer.limit = 64 << 10
	if o.Network == "udp" {
		d.buffer.limit = 1432 // fits into an Ethernet frame
	}
	s.listen(d.timer)
	go d.run(ctx)
	return d, nil
}

// Close sends what is left, if the server is available, and stops. It returns within dialTimeout + writeTimeout.
func (d *Statsd) Close() {
	d.cancel()
	<-d.done
}

func (d *Statsd) timer(name string) observer {
	r := &reservoir{label: d.format.label(name)}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.timers = append(d.timers, r)
	return r
}

func (d *Statsd) run(ctx context.Context) {
	defer close(d.done)
	away := false // logged once, not at every attempt
	for {
		err := d.serve(ctx, func() {
			if away {
				d.o.Logger.Info("statsd connection restored", "address", d.o.Address)
			}
			away = false
		})
		if err == nil {
			return
		}
		d.store.metrics.failures.Inc()
		if !away {
			d.o.Logger.Warn("statsd unavailable; statistics are kept until it returns", "address", d.o.Address,
				"error", err)
		}
		away = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.o.Retry):
		}
	}
}

// serve connects and flushes until an error occurs, which it returns, or until ctx is done. It calls flushed after
// each successful flush.
func (d *Statsd) serve(ctx context.Context, flushed func()) error {
	// Close does not interrupt dialing: the last increments must still be sent.
	conn, err := net.DialTimeout(d.o.Network, d.o.Address, dialTimeout)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	tick := time.NewTicker(d.o.Interval)
	defer tick.Stop()
	for {
		last := false
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
		if err := d.flush(conn); err != nil && !last {
			return err
		}
		if last {
			return nil
		}
		flushed()
	}
}

// flush sends everything that changed.
func (d *Statsd) flush(conn net.Conn) error {
	if err := checkOpen(conn); err != nil {
		return err
	}
	b := &d.buffer
	b.reset(conn)
	d.store.generate()
	d.store.eachCounter(func(c *StatCounter, base, suffix string) {
		at, ok := d.counters[c]
		if !ok {
			at = &sentCounter{label: d.format.label(base + suffix)}
			d.counters[c] = at
		}
		if now := c.Value(); now != at.value {
			b.counter(at, now)
		}
	})
	d.store.eachGauge(func(g *Gauge, name string) {
		l, ok := d.gauges[g]
		if !ok {
			l = d.format.label(name)
			d.gauges[g] = l
		}
		b.gauge(l, g.Value())
	})
	d.mu.Lock()
	timers := d.timers
	d.mu.Unlock()
	for _, r := range timers {
		var rate float64
		d.scratch, rate = r.drain(d.scratch[:0])
		for _, v := range d.scratch {
			b.timer(r.label, v, rate, d.o.Dog)
		}
	}
	b.flush()
	return b.err
}

// checkOpen detects a connection that the server has closed, to which the first write would seem to succeed.
func checkOpen(conn net.Conn) error {
	if _, ok := conn.(*net.TCPConn); !ok {
		return nil
	}
	if err := conn.SetReadDeadline(time.Now().Add(time.Millisecond)); err != nil {
		return err
	}
	var one [1]byte
	if _, err := conn.Read(one[:]); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}
