package rls

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/envoy/internal/names"
)

// The inline server and its oracle, grpc-go, get the same bytes over their own sockets and must respond alike.

// rawCall is a call as a sequence of frames.
type rawCall struct {
	headers  [][2]string
	data     [][]byte // one a DATA frame
	padding  uint8    // of each
	trailers bool     // END_STREAM comes on trailers; else on the last DATA frame, or on the headers where there is none
	open     bool     // END_STREAM never comes
}

// good returns an ordinary call.
func good(message []byte) rawCall {
	return rawCall{
		headers: [][2]string{
			{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"},
			{"content-type", "application/grpc"}, {"te", "trailers"}, {"grpc-timeout", "60S"},
		},
		data: [][]byte{framed(message)},
	}
}

// zipped returns a call with grpc-encoding gzip, and with the given bytes as its compressed message.
func zipped(message []byte) rawCall {
	c := good(message).with("grpc-encoding", "gzip")
	c.data[0][0] = 1
	return c
}

// gz returns b in gzip's format.
func gz(b []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(b)
	_ = w.Close()
	return out.Bytes()
}

// framed returns a message with gRPC's prefix.
func framed(message []byte) []byte {
	n := len(message)
	return append([]byte{0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}, message...)
}

// with returns c with a header's value changed in place, because pseudo-headers come first. A new header comes last.
func (c rawCall) with(name, value string) rawCall {
	c.headers = slices.Clone(c.headers)
	i := slices.IndexFunc(c.headers, func(h [2]string) bool { return h[0] == name })
	if i < 0 {
		i, c.headers = len(c.headers), append(c.headers, [2]string{name})
	}
	c.headers[i][1] = value
	return c
}

func (c rawCall) without(name string) rawCall {
	var kept [][2]string
	for _, h := range c.headers {
		if h[0] != name {
			kept = append(kept, h)
		}
	}
	c.headers = kept
	return c
}

// outcome is the result of a call.
type outcome struct {
	HTTP, Type, Status, Message string
	Data                        string // DATA frames, joined
	Ended                       bool
	Reset                       string // code of RST_STREAM before the end
	Away                        bool   // the connection ended, or is about to
	Next                        string // Status of a good call after it
}

func (o *outcome) String() string {
	return fmt.Sprintf("HTTP %s %s, status %s %q, data %q, ended %v, reset %s, away %v, next %s", o.HTTP, o.Type, o.Status, o.Message, o.Data, o.Ended, o.Reset, o.Away, o.Next)
}

// rawConn is the client side of an HTTP/2 connection.
type rawConn struct {
	net.Conn
	framer  *http2.Framer
	packer  *hpack.Encoder
	block   bytes.Buffer
	streams map[uint32]*outcome
	away    bool
}

func rawDial(t testing.TB, addr net.Addr) *rawConn {
	t.Helper()
	conn, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	c := &rawConn{Conn: conn, framer: http2.NewFramer(conn, conn), streams: map[uint32]*outcome{}}
	c.packer = hpack.NewEncoder(&c.block)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, err = io.WriteString(conn, http2.ClientPreface)
	if err := errors.Join(err, c.framer.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return c
}

// fields encodes header fields.
func (c *rawConn) fields(headers [][2]string) []byte {
	c.block.Reset()
	for _, h := range headers {
		_ = c.packer.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return c.block.Bytes()
}

// send writes a call. The server may close the connection meanwhile, which is an outcome.
func (c *rawConn) send(id uint32, call rawCall) {
	c.streams[id] = &outcome{}
	block, ends := c.fields(call.headers), len(call.data) == 0 && !call.trailers && !call.open
	part := block[:min(len(block), 16<<10)]
	_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndStream: ends, EndHeaders: len(part) == len(block)})
	for rest := block[len(part):]; len(rest) > 0; {
		n := min(len(rest), 16<<10)
		_ = c.framer.WriteContinuation(id, n == len(rest), rest[:n])
		rest = rest[n:]
	}
	for i, d := range call.data {
		ends := i == len(call.data)-1 && !call.trailers && !call.open
		var padding []byte // an empty one, unlike none, has a length, which a full frame has no room for
		if call.padding > 0 {
			padding = make([]byte, call.padding)
		}
		_ = c.framer.WriteDataPadded(id, ends, d, padding)
	}
	if call.trailers {
		_ = c.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields([][2]string{{"x-trailer", "v"}}), EndStream: true, EndHeaders: true})
	}
}

