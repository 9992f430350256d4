// Package audit writes audit records to a sink of their own: a file, the standard output or an OTLP collector.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

const (
	queueLength = 8192             // records that wait for the sink
	maxBatch    = 512              // records of one write
	maxFileSize = 100 << 20        // bytes, after which a file is renamed and a new one begun
	lastRecords = 2 * time.Second  // Close waits this long for the sink
	lastAnswer  = lastRecords / 10 // of these, the time in which a write that Close interrupts may return
	warnEvery   = 60 * time.Second // between two warnings about a sink that fails
)

// Record is one audit record.
type Record struct {
	Time      time.Time  `json:"time"`
	Member    string     `json:"member"` // the member that writes it
	Kind      string     `json:"kind"`   // an owner.Audit's kind, or reset
	Domain    string     `json:"domain,omitempty"`
	Key       string     `json:"key,omitempty"` // readable; empty, as Domain, if the member does not have its name
	Digest    string     `json:"digest"`
	Peer      string     `json:"peer,omitempty"`
	Authority string     `json:"authority,omitempty"`
	Since     *time.Time `json:"since,omitempty"` // degraded_last: the first degraded decision of the window
	Hits      uint64     `json:"hits"`
	Used      uint64     `json:"used,omitempty"`
	Limit     uint32     `json:"limit,omitempty"`
	// Lost is the number of records that were lost since the previous record of this member that was written.
	Lost uint64 `json:"lost,omitempty"`
}

// sink writes records. Its methods are called by one goroutine.
type sink interface {
	// write writes records and returns how many of them were written. It returns an error if that is fewer than all.
	write(ctx context.Context, records []Record) (int, error)
	close()
}

// Options configures a Trail.
type Options struct {
	// Target is stdout, otlp, or the path of a file. Empty is stdout.
	Target     string
	Member     string
	Service    string                // for otlp
	Logger     *slog.Logger          // logs that the sink fails; nil: no logs
	Registerer prometheus.Registerer // nil: none
}

// Trail writes records in the background. It is safe for concurrent use.
type Trail struct {
	o       Options
	queue   chan Record
	lost    atomic.Uint64 // records that the next one reports as lost
	waiting atomic.Int64  // records in queue or being written
	reopen  atomic.Bool
	sink    sink
	written prometheus.Counter
	dropped prometheus.Counter
	warned  time.Time

	cancel context.CancelFunc
	stop   chan struct{} // closed by Close
	once   sync.Once
	done   chan struct{}

	mu        sync.Mutex
	abandoned bool // the waiting records were counted as lost, whatever the sink still does with them
}

// IsFile reports whether target is the path of a file.
func IsFile(target string) bool { return target != "" && target != "stdout" && target != "otlp" }

// New returns a Trail that writes to o.Target. It returns an error if a file cannot be opened.
func New(o Options) (*Trail, error) {
	var s sink
	switch o.Target {
	case "", "stdout":
		s = &lines{file: os.Stdout}
	case "otlp":
		s = newCollector(o.Service, o.Member, os.Getenv)
	default:
		f := &lines{path: o.Target, maxSize: maxFileSize}
		if err := f.open(); err != nil {
			return nil, fmt.Errorf("--audit-log: %w", err)
		}
		s = f
	}
	return start(o, s, queueLength), nil
}

func start(o Options, s sink, length int) *Trail {
	records := promauto.With(o.Registerer).NewCounterVec(prometheus.CounterOpts{
		Name: "keyward_audit_records_total", Help: "Audit records, by whether they were written or lost.",
	}, []string{"result"})
	ctx, cancel := context.WithCancel(context.Background())
	l := &Trail{
		o: o, queue: make(chan Record, length), sink: s, cancel: cancel,
		written: records.WithLabelValues("written"), dropped: records.WithLabelValues("lost"),
		stop: make(chan struct{}), done: make(chan struct{}),
	}
	promauto.With(o.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "keyward_audit_records_waiting", Help: "Audit records that wait for the sink: neither written nor lost yet.",
	}, func() float64 { return float64(l.waiting.Load()) })
	go l.run(ctx)
	return l
}

// Add queues r, and sets its Time, if that is zero, and its Member. It never blocks: if the queue is full, r is lost and
// counted. A nil Trail drops r.
func (l *Trail) Add(r Record) {
	if l == nil {
		return
	}
	if r.Member = l.o.Member; r.Time.IsZero() {
		r.Time = time.Now()
	}
	select {
	case <-l.stop:
		l.Lose(1)
		return
	default:
	}
	l.waiting.Add(1)
	select {
	case l.queue <- r:
	default:
		l.waiting.Add(-1)
		l.Lose(1)
	}
}

// Reopen makes the Trail open its file again before the next write, after another process has renamed it.
func (l *Trail) Reopen() { l.reopen.Store(true) }

// Close writes the queued records and closes the sink. Records that are added later are lost. It waits for two seconds
// at most: records that the sink has not taken by then are lost, and the sink remains open until its write returns.
func (l *Trail) Close() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		close(l.stop)
		interrupt := time.AfterFunc(lastRecords-lastAnswer, l.cancel)
		limit := time.NewTimer(lastRecords)
		select {
		case <-l.done:
		case <-limit.C:
			l.abandon()
		}
		interrupt.Stop()
		limit.Stop()
		l.cancel()
	})
}

// Lose counts n records that were lost before they could be added. A nil Trail does nothing.
func (l *Trail) Lose(n uint64) {
	if l == nil {
		return
	}
	l.lost.Add(n)
	l.dropped.Add(float64(n))
}

func (l *Trail) run(ctx context.Context) {
	defer close(l.done)
	defer l.sink.close()
	var batch []Record
	for {
		if ctx.Err() != nil {
			l.abandon()
			return
		}
		select {
		case r := <-l.queue:
			batch = append(batch[:0], r)
		case <-l.stop:
			if len(l.queue) == 0 {
				return
			}
			batch = batch[:0]
		}
		for more := true; more && len(batch) < maxBatch; {
			select {
			case r := <-l.queue:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		l.write(ctx, batch)
	}
}

// abandon counts the waiting records as lost.
func (l *Trail) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abandoned = true
	l.Lose(uint64(max(0, l.waiting.Swap(0))))
}

// settle counts the records of a batch, unless they were abandoned.
func (l *Trail) settle(written, lost int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.abandoned {
		return
	}
	l.waiting.Add(-int64(written + lost))
	l.written.Add(float64(written))
	l.Lose(uint64(lost))
}

// write writes batch, and counts its records as written or lost.
func (l *Trail) write(ctx context.Context, batch []Record) {
	if len(batch) == 0 {
		return
	}
	if f, ok := l.sink.(*lines); ok && l.reopen.Swap(false) {
		f.close()
	}
	before := l.lost.Swap(0)
	batch[0].Lost = before
	n, err := l.sink.write(ctx, batch)
	if n == 0 {
		l.lost.Add(before)
	}
	l.settle(n, len(batch)-n)
	if now := time.Now(); err != nil && l.o.Logger != nil && now.Sub(l.warned) > warnEvery {
		l.warned = now
		l.o.Logger.Warn("audit records lost", "error", err)
	}
}
