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

	"github.com/keyward/keyward/internal/connguard"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

const (
	handshakeTime = 5 * time.Second
	idleTime      = 10 * time.Second // a stream without bytes for this long is closed
	maxHandshakes = 256              // connections whose handshake is not complete
	flushAt       = 64 << 10         // bytes of replies that are written before more requests are read
	maxOfMember   = 16               // connections of one member: it needs two, and more when it replaces them or restarts
	acceptBackoff = 50 * time.Millisecond
	refusalLogGap = time.Second // between two log lines for rejected connections
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
		case err != nil: // usually too many open files
			p.rejectConn("accept", nil, err)
			pause(ctx, acceptBackoff)
			continue
		}
		if p.serving.Load() >= int64(p.o.MaxStreams) {
			p.rejectConn("too_many", conn, errors.New("too many connections"))
			conn.Close()
			continue
		}
		if slow := p.handshakes.add(conn); slow != nil {
			p.rejectConn("crowded_out", slow, errors.New("too many connections without a complete handshake"))
			slow.Close()
		}
		p.wg.Go(func() { p.serveConn(ctx, conn) })
	}
}

// pause blocks for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// serveConn serves one connection until it ends.
func (p *Peer) serveConn(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	conn.SetDeadline(time.Now().Add(handshakeTime))
	stream, h, reason, err := p.acceptHandshake(ctx, conn)
	p.handshakes.remove(conn)
	if err != nil {
		p.rejectConn(reason, conn, err)
		return
	}
	defer p.allStreams.add(h.from, -1)
	if p.allStreams.add(h.from, 1) > maxOfMember {
		p.rejectConn("too_many", conn, fmt.Errorf("member %q has %d connections", h.from, maxOfMember))
		return
	}
	p.serving.Add(1)
	defer p.serving.Add(-1)
	if h.purpose == forRequests {
		p.m.inbound.Inc()
		p.countRequestStream(h.from, 1)
		defer func() {
			p.m.inbound.Dec()
			p.countRequestStream(h.from, -1)
		}()
	}
	defer time.AfterFunc(p.o.MaxAge, func() {
		p.m.refusals.WithLabelValues("too_old").Inc()
		conn.Close()
	}).Stop()
	s := server{p: p, conn: stream, raw: conn, in: frames{src: stream}, from: h.from, fromBoot: h.fromBoot, toBoot: h.toBoot}
	defer s.stopLateWriter()
	if err := s.run(); !errors.Is(err, io.EOF) && ctx.Err() == nil {
		p.log.Info("peer disconnected", "peer", h.from, "transfer", h.purpose == forTransfer, "error", err)
	}
}

// countRequestStream adds n to the number of streams over which a member sends requests.
func (p *Peer) countRequestStream(id ring.ID, n int) {
	p.requestStreams.add(id, n)
	wake(p.linksChanged)
}