// read reads a frame. It returns false if the connection has ended or nothing arrives.
func (c *rawConn) read(wait time.Duration) bool {
	_ = c.SetReadDeadline(time.Now().Add(wait))
	f, err := c.framer.ReadFrame()
	if err != nil {
		c.away = c.away || !errors.Is(err, os.ErrDeadlineExceeded)
		return false
	}
	o := c.streams[f.Header().StreamID]
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = c.framer.WriteSettingsAck()
		}
	case *http2.GoAwayFrame:
		c.away = true
	case *http2.RSTStreamFrame:
		if o != nil && !o.Ended {
			o.Reset, o.Ended = f.ErrCode.String(), true
		}
	case *http2.DataFrame:
		o.Data += string(f.Data())
		o.Ended = f.StreamEnded()
	case *http2.MetaHeadersFrame:
		o.headers(f)
	}
	return true
}

func (o *outcome) headers(f *http2.MetaHeadersFrame) {
	for _, h := range f.Fields {
		switch h.Name {
		case ":status":
			o.HTTP = h.Value
		case "content-type":
			o.Type = h.Value
		case "grpc-status":
			o.Status = h.Value
		case "grpc-message":
			o.Message = h.Value
		}
	}
	o.Ended = f.StreamEnded()
}

// try makes a call on its own connection, and a good one after it. patience is how long it waits for a response.
func try(t testing.TB, addr net.Addr, call rawCall, patience time.Duration) outcome {
	t.Helper()
	c := rawDial(t, addr)
	defer c.Close()
	c.send(1, call)
	c.send(3, good(probe))
	o, next := c.streams[1], c.streams[3]
	for !next.Ended && c.read(30*time.Second) {
	}
	for !o.Ended && c.read(patience) {
	}
	o.Away, o.Next = c.away, next.Status
	return *o
}

var probe = func() []byte {
	b, _ := proto.Marshal(request("d", descriptor("probe", "")))
	return b
}()

const doorRules = `
domain: d
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: minute, rate_limit: {name: m, unit: minute, requests_per_unit: 100}}
  - {key: none, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: probe, rate_limit: {unit: second, requests_per_unit: 10}}`

// twins are two equal services, one behind each gRPC server.
type twins struct {
	rigs  [2]*rig
	addrs [2]net.Addr
}

func newTwins(t testing.TB) *twins {
	w := new(twins)
	for _, kind := range []serverKind{inlineKind, oracleKind} {
		w.rigs[kind] = newRig(t, doorRules, func(_ *Options, sw *Switches) { sw.Headers, sw.DynamicMetadata = true, true })
		w.addrs[kind] = w.rigs[kind].start(t, kind, NewHealthServer()).Addrs[0]
	}
	return w
}

