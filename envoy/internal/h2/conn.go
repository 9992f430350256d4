package h2

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"

	"github.com/keyward/keyward/internal/budget"
)

// conn is one connection. Its loop holds mu while it processes frames, and releases mu to read, to write and to serve
// a call. All methods are called with mu held unless their comment says otherwise.
type conn struct {
	server *InlineServer
	raw    net.Conn  // the connection that the listener accepted
	turns  turnTaker // raw, if it limits its own processor time
	nc     net.Conn  // raw, or the TLS connection on it
	in     input     // only used by the loop
	fr     *http2.Framer
	now    time.Time // when the frames that the loop processes were read
	// lastRead is when the client last sent anything. Only used by the loop, as is watch, except for its pings.
	lastRead time.Time
	watch    watch
	// Only used by the loop: a frame arrived since timers were last scheduled, outside an open header block.
	progressed bool

	account  *budget.Account
	identity string // of the client's certificate; set by the handshake

	mu sync.Mutex // guards the fields below

	headers       headers
	streams       map[uint32]*Stream // open calls by stream
	highestStream uint32             // the highest stream that the client has opened
	closed        closedStreams      // streams that this side ended before the client did
	late          lateCalls

	settingsReceived bool  // the client's first SETTINGS have arrived
	recvWindow       int64 // bytes of data that the client may still send, on all streams
	peakStreams      int   // the most streams that were open since the map was made
	callBytes        int64 // bytes charged for calls
	chargedBytes     int64 // keptBytes as charged to account
	abandoned        int   // calls that the client gave up and whose handlers have not answered
	controls         controlBudget
	answeredAny      bool // a call has been answered
	callsReceived    int  // complete calls since the last finishBatch
	cheapBytes       int  // bytes received since then that were cheap to process

	output
	timers timers
	drain  drain

	pings    []sentPing // of Duplex, in order
	nextPing uint64     // number of the last of them
}

func newConn(s *InlineServer, nc net.Conn) *conn {
	c := &conn{server: s, raw: nc, nc: nc, account: s.account.Open(), streams: map[uint32]*Stream{},
		recvWindow: firstWindow}
	var ok bool
	if c.turns, ok = nc.(turnTaker); !ok {
		c.turns = noTurns{}
	}
	c.wrote.L = &c.mu
	c.output.sendWindow, c.output.initialWindow, c.output.maxFrame = firstWindow, firstWindow, minFrame
	return c
}

// turnTaker is a connection whose reads wait for their turn if it costs more than it brings: see connguard.TurnTaker.
type turnTaker interface {
	Spend(bytes int)
	Earn(calls, bytes int)
	Start()
	Leave()
	Enter()
}

// noTurns is used for a connection without turns.
type noTurns struct{}

func (noTurns) Spend(int)     {}
func (noTurns) Earn(int, int) {}
func (noTurns) Start()        {}
func (noTurns) Leave()        {}
func (noTurns) Enter()        {}

const (
	firstWindow = 1<<16 - 1 // initial window of the connection and of streams: RFC 9113, 6.9.2
	minFrame    = 1 << 14   // the largest payload that every peer must accept, and the largest that this server accepts
	maxWindow   = 1<<31 - 1

	streamWindow = 1 << 20  // advertised to clients, so that a usual message never waits
	connWindow   = 16 << 20 // the same for all streams of a connection

	flushSize     = 32 << 10 // bytes of output at which the loop writes before it has processed all input
	lingerInput   = 1 << 20  // bytes read and discarded after GOAWAY
	goAwayTimeout = time.Second
)

// serve runs the connection to its end. Called without mu.
func (c *conn) serve() {
	defer c.end()
	c.turns.Start()
	if !c.handshake() {
		return
	}
	err := c.loop()
	defer c.notifyWatchers(err)
	if fault := (connError{}); errors.As(err, &fault) {
		c.sendGoAway(fault)
	}
}

