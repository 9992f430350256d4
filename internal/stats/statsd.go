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

// StatsdOptions make a Statsd.
type StatsdOptions struct {
	Address    string            // host:port
	Network    string            // "tcp" (default) or "udp"; DogStatsD is always UDP
	Dog        bool              // speak DogStatsD
	Interval   time.Duration     // between two flushes; default 10 s
	Retry      time.Duration     // from a failure to the next attempt; default 3 s
	Tags       map[string]string // of every statistic
	DogTags    []string          // name:value, DogStatsD only: sent as they are
	Mogrifiers []Mogrifier       // DogStatsD only
	Logger     *slog.Logger      // default: no log
}

// Statsd sends what a Store's counters gained, its gauges and a sample of its timers, every interval. It reads the Store
// when it is due and keeps no queue: while the server is away the gains add up, and go out when it is back.
type Statsd struct {
	o      StatsdOptions
	store  *Store
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

// sentCounter is what the server knows of a counter.
type sentCounter struct {
	label label
	value uint64
}

const (
	dialTimeout  = 1500 * time.Millisecond
	writeTimeout = time.Second
)

// StartStatsd begins to send. Its error is about the options; a server that is away is waited for.
func StartStatsd(s *Store, o StatsdOptions) (*Statsd, error) {
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
		d.buffer.limit = 1432 // fits an Ethernet frame
	}
	s.listen(d.timer)
	go d.run(ctx)
	return d, nil
}

// Close sends what is left, if the server is there, and stops: within dialTimeout + writeTimeout.
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
	away := false // told once, not at every attempt
	for {
		err := d.serve(ctx, func() {
			if away {
				d.o.Logger.Info("statsd is back", "address", d.o.Address)
			}
			away = false
		})
		if err == nil {
			return
		}
		d.store.metrics.failures.Inc()
		if !away {
			d.o.Logger.Warn("statsd is away; statistics wait for it", "address", d.o.Address, "error", err)
		}
		away = true
		select {
		case <-ctx.Done():
			return
		case <-time.After(d.o.Retry):
		}
	}
}

// serve connects and flushes until a fault, or until ctx is done, which is no fault. It reports every flush that went well.
func (d *Statsd) serve(ctx context.Context, flushed func()) error {
	// Close does not interrupt the dialling: what was counted until now still has to go out.
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

// flush sends everything that is new.
func (d *Statsd) flush(conn net.Conn) error {
	if err := alive(conn); err != nil {
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

// alive finds a connection that the other side has closed: the first write to it would seem to succeed.
func alive(conn net.Conn) error {
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