// differ describes how the servers' responses to a call differ where they must not, or returns "". Windows restart
// with every call. A difference counts once both servers have had 30 seconds: grpc-go needs more than one for 16 MiB
// on a busy machine.
func (w *twins) differ(t testing.TB, call rawCall) string {
	t.Helper()
	// The inline server accepts trailers. grpc-go closes the connection, as if they began another call.
	oracle := call
	oracle.trailers = false
	for patience := 20 * time.Millisecond; ; patience = min(50*patience, 30*time.Second) {
		var got [2]outcome
		for kind, c := range map[serverKind]rawCall{inlineKind: call, oracleKind: oracle} {
			w.rigs[kind].lone.advance(time.Hour)
			got[kind] = try(t, w.addrs[kind], c, patience)
			got[kind].normalise()
		}
		lean, grpc := &got[inlineKind], &got[oracleKind]
		switch {
		case *lean == *grpc, call.malformed() && lean.Reset == "PROTOCOL_ERROR" && lean.Next == "0", call.trailing() && lean.failed() && grpc.failed(),
			call.open && !lean.Ended && lean.Next == "0" && grpc.failed(): // a call that has no end yet need not fail yet
			return ""
		case patience == 30*time.Second:
			return fmt.Sprintf("lean    %v\ngrpc-go %v", lean, grpc)
		}
	}
}

// malformed reports whether RFC 9113 (8.2.2, 8.3.1) requires refusing the headers, which grpc-go does only in part.
func (c rawCall) malformed() bool {
	want := map[string]bool{":method": true, ":scheme": true, ":path": true}
	for _, h := range c.headers {
		if h[0] == "te" && h[1] != "trailers" || h[0] == ":path" && h[1] == "" {
			return true
		}
		delete(want, h[0])
	}
	return len(want) > 0
}

// trailing reports whether bytes follow the one message. The servers detect at different times whether they are a
// second message, half of one, or one that is too large.
func (c rawCall) trailing() bool {
	b := bytes.Join(c.data, nil)
	return len(b) > 5 && len(b) > 5+int(binary.BigEndian.Uint32(b[1:]))
}

func (o *outcome) failed() bool {
	return o.Status != "" && o.Status != "0" && o.Data == "" && o.Next == "0"
}

// normalise removes what the servers may do differently.
func (o *outcome) normalise() {
	if len(o.Data) > 5 && o.Data[0] == 1 { // grpc-go compresses responses to calls with grpc-encoding gzip
		z, err := gzip.NewReader(strings.NewReader(o.Data[5:]))
		if err == nil {
			var b []byte
			b, err = io.ReadAll(z)
			o.Data = string(framed(b))
		}
		if err != nil {
			o.Message += err.Error()
		}
	}
	o.Message = strings.ReplaceAll(o.Message, "%C2%A0", " ") // protobuf's errors have a space of one kind or the other
	if kind, _, is := strings.Cut(o.Type, "application/grpc"); is && kind == "" {
		o.Type = "application/grpc" // grpc-go repeats what comes after it in the request
	}
}