// handshake secures the connection, reads the preface and writes the settings. Called without mu.
func (c *conn) handshake() bool {
	if !c.startHandshake() {
		return false
	}
	if t := c.server.o.TLS; t != nil {
		if err := c.tlsHandshake(t); err != nil {
			c.refuseTLS(err)
			return false
		}
	}
	var head [len(http2.ClientPreface)]byte
	if n, err := io.ReadFull(c.nc, head[:]); err != nil || string(head[:]) != http2.ClientPreface {
		if n > 0 || !errors.Is(err, io.EOF) && !c.server.isDown() { // ignore probes that only connect
			c.server.refuse(NotHTTP2)
		}
		return false
	}
	_ = c.raw.SetWriteDeadline(time.Time{})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = input{buf: make([]byte, smallInput), account: c.account}
	c.fr = http2.NewFramer(nil, &c.in)
	c.fr.SetReuseFrames()
	c.fr.SetMaxReadFrameSize(minFrame)
	c.headers.init(&c.server.o)
	c.timers.start(c)
	c.watch.opened, c.lastRead = c.now, c.now
	c.writeSettings()
	return c.flush() == nil
}

// startHandshake sets the handshake deadline. It returns false if Shutdown was called before. Called without mu.
func (c *conn) startHandshake() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = time.Now()
	_ = c.raw.SetDeadline(c.now.Add(c.server.o.Limits.HandshakeTimeout))
	return !c.drain.requested
}

// tlsHandshake runs the TLS handshake. Called without mu.
func (c *conn) tlsHandshake(t *tls.Config) error {
	read := budget.Conn{Conn: c.raw, Meter: budget.NewMeter(c.account, 0, func() { c.server.refuse(Unfinished) })}
	nc := tls.Server(read, t)
	if err := nc.Handshake(); err != nil {
		return err
	}
	read.Stop()
	if nc.ConnectionState().NegotiatedProtocol != "h2" {
		nc.Close()
		return errors.New("tls: the client did not ask for h2 by ALPN")
	}
	c.mu.Lock()
	c.nc = nc
	c.mu.Unlock()
	c.identity = identityOf(nc.ConnectionState().PeerCertificates)
	return nil
}

// identityOf returns the name in the first certificate, or "".
func identityOf(chain []*x509.Certificate) string {
	if len(chain) == 0 {
		return ""
	}
	switch c := chain[0]; {
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	default:
		return c.Subject.CommonName
	}
}

// refuseTLS counts a failed handshake.
func (c *conn) refuseTLS(err error) {
	switch reason := c.server.o.TLSReason; {
	case errors.Is(err, budget.ErrOver): // already counted
	case reason != nil:
		c.server.refuse(reason(err))
	default:
		c.server.refuse("tls")
	}
}

