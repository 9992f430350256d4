package h2

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// The oracle is the HTTP/2 server of golang.org/x/net with a handler that follows gRPC's rules. It and this package's
// server receive the same bytes, a frame at a time, and are compared when both are idle.

const oracleStreams = 10 // calls open on a connection

// peer is the client side of a connection to one of the two servers.
type peer struct {
	conn net.Conn
	gone sync.WaitGroup // of the server's side

	mu  sync.Mutex
	raw bytes.Buffer // output of the server that has not been parsed

	dec  *hpack.Decoder
	said said
}

// said is the output of a server so far.
type said struct {
	streams map[uint32]*answerSeen
	pings   []string
	acks    int // of SETTINGS
	code    http2.ErrCode
	over    bool // GOAWAY with a code that is an error, or the end of the connection
}

// answerSeen is the output of a server on one stream.
type answerSeen struct {
	http, grpc string // status codes; "" until they come
	data       []byte
	ended      bool
	closed     bool // by any reset
	reset      bool // with an error
	code       http2.ErrCode
}

func newPeer(serve func(net.Conn)) *peer {
	near, far := net.Pipe()
	p := &peer{conn: near, dec: hpack.NewDecoder(4096, nil), said: said{streams: map[uint32]*answerSeen{}}}
	p.gone.Go(func() { serve(far) })
	go func() {
		b := make([]byte, 1<<16)
		for {
			n, err := near.Read(b)
			p.mu.Lock()
			p.raw.Write(b[:n])
			p.said.over = p.said.over || err != nil
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

// say sends bytes and returns when the server is idle.
func (p *peer) say(b []byte) {
	go func() { _, _ = p.conn.Write(b) }()
	synctest.Wait()
}

// listen processes the output of the server since the last call.
func (p *peer) listen(t *testing.T) *said {
	p.mu.Lock()
	defer p.mu.Unlock()
	fr := http2.NewFramer(nil, &p.raw)
	fr.SetMaxReadFrameSize(1 << 24)
	fr.AllowIllegalReads = true
	for p.raw.Len() > 0 {
		f, err := fr.ReadFrame()
		if err != nil {
			t.Fatalf("the server says no HTTP/2: %v", err)
		}
		p.take(t, f)
	}
	return &p.said
}

func (p *peer) take(t *testing.T, f http2.Frame) {
	s := &p.said
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			s.acks++
		}
	case *http2.PingFrame:
		s.pings = append(s.pings, fmt.Sprint(f.IsAck(), f.Data))
	case *http2.GoAwayFrame:
		if f.ErrCode != http2.ErrCodeNo {
			s.over, s.code = true, f.ErrCode
		}
	case *http2.RSTStreamFrame:
		a := s.of(f.StreamID)
		if !a.closed && f.ErrCode != http2.ErrCodeNo {
			a.reset, a.code = true, f.ErrCode
		}
		a.closed = true // x/net resets again what comes after a reset; RFC 9113, 5.1 wants it ignored
	case *http2.DataFrame:
		a := s.of(f.StreamID)
		a.data = append(a.data, f.Data()...)
		a.ended = a.ended || f.StreamEnded()
	case *http2.HeadersFrame:
		b := f.HeaderBlockFragment()
		for len(b) > 0 && b[0]&0xe0 == 0x20 { // a table size; x/net sends two, for which its own decoder must start again
			n := len(b)
			_, b, _ = integer(b, 5)
			_, _ = p.dec.DecodeFull(f.HeaderBlockFragment()[len(f.HeaderBlockFragment())-n : len(f.HeaderBlockFragment())-len(b)])
		}
		list, err := p.dec.DecodeFull(b)
		if err != nil {
			t.Fatalf("the server packs headers wrong: %v", err)
		}
		a := s.of(f.StreamID)
		for _, h := range list {
			switch h.Name {
			case ":status":
				a.http = h.Value
			case "grpc-status":
				a.grpc = h.Value
			}
		}
		a.ended = a.ended || f.StreamEnded()
	}
}

func (s *said) of(id uint32) *answerSeen {
	if s.streams[id] == nil {
		s.streams[id] = &answerSeen{}
	}
	return s.streams[id]
}

// data returns the number of data bytes that the server has sent.
func (s *said) data() (n uint64) {
	for _, a := range s.streams {
		n += uint64(len(a.data))
	}
	return n
}

// opensBlock reports whether a frame leaves a header block open.
func opensBlock(frame []byte) bool {
	t := http2.FrameType(frame[3])
	return (t == http2.FrameHeaders || t == http2.FrameContinuation) && frame[4]&byte(http2.FlagHeadersEndHeaders) == 0
}

// topReset returns the highest stream that the server has reset.
func (s *said) topReset() (top uint32) {
	for id, a := range s.streams {
		if a.reset {
			top = max(top, id)
		}
	}
	return top
}

// differs describes how the output of two servers differs, or returns "". Allowed differences are named.
func differs(ours, oracle *said) string {
	if ours.over || oracle.over {
		switch {
		case ours.over != oracle.over:
			return fmt.Sprintf("the connection ends: %v (%v), oracle %v (%v)", ours.over, ours.code, oracle.over, oracle.code)
		case ours.code != http2.ErrCodeNo && oracle.code == http2.ErrCodeNo: // x/net ends without a word for a frame too short for its fields
		case ours.code != oracle.code && !alike(ours.code, oracle.code):
			return fmt.Sprintf("the connection ends with %v, oracle %v", ours.code, oracle.code)
		}
		return ""
	}
	if ours.acks != oracle.acks {
		return fmt.Sprintf("%d SETTINGS acknowledged, oracle %d", ours.acks, oracle.acks)
	}
	if a, b := fmt.Sprint(ours.pings), fmt.Sprint(oracle.pings); a != b {
		return fmt.Sprintf("PING %s, oracle %s", a, b)
	}
	for id := range oracle.streams {
		ours.of(id)
	}
	for id, a := range ours.streams {
		if why := a.differs(oracle.of(id)); why != "" {
			return fmt.Sprintf("stream %d: %s", id, why)
		}
	}
	return ""
}

// alike reports whether two codes mean the same. RFC 9113 leaves open whether HEADERS on a closed stream is a
// protocol error or an error of a closed stream (5.1 and 5.1.1).
func alike(a, b http2.ErrCode) bool {
	either := func(c http2.ErrCode) bool { return c == http2.ErrCodeProtocol || c == http2.ErrCodeStreamClosed }
	return either(a) && either(b)
}

func (a *answerSeen) String() string {
	return fmt.Sprintf("status %q, gRPC's %q, %d bytes %.40x, ended %v, reset %v (%v)", a.http, a.grpc, len(a.data), a.data, a.ended, a.reset, a.code)
}

func (a *answerSeen) differs(b *answerSeen) string {
	switch {
	case a.reset && b.reset:
		switch {
		case a.code == b.code,
			a.code == http2.ErrCodeProtocol && b.code == http2.ErrCodeInternal, // a body shorter than it was said to be: of x/net the handler says so
			a.code|b.code == http2.ErrCodeRefusedStream|http2.ErrCodeProtocol:  // too many streams: 5.1.2 allows both
			return ""
		}
		return fmt.Sprintf("reset with %v, oracle %v", a.code, b.code)
	case a.reset && b.http == "400" && a.code == http2.ErrCodeProtocol: // a malformed request: 8.1.1 allows an answer before
		return ""
	case b.reset && (b.code == http2.ErrCodeProtocol || b.code == http2.ErrCodeRefusedStream) && a.http != "" && a.http != "200": // beyond the number of streams; like grpc-go this server answers first what needs none
		return ""
	case b.reset && b.code == http2.ErrCodeProtocol && a.grpc == "12": // a :path without a slash: like grpc-go this server answers that it knows no such method
		return ""
	case a.reset != b.reset:
		return fmt.Sprintf("%v, oracle %v", a, b)
	case a.http != b.http || a.grpc != b.grpc || a.ended != b.ended || !bytes.Equal(a.data, b.data):
		return fmt.Sprintf("%v, oracle %v", a, b)
	}
	return ""
}

// compare sends bytes to both servers and returns how many bytes were compared. It runs in a bubble of synctest.
func compare(t *testing.T, all []byte) (at int) {
	s := NewInlineServer(Options{Methods: methods(), Limits: Limits{Streams: oracleStreams, ControlFrames: 1 << 20}})
	ours, oracle := newPeer(s.start), newPeer(serveOracle)
	defer func() {
		ours.conn.Close()
		oracle.conn.Close()
		s.gone.Wait()
		oracle.gone.Wait()
	}()
	ours.say([]byte(http2.ClientPreface))
	oracle.say([]byte(http2.ClientPreface))
	credit := uint64(firstWindow)
	for at < len(all) {
		n := frameSizeAt(all[at:])
		frame := all[at : at+n]
		ours.say(frame)
		oracle.say(frame)
		at += n
		a, b := ours.listen(t), oracle.listen(t)
		if beyondOracle(frame) || leftOpen(frame, a, b) {
			return at
		}
		if a.over != b.over && len(frame) < frameHead+int(frame[0])<<16+int(frame[1])<<8+int(frame[2]) {
			return at // how much of a frame that is not whole is judged is left open
		}
		if at == n && a.over && http2.FrameType(frame[3]) != http2.FrameSettings {
			return at // SETTINGS do not come first, and the frame may be wrong in itself or not be whole: what is found first is left open
		}
		if len(frame) == frameHead+4 && http2.FrameType(frame[3]) == http2.FrameWindowUpdate && binary.BigEndian.Uint32(frame[5:])&maxWindow == 0 {
			credit += uint64(binary.BigEndian.Uint32(frame[frameHead:]) & maxWindow)
		}
		if sent := a.data(); sent == credit && sent == b.data() {
			return at // which stream gets the last of the connection's window is left open
		}
		if why := differs(a, b); why != "" {
			t.Fatalf("after %d bytes, frame %x:\n%s\n%s", at, frame[:min(n, 64)], why, story(all[:at]))
		}
		if a.over {
			return at
		}
	}
	return at
}

// leftOpen reports whether the servers may differ because the RFCs leave it open, or because x/net does not follow
// them.
func leftOpen(frame []byte, ours, oracle *said) bool {
	id := binary.BigEndian.Uint32(frame[5:]) & maxWindow
	if b := oracle.of(id); b.reset && b.code == http2.ErrCodeRefusedStream && !ours.of(id).reset {
		return true // x/net counts streams for a moment that have ended
	}
	if ours.over && ours.code == http2.ErrCodeCompression && !oracle.over && oracle.of(id).reset {
		return true // x/net does not unpack what follows a malformed field; RFC 7541, 5.2 wants it judged
	}
	if oracle.over && oracle.code == http2.ErrCodeProtocol && http2.FrameType(frame[3]) == http2.FrameContinuation {
		return true // x/net ends the connection when a block goes on whose beginning is malformed; this server judges it when it is whole
	}
	if ours.over == oracle.over || !alike(ours.code|oracle.code, http2.ErrCodeProtocol) && oracle.code != http2.ErrCodeCompression {
		return false
	}
	switch {
	case oracle.code == http2.ErrCodeCompression: // x/net unpacks a block as it comes, this server when it is whole
		return opensBlock(frame)
	case ours.over && oracle.of(id).reset: // a frame that is wrong in itself, and of a stream that cannot have it: which is found first
		return true
	case oracle.topReset() >= id: // a stream reset for a malformed request has been opened, and those below it closed; not for x/net
		return true
	}
	return oracle.over && ours.of(id).closed // x/net ends the connection for trailers after its reset; RFC 9113, 5.1 wants them ignored
}

// frameSizeAt returns the length of the frame that begins there, up to the end of the input.
func frameSizeAt(b []byte) int {
	if len(b) < frameHead {
		return len(b)
	}
	return min(len(b), frameHead+int(b[0])<<16+int(b[1])<<8+int(b[2]))
}

// beyondOracle reports whether the servers may differ from this frame on.
func beyondOracle(frame []byte) bool {
	if len(frame) < frameHead {
		return true
	}
	switch http2.FrameType(frame[3]) {
	case http2.FrameGoAway: // x/net takes no new streams of a client that says it; RFC 9113, 6.8 has that of the other side's streams
		return true
	case http2.FrameSettings:
		// x/net ends connections for unsolicited acknowledgements, for repeated settings and for more than 100 of
		// them.
		if frame[4]&1 != 0 || len(frame) > frameHead+6 {
			return true
		}
	case http2.FrameHeaders: // x/net ends the stream alone for padding beyond the frame; RFC 9113, 6.2 wants the connection ended
		return frame[4]&byte(http2.FlagHeadersPadded) != 0 && len(frame) > frameHead && int(frame[frameHead]) > len(frame)-frameHead-1
	case http2.FramePriorityUpdate: // RFC 9218, which this server has no use for
		return true
	}
	return false
}

// story describes frames.
func story(b []byte) string {
	var s strings.Builder
	for len(b) > 0 {
		n := frameSizeAt(b)
		if n >= frameHead {
			fmt.Fprintf(&s, "%v flags %x stream %d: %x\n", http2.FrameType(b[3]), b[4], binary.BigEndian.Uint32(b[5:])&maxWindow, b[frameHead:min(n, frameHead+40)])
		}
		b = b[n:]
	}
	return s.String()
}