// TestServersAgree checks that both servers respond alike to calls of every shape.
func TestServersAgree(t *testing.T) {
	w := newTwins(t)
	one := func(value string) []byte { return encodeRequest(t, request("d", descriptor("k", value))) }
	chopped := func(c rawCall, size int) rawCall {
		b := bytes.Join(c.data, nil)
		c.data = nil
		for len(b) > 0 {
			n := min(size, len(b))
			c.data, b = append(c.data, b[:n]), b[n:]
		}
		return c
	}
	data := func(parts ...[]byte) rawCall {
		c := good(nil)
		c.data = parts
		return c
	}
	noise := make([]byte, 2<<20) // longer when compressed
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	trailers, open := good(one("t")), good(one("o"))
	trailers.trailers, open.open = true, true
	padded := good(one("p"))
	padded.padding = 200
	twice := append(framed(one("a")), framed(one("b"))...)
	for name, call := range map[string]rawCall{
		"good": good(one("v")), "several": good(encodeRequest(t, request("d", descriptor("k", "v"), descriptor("minute", "v"), descriptor("free", "")))),
		"over": good(encodeRequest(t, request("d", descriptor("none", "")))), "unknown domain": good(encodeRequest(t, request("x", descriptor("k", "v")))),
		"no domain": good(encodeRequest(t, request("", descriptor("k", "v")))), "no descriptors": good(encodeRequest(t, request("d"))),
		"not UTF-8":         good(bytes.Replace(one("xx"), []byte("xx"), []byte("\xff\xfe"), 1)),
		"garbage":           good([]byte("\xff\xff\xff")),
		"empty message":     good(nil),
		"byte by byte":      chopped(good(one("v")), 1),
		"two halves":        chopped(good(one("v")), 7),
		"20 KB":             chopped(good(one(strings.Repeat("v", 20000))), 16<<10),
		"200 KB":            chopped(good(one(strings.Repeat("v", 200000))), 16<<10),
		"padded":            padded,
		"trailers":          trailers,
		"no end":            open,
		"no message":        data(),
		"empty DATA":        data([]byte{}),
		"empty DATA after":  data(framed(one("v")), []byte{}),
		"empty DATA before": data([]byte{}, framed(one("v"))),
		"half a prefix":     data([]byte{0, 0}),
		"cut short":         data(framed(one("v"))[:9]),
		"two messages":      data(twice),
		"and a bit":         data(append(framed(one("v")), 0)),
		"compressed":        data(append([]byte{1}, framed(one("v"))[1:]...)),
		"odd flag":          data(append([]byte{2}, framed(one("v"))[1:]...)),
		"too large":         data([]byte{0, 0xff, 0, 0, 0, 1, 2}),
		"length 2^32-1":     data([]byte{0, 0xff, 0xff, 0xff, 0xff, 1, 2}),
		"gzip":              good(one("v")).with("grpc-encoding", "gzip"),
		"no gzip":           zipped(one("v")),
		"compressed gzip":   zipped(gz(one("v"))),
		"gzip of nothing":   zipped(gz(nil)),
		"no bytes of gzip":  zipped(nil),
		"gzip of garbage":   zipped(gz([]byte("\xff\xff\xff"))),
		"gzip in pieces":    chopped(zipped(gz(one("v"))), 3),
		"two gzip members":  zipped(append(gz(one("v")), gz(one("w"))...)),
		"gzip cut short":    zipped(gz(one("v"))[:30]),
		"gzip's head":       zipped(gz(one("v"))[:10]),
		"half of it":        zipped(gz(one("v"))[:5]),
		"gzip and more":     zipped(append(gz(one("v")), 0)),
		"gzip, no checksum": zipped(append(gz(one("v"))[:len(gz(one("v")))-8], make([]byte, 8)...)),
		"a gzip bomb":       chopped(zipped(gz(make([]byte, 17<<20))), 16<<10),
		"16 MiB of gzip":    chopped(zipped(gz(make([]byte, 16<<20))), 16<<10),
		"2 MiB of gzip":     chopped(zipped(gz(one(strings.Repeat("v", 2<<20)))), 16<<10),
		"200 KB of gzip":    zipped(gz(one(strings.Repeat("v", 200000)))),
		"gzip of noise":     chopped(zipped(gz(noise)), 16<<10),
		"gzip, flag 2":      data(append([]byte{2}, framed(gz(one("v")))[1:]...)).with("grpc-encoding", "gzip"),
		"gzip as identity":  zipped(gz(one("v"))).with("grpc-encoding", "identity"),
		"gzip as odd":       zipped(gz(one("v"))).with("grpc-encoding", "odd"),
		"Gzip":              zipped(gz(one("v"))).with("grpc-encoding", "Gzip"),
		"deflate":           zipped(gz(one("v"))).with("grpc-encoding", "deflate"),
		"gzip of health":    zipped(gz([]byte("\x0a\x09ratelimit"))).with(":path", "/grpc.health.v1.Health/Check"),
		"identity":          good(one("v")).with("grpc-encoding", "identity"),
		"an odd encoding":   good(one("v")).with("grpc-encoding", "odd"),
		"+proto":            good(one("v")).with("content-type", "application/grpc+proto"),
		"+json":             good(one("v")).with("content-type", "application/grpc+json"),
		";":                 good(one("v")).with("content-type", "application/grpc;charset=utf-8"),
		"upper case type":   good(one("v")).with("content-type", "Application/gRPC"),
		"grpcx":             good(one("v")).with("content-type", "application/grpcx"),
		"text/html":         good(one("v")).with("content-type", "text/html"),
		"no type":           good(one("v")).without("content-type"),
		"no te":             good(one("v")).without("te"),
		"te: gzip":          good(one("v")).with("te", "gzip"),
		"GET":               good(one("v")).with(":method", "GET"),
		"no deadline":       good(one("v")).without("grpc-timeout"),
		"1n":                good(one("v")).with("grpc-timeout", "100000000u"),
		"hours":             good(one("v")).with("grpc-timeout", "99999999H"),
		"no unit":           good(one("v")).with("grpc-timeout", "60"),
		"odd unit":          good(one("v")).with("grpc-timeout", "60s"),
		"9 digits":          good(one("v")).with("grpc-timeout", "123456789S"),
		"no number":         good(one("v")).with("grpc-timeout", "S"),
		"minus":             good(one("v")).with("grpc-timeout", "-1S"),
		"empty timeout":     good(one("v")).with("grpc-timeout", ""),
		"unknown method":    good(one("v")).with(":path", "/envoy.service.ratelimit.v3.RateLimitService/Other"),
		"unknown service":   good(one("v")).with(":path", "/other.Service/ShouldRateLimit"),
		"no slash":          good(one("v")).with(":path", "other"),
		"one slash":         good(one("v")).with(":path", "/other"),
		"empty path":        good(one("v")).with(":path", ""),
		"no path":           good(one("v")).without(":path"),
		"no scheme":         good(one("v")).without(":scheme"),
		"no authority":      good(one("v")).without(":authority"),
		"no method":         good(one("v")).without(":method"),
		"connection":        good(one("v")).with("connection", "close"),
		"host":              good(one("v")).with("host", "other"),
		"an odd header":     good(one("v")).with("x-odd", "\x80\xff"),
		"a binary header":   good(one("v")).with("x-odd-bin", "AAEC"),
		"no base64":         good(one("v")).with("x-odd-bin", "a"),
		"a long header":     good(one("v")).with("x-long", strings.Repeat("v", 60<<10)),
		"too long a header": good(one("v")).with("x-long", strings.Repeat("v", 140<<10)),
		"a key":             good(one("v")).with(names.KeyHeader, "v"),
		"a try":             good(one("v")).with(attemptTimeoutHeader, "5000"),
		"health":            good(nil).with(":path", "/grpc.health.v1.Health/Check"),
		"health of us":      good([]byte("\x0a\x09ratelimit")).with(":path", "/grpc.health.v1.Health/Check"),
		"health of others":  good([]byte("\x0a\x05other")).with(":path", "/grpc.health.v1.Health/Check"),
		"health garbage":    good([]byte("\xff")).with(":path", "/grpc.health.v1.Health/Check"),
		"health list":       good(nil).with(":path", "/grpc.health.v1.Health/List"),
		"health watch":      good(nil).with(":path", "/grpc.health.v1.Health/Watch"),
	} {
		t.Run(name, func(t *testing.T) {
			if d := w.differ(t, call); d != "" {
				t.Error("\n" + d)
			}
		})
	}
}

// TestServersAgreeOnResponses checks that the inline server's response equals that of generated protobuf code.
func TestServersAgreeOnResponses(t *testing.T) {
	w := newTwins(t)
	for kind, addr := range w.addrs {
		o := try(t, addr, good(encodeRequest(t, request("d", descriptor("minute", "v")))), time.Second)
		var resp pb.RateLimitResponse
		if err := proto.Unmarshal([]byte(o.Data[min(5, len(o.Data)):]), &resp); err != nil || brief(&resp) != "OK OK:99" || o.Data[0] != 0 || o.Status != "0" {
			t.Errorf("server %v: %+v: %v, %v", kind, o, &resp, err)
		}
	}
}
