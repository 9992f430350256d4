package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"

	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	handshakeTime = 5 * time.Second
	idleTime      = 10 * time.Second // without a ping, an asker has gone
	maxHandshakes = 256              // connections that have not proved themselves yet
	flushAt       = 64 << 10         // bytes of answers that are written before more questions are read
	maxOfMember   = 16               // connections of one member: it needs two, and as many while it replaces them or starts again
	acceptBackoff = 50 * time.Millisecond
	refusalLogGap = time.Second
)

// accept serves connections until the listener closes.
func (p *Peer) accept(ctx context.Context) {
	for {
		conn, err := p.listener.Accept()
		switch {
		case ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			if err == nil {
				conn.Close()
			}
			return
		case err != nil: // out of file descriptors, as a rule
			p.turnedAway("accept", nil, err)
			pause(ctx, acceptBackoff)
			continue
		}
		if p.serving.Load() >= int64(p.o.MaxStreams) {
			p.turnedAway("too_many", conn, errors.New("too many connections"))
			conn.Close()
			continue
		}
		if slow := p.greeting.begin(conn); slow != nil {
			p.turnedAway("crowded_out", slow, errors.New("too many connections that have not proved themselves"))
			slow.Close()
		}
		p.wg.Go(func() { p.serveConn(ctx, conn) })
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// serveConn greets one connection and answers it until it ends.
func (p *Peer) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(handshakeTime))
	stream, h, reason, err := p.welcome(ctx, conn)
	p.greeting.end(conn)
	if err != nil {
		p.turnedAway(reason, conn, err)
		return
	}
	defer p.inbound.add(h.from, -1)
	if p.inbound.add(h.from, 1) > maxOfMember {
		p.turnedAway("too_many", conn, fmt.Errorf("member %q has %d connections", h.from, maxOfMember))
		return
	}
	p.serving.Add(1)
	defer p.serving.Add(-1)
	if h.purpose == forQuestions {
		p.m.inbound.Inc()
		p.asks(h.from, 1)
		defer func() {
			p.m.inbound.Dec()
			p.asks(h.from, -1)
		}()
	}
	defer time.AfterFunc(p.o.MaxAge, func() {
		p.m.refusals.WithLabelValues("too_old").Inc()
		conn.Close()
	}).Stop()
	s := server{p: p, conn: stream, in: frames{src: stream}, from: h.from, inst: h.fromInst, toInst: h.toInst}
	defer s.stopLate()
	if err := s.run(); !errors.Is(err, io.EOF) && ctx.Err() == nil {
		p.log.Info("member disconnected", "member", h.from, "transfer", h.purpose == forTransfer, "error", err)
	}
}

// asks notes that a member has a stream more for its questions, or less.
func (p *Peer) asks(id ring.ID, n int) {
	p.askers.add(id, n)
	wake(p.relinked)
}

// welcome does this side of the handshake.
func (p *Peer) welcome(ctx context.Context, conn net.Conn) (_ net.Conn, h hello, reason string, err error) {
	if p.serverTLS != nil {
		secure := tls.Server(conn, p.serverTLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, h, p.o.TLSReason(err), fmt.Errorf("tls: %w", err)
		}
		if err := mutual(secure.ConnectionState()); err != nil {
			return nil, h, refusedTLS, fmt.Errorf("tls: %w", err)
		}
		conn = secure
	}
	payload, err := readHandshake(conn, frameHello)
	if err != nil {
		return nil, h, "garbage", fmt.Errorf("handshake: %w", err)
	}
	if h, err = parseHello(payload); err != nil {
		return nil, h, "garbage", fmt.Errorf("handshake: %w", err)
	}
	if err := p.proved(conn, h.from); err != nil {
		return nil, h, "name", fmt.Errorf("member %q: %w", h.from, err)
	}
	w := p.judge(h)
	if _, err := conn.Write(appendWelcome(nil, w)); err != nil {
		return nil, h, "broken", fmt.Errorf("handshake: %w", err)
	}
	if w.refusal != refusedNot {
		return nil, h, "refused", fmt.Errorf("%w from member %q", refusalError(w, h), h.from)
	}
	return conn, h, "", nil
}

// judge accepts or refuses a hello.
func (p *Peer) judge(h hello) welcome {
	own := p.hello
	w := welcome{version: own.versions.common(h.versions), versions: own.versions, inst: own.fromInst}
	switch {
	case w.version == 0:
		w.refusal = refusedVersion
	case h.label != own.label:
		w.refusal = refusedCluster
	case h.scheme != own.scheme:
		w.refusal = refusedScheme
	case h.to != own.from:
		w.refusal = refusedTarget
	case h.toInst != 0 && own.fromInst != 0 && h.toInst != own.fromInst:
		w.refusal = refusedInstance
	case h.algorithms&^knownAlgorithms != 0:
		w.refusal = refusedAlgorithm
	}
	if w.refusal != refusedNot {
		w.version = 0
	}
	return w
}