// acceptHandshake performs the owner's side of the handshake. With an error it returns the reason for the metric.
func (p *Peer) acceptHandshake(ctx context.Context, conn net.Conn) (_ net.Conn, h hello, reason string, err error) {
	if p.serverTLS != nil {
		secure := tls.Server(conn, p.serverTLS)
		if err := secure.HandshakeContext(ctx); err != nil {
			return nil, h, p.o.TLSReason(err), fmt.Errorf("tls: %w", err)
		}
		if err := mutual(secure.ConnectionState()); err != nil {
			return nil, h, reasonTLS, fmt.Errorf("tls: %w", err)
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
	if err := p.verifyMember(conn, h.from); err != nil {
		return nil, h, "name", fmt.Errorf("member %q: %w", h.from, err)
	}
	w := p.checkHello(h)
	if _, err := conn.Write(appendWelcome(nil, w)); err != nil {
		return nil, h, "broken", fmt.Errorf("handshake: %w", err)
	}
	if w.refusal != refusalNone {
		return nil, h, "refused", fmt.Errorf("%w from member %q", refusalError(w, h), h.from)
	}
	return conn, h, "", nil
}

// checkHello accepts or refuses a hello.
func (p *Peer) checkHello(h hello) welcome {
	own := p.hello
	w := welcome{version: own.versions.common(h.versions), versions: own.versions, bootID: own.fromBoot}
	switch {
	case w.version == 0:
		w.refusal = refusalVersion
	case h.label != own.label:
		w.refusal = refusalCluster
	case h.scheme != own.scheme:
		w.refusal = refusalScheme
	case h.to != own.from:
		w.refusal = refusalTarget
	case h.toBoot != 0 && own.fromBoot != 0 && h.toBoot != own.fromBoot:
		w.refusal = refusalBoot
	case h.algorithms&^knownAlgorithms != 0:
		w.refusal = refusalAlgorithm
	}
	if w.refusal != refusalNone {
		w.version = 0
	}
	return w
}

// rejectConn counts a connection that is not served. It logs at most one a second, so that a client that can reach the
// port cannot fill the log.
func (p *Peer) rejectConn(reason string, conn net.Conn, err error) {
	p.m.refusals.WithLabelValues(reason).Inc()
	p.o.OnRefused(reason)
	if errors.Is(err, io.EOF) && !p.log.Enabled(p.ctx, slog.LevelDebug) {
		return // a probe that is not logged must not suppress the log line of another connection
	}
	now, last := p.clock.mono(), p.lastRefusal.Load()
	if (last != 0 && now-last < int64(refusalLogGap)) || !p.lastRefusal.CompareAndSwap(last, now) {
		return
	}
	address := ""
	if conn != nil {
		address = conn.RemoteAddr().String()
	}
	level := slog.LevelWarn
	if errors.Is(err, io.EOF) { // a client that connects and closes is a probe, such as the doctor's
		level = slog.LevelDebug
	}
	p.log.Log(p.ctx, level, "peer connection rejected", "cause", reason, "address", address, "error", err)
}

// server serves one stream. Everything happens on the stream's goroutine, so a slow requester delays only itself, and
// if it does not read replies it cannot send more requests.
type server struct {
	p        *Peer
	conn     net.Conn
	raw      net.Conn // conn without TLS; nil if not known
	in       frames
	from     ring.ID
	fromBoot uint64 // boot ID of from
	toBoot   uint64 // boot ID of this member that from wants to reach
	out      []byte
	reqs     []owner.Request
	results  []owner.Result
	delay    delay
	extended int64 // when the deadline was last extended, by the monotonic clock
	messages msgReader
	leases   leaseReader
	late     lateWriter
	group    *deferredGroup // for the next group that is served, in case it is deferred

	receivedKeys  int   // of the incoming transfer
	receivedSince int64 // when the transfer started, by the monotonic clock
}

func (s *server) run() error {
	s.extendDeadline(s.p.clock.mono(), true)
	for {
		if err := s.in.fill(); err != nil {
			return err
		}
		mono := s.p.decisionTime()
		s.extendDeadline(mono, false)
		if err := s.serveFrames(mono, s.p.clock.at(mono)); err != nil {
			return err
		}
		s.p.decisionMade()
		if err := s.flush(); err != nil {
			return err
		}
	}
}

// extendDeadline keeps the deadline between idleTime and a second less in the future. It does not set it at every read.
func (s *server) extendDeadline(mono int64, force bool) {
	if force || mono-s.extended > int64(time.Second) {
		s.extended = mono
		s.conn.SetDeadline(time.Now().Add(idleTime))
	}
}

// serveFrames serves all complete frames that have been read.
func (s *server) serveFrames(mono, now int64) error {
	for {
		typ, payload, complete, err := s.in.next()
		if err != nil || !complete {
			return err
		}
		switch typ {
		case frameRequest:
			err = s.serveGroup(mono, now, payload)
		case framePing:
			r := wire.NewReader(payload)
			if token := r.U64(); r.Err() == nil {
				s.out = appendPing(s.out, framePong, token)
			}
		default:
			if k, known := msgKind(typ); known {
				s.receive(now, k, payload)
			} else if k, known := leaseKind(typ); known {
				s.receiveLease(now, k, payload)
			} else if typ == framePool {
				s.receivePool(now, payload)
			} else if typ == frameCaller {
				s.receiveCaller(now, payload)
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

// serveGroup serves one group. It returns an error if the requester violates the protocol.
func (s *server) serveGroup(mono, now int64, payload []byte) error {
	records := wire.NewReader(payload)
	g, err := parseRequestHead(&records)
	if err != nil {
		return fmt.Errorf("request group: %w", err)
	}
	late := s.abandoned(mono, &g)
	s.grow(g.count)
	outcome := byte(groupServed)
	for i := range s.reqs {
		o, err := parseRequest(nextRecord(&records), &s.reqs[i])
		if err != nil {
			return fmt.Errorf("request: %w", err)
		}
		outcome = max(outcome, o)
	}
	if outcome == groupServed && late {
		outcome = groupLate
	}
	if outcome == groupServed {
		s.p.noteDecision()
		s.p.m.served.Add(float64(g.count))
		k := s.prepareGroup()
		s.p.o.Node.Serve(now, g.stop, s.reqs, s.results)
		if k.deferred(s, g, mono) {
			s.group = nil
			return nil
		}
	}
	s.reply(g.id, outcome)
	return nil
}

// abandoned reports whether the requester of a group has given up: its time has passed, or it has closed the stream
// because this member was silent. It has decided the requests from its local share then.
func (s *server) abandoned(mono int64, g *requestGroup) bool {
	first := !s.delay.seen // how late it is cannot be known yet
	late, known := s.delay.of(mono, g.sent)
	switch {
	case known && late > g.ttl+delaySlack:
		return true
	case first, known && late > aliveFor:
		return s.raw != nil && connguard.ClientClosed(s.raw)
	}
	return false
}

// grow makes room for n requests and results.
func (s *server) grow(n int) {
	if cap(s.reqs) < n {
		s.reqs, s.results = make([]owner.Request, n), make([]owner.Result, n)
	}
	s.reqs, s.results = s.reqs[:n], s.results[:n]
}

// reply appends the reply to a group. Only a group with the outcome groupServed has results.
func (s *server) reply(id uint64, outcome byte) {
	if outcome == groupServed {
		s.out = appendReply(s.out, id, s.results)
		return
	}
	w, at := appendReplyHead(s.out, replyHead{id: id, outcome: outcome})
	w.EndLen32(at)
	s.out = w
}