// loop reads and serves until the connection ends. Called without mu.
func (c *conn) loop() error {
	for {
		_, err := c.in.fill(c.nc)
		c.mu.Lock()
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			c.now = time.Now()
			err = c.runDueTimers()
		case err == nil:
			c.now = time.Now()
			c.lastRead, c.watch.missed = c.now, 0
			err = c.batch()
		}
		if err == nil {
			err = c.finishBatch()
		}
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// batch processes all complete frames in the input.
func (c *conn) batch() error {
	c.busy = true
	defer func() { c.busy = false }()
	for c.in.hasFrame() {
		h, err := c.fr.ReadFrameHeader()
		if err == nil {
			err = c.awaitTurn(h)
		}
		if err == nil {
			err = c.frame(h)
		}
		if err = c.onStreamError(err); err != nil {
			return err
		}
		c.progressed = c.progressed || c.headers.id == 0
		if len(c.out) >= flushSize {
			if err := c.flush(); err != nil {
				return err
			}
		}
	}
	return nil
}

// costlyBlock is the size of a header block in bytes from which the connection waits for its turn, if it gave its
// turn up for an earlier call.
const costlyBlock = 512

// awaitTurn waits for the connection's turn if the frame may be expensive to process.
func (c *conn) awaitTurn(h http2.FrameHeader) error {
	if h.Length < costlyBlock || h.Type != http2.FrameHeaders && h.Type != http2.FrameContinuation {
		return nil
	}
	c.mu.Unlock()
	c.turns.Enter()
	c.mu.Lock()
	return c.broken
}

// finishBatch writes the output and updates accounts and timers after the loop has processed input.
func (c *conn) finishBatch() error {
	if !c.chargeKept() {
		if err := c.reclaim(); err != nil {
			return err
		}
	}
	if c.callsReceived > 0 || c.cheapBytes > 0 {
		c.turns.Earn(c.callsReceived, c.cheapBytes)
		c.callsReceived, c.cheapBytes = 0, 0
	}
	if err := c.flush(); err != nil {
		return err
	}
	if c.drain.requested && c.drain.stage == notDraining {
		c.startDrain()
		if err := c.flush(); err != nil {
			return err
		}
	}
	if c.drain.done(c) {
		return connError{code: http2.ErrCodeNo}
	}
	c.scheduleTimers()
	c.progressed = false
	return nil
}

// errCut closes a connection without GOAWAY: its client has been notified already, or does not read.
var errCut = errors.New("cut")

// connError ends a connection: RFC 9113, 5.4.1.
type connError struct {
	code http2.ErrCode
	text string
}

func (f connError) Error() string { return fmt.Sprintf("%s: %s", f.code, f.text) }

// onStreamError resets the stream if err is a stream error, and returns errors that end the connection.
func (c *conn) onStreamError(err error) error {
	if err == nil {
		return nil
	}
	var stream http2.StreamError
	var whole http2.ConnectionError
	switch {
	case errors.As(err, &stream):
		c.reset(stream.StreamID, stream.Code)
		return c.spendControl(1)
	case errors.As(err, &whole):
		return connError{http2.ErrCode(whole), fmt.Sprint(c.fr.ErrorDetail())}
	case errors.Is(err, http2.ErrFrameTooLarge):
		return connError{http2.ErrCodeFrameSize, "frame of more than 16384 bytes"}
	case errors.Is(err, io.ErrUnexpectedEOF): // from the Framer: the payload is shorter than its fields
		return connError{http2.ErrCodeFrameSize, "frame too short for its fields"}
	}
	return err
}

// sendGoAway sends the reason for closing the connection and gives the client a moment to read it: a connection that
// is closed with unread input is reset, and the reason is lost. Called without mu.
func (c *conn) sendGoAway(f connError) {
	c.server.o.Log.Debug("rls connection ended", "client", c.raw.RemoteAddr(), "reason", f.Error())
	c.mu.Lock()
	if f.code != http2.ErrCodeNo {
		c.refused(f.code)
		c.out = appendGoAway(c.out, c.highestStream, f.code, f.text)
	}
	_ = c.raw.SetDeadline(time.Now().Add(goAwayTimeout))
	c.timers.writeDeadline = never
	if errors.Is(c.broken, f) { // the connection itself still works
		c.broken = nil
	}
	err := c.flush()
	c.mu.Unlock()
	if err != nil {
		return
	}
	if w, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	for read := 0; read < lingerInput; {
		n, err := c.nc.Read(c.in.buf)
		if read += n; err != nil {
			return
		}
	}
}

// refused reports a stream or connection that ended with an error.
func (c *conn) refused(code http2.ErrCode) { c.server.refuse(strings.ToLower(code.String())) }

// end releases everything that the connection holds. Called without mu.
func (c *conn) end() {
	c.nc.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = errCut
	for _, k := range c.streams {
		c.abandonCall(k)
	}
	c.account.Close()
	if c.lateWake != nil {
		close(c.lateWake)
		c.lateWake = nil
	}
	c.out, c.spare = nil, nil
	c.wrote.Broadcast()
}