// turnedAway counts a connection that was not served, and logs it unless another was logged a moment ago: whoever
// can reach the port must not be able to fill the log.
func (p *Peer) turnedAway(reason string, conn net.Conn, err error) {
	p.m.refusals.WithLabelValues(reason).Inc()
	p.o.OnRefused(reason)
	if errors.Is(err, io.EOF) && !p.log.Enabled(p.ctx, slog.LevelDebug) {
		return // and it does not keep others out of the log
	}
	now, last := p.clock.mono(), p.lastRefusal.Load()
	if (last != 0 && now-last < int64(refusalLogGap)) || !p.lastRefusal.CompareAndSwap(last, now) {
		return
	}
	from := ""
	if conn != nil {
		from = conn.RemoteAddr().String()
	}
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) { // who connects, says nothing and goes is a probe, such as the doctor's
		level = slog.LevelDebug
	}
	p.log.Log(p.ctx, level, "peer connection turned away", "reason", reason, "from", from, "error", err)
}

// server answers one stream. Everything happens on its one goroutine, so a slow asker holds up only itself, and what it
// does not read keeps it from asking more.
type server struct {
	p        *Peer
	conn     net.Conn
	in       frames
	from     ring.ID
	inst     uint64 // boot of from
	toInst   uint64 // boot of this member that from means
	out      []byte
	qs       []owner.Request
	as       []owner.Result
	delay    delay
	extended int64 // when the deadline was last moved, by the monotonic clock
	messages msgReader
	leases   leaseReader
	late     late

	keys  int   // of the transfer that is being received
	began int64 // and when it began, by the monotonic clock
}

func (s *server) run() error {
	s.extend(s.p.clock.mono(), true)
	for {
		if err := s.in.fill(); err != nil {
			return err
		}
		mono := s.p.awake()
		s.extend(mono, false)
		if err := s.drain(mono, s.p.clock.now()); err != nil {
			return err
		}
		s.p.nudge()
		if err := s.flush(); err != nil {
			return err
		}
	}
}

// extend keeps the deadline between idleTime and a second less ahead, without touching the timer at every read.
func (s *server) extend(mono int64, force bool) {
	if force || mono-s.extended > int64(time.Second) {
		s.extended = mono
		s.conn.SetDeadline(time.Now().Add(idleTime))
	}
}

// drain answers all whole frames that have been read.
func (s *server) drain(mono, now int64) error {
	for {
		typ, payload, whole, err := s.in.next()
		if err != nil || !whole {
			return err
		}
		switch typ {
		case frameAsk:
			err = s.serve(mono, now, payload)
		case framePing:
			if len(payload) >= 8 {
				s.out = appendPing(s.out, framePong, le.Uint64(payload))
			}
		default:
			if k, known := msgKind(typ); known {
				s.receive(now, k, payload)
			} else if k, known := leaseKind(typ); known {
				s.receiveLease(now, k, payload)
			}
		}
		if err == nil && len(s.out) >= flushAt {
			err = s.flush()
		}
		if err != nil {
			return err
		}
	}
}

func (s *server) flush() error {
	if len(s.out) == 0 {
		return nil
	}
	_, err := s.conn.Write(s.out)
	s.out = s.out[:0]
	return err
}

// serve answers one group. An error means that the asker does not speak the protocol.
func (s *server) serve(mono, now int64, payload []byte) error {
	g, records, err := parseAskHead(payload)
	if err != nil {
		return fmt.Errorf("ask: %w", err)
	}
	late := s.delay.exceeds(mono, g.sent, g.ttl)
	s.grow(g.count)
	outcome := byte(groupServed)
	for i := range s.qs {
		record, rest, err := nextRecord(records)
		if err != nil {
			return fmt.Errorf("ask: %w", err)
		}
		o, err := parseQuestion(record, &s.qs[i])
		if err != nil {
			return fmt.Errorf("question: %w", err)
		}
		outcome, records = max(outcome, o), rest
	}
	if outcome == groupServed && late {
		outcome = groupLate
	}
	if outcome == groupServed {
		s.p.decides()
		s.p.m.served.Add(float64(g.count))
		s.p.o.Node.Serve(now, s.from, g.stop, s.qs, s.as)
		if waiting(s.as) {
			s.park(g, mono)
			return nil
		}
	}
	s.answer(g.id, outcome)
	return nil
}

func (s *server) grow(n int) {
	if cap(s.qs) < n {
		s.qs, s.as = make([]owner.Request, n), make([]owner.Result, n)
	}
	s.qs, s.as = s.qs[:n], s.as[:n]
}

func (s *server) answer(id uint64, outcome byte) {
	if outcome == groupServed {
		s.out = appendAnswers(s.out, id, s.as)
		return
	}
	b, at := beginFrame(s.out, frameAnswer)
	b = appendAnswerHead(b, id, outcome, 0)
	endFrame(b, at)
	s.out = b
}

func appendAnswers(b []byte, id uint64, as []owner.Result) []byte {
	b, at := beginFrame(b, frameAnswer)
	b = appendAnswerHead(b, id, groupServed, len(as))
	for i := range as {
		b = appendAnswer(b, &as[i])
	}
	endFrame(b, at)
	return b
}
