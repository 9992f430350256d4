package h2

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// talk is a hand-written HTTP/2 client.
type talk struct {
	t    *testing.T
	conn net.Conn
	*http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer
	dec   *hpack.Decoder
}

// fields is a header list; "" has the fields of a good call.
type fields [][2]string

var good = fields{{":method", "POST"}, {":scheme", "http"}, {":path", echo}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"}}

// with returns a good list with more fields at its end.
func with(more ...[2]string) fields { return append(append(fields{}, good...), more...) }

// without returns a good list without one field.
func without(name string, more ...[2]string) (list fields) {
	for _, f := range good {
		if f[0] != name {
			list = append(list, f)
		}
	}
	return append(list, more...)
}

func (k *talk) pack(list fields) []byte {
	k.block.Reset()
	for _, f := range list {
		_ = k.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return bytes.Clone(k.block.Bytes())
}

// open sends the headers of a call.
func (k *talk) open(id uint32, ends bool, list fields) {
	_ = k.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: k.pack(list), EndHeaders: true, EndStream: ends})
}

func (k *talk) message(id uint32, ends bool, s string) {
	_ = k.WriteData(id, ends, append([]byte{0, 0, 0, 0, byte(len(s))}, s...))
}

// call makes a call.
func (k *talk) call(id uint32) {
	k.open(id, false, good)
	k.message(id, true, "hi")
}

// raw sends a frame unchanged.
func (k *talk) raw(t http2.FrameType, flags http2.Flags, id uint32, p []byte) {
	_ = k.WriteRawFrame(t, flags, id, p)
}

// hear describes the next frames. It skips SETTINGS without an acknowledgement, WINDOW_UPDATE, and unsolicited
// acknowledgements of PING.
func (k *talk) hear() string {
	for {
		_ = k.conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		f, err := k.ReadFrame()
		if err != nil {
			return "end"
		}
		switch f := f.(type) {
		case *http2.SettingsFrame, *http2.WindowUpdateFrame:
		case *http2.PingFrame:
			return fmt.Sprintf("PING ack=%v %s", f.IsAck(), bytes.TrimRight(f.Data[:], "\x00"))
		case *http2.RSTStreamFrame:
			return fmt.Sprintf("RST %d %s", f.StreamID, f.ErrCode)
		case *http2.GoAwayFrame:
			return fmt.Sprintf("GOAWAY %s", f.ErrCode)
		case *http2.DataFrame:
			return fmt.Sprintf("DATA %d %q", f.StreamID, f.Data())
		case *http2.HeadersFrame:
			list, err := k.dec.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				return err.Error()
			}
			s := fmt.Sprintf("HEADERS %d", f.StreamID)
			if f.HeaderBlockFragment()[0] == 0x20 {
				s += " table=0"
			}
			for _, h := range list {
				if h.Name != "content-type" || h.Value != "application/grpc" {
					s += " " + strings.TrimPrefix(strings.TrimPrefix(h.Name, "grpc-"), ":") + "=" + h.Value
				}
			}
			if f.StreamEnded() {
				s += " END"
			}
			return s
		default:
			return fmt.Sprint(f)
		}
	}
}

// answered returns the frames that answer a valid call.
func answered(id uint32) []string {
	return []string{fmt.Sprintf("HEADERS %d status=200", id), fmt.Sprintf("DATA %d %q", id, "\x00\x00\x00\x00\x02hi"), fmt.Sprintf("HEADERS %d status=0 END", id)}
}

// failed returns the frames that answer a call that fails at once.
func failed(id uint32, http, status int, message string) string {
	return fmt.Sprintf("HEADERS %d status=%d status=%d message=%s END", id, http, status, message)
}

func rst(id uint32, code http2.ErrCode) []string { return []string{fmt.Sprintf("RST %d %s", id, code)} }

func goAway(code http2.ErrCode) []string { return []string{"GOAWAY " + code.String(), "end"} }

// row is one rule. The input is followed by a PING unless the connection ends, so that silence can be observed.
type row struct {
	rule string // where the RFC has it, and what it says
	do   func(*talk)
	want []string
}

// silent means that the server sends nothing.
var silent []string

func join(lists ...[]string) (all []string) {
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// TestConformance checks the rules of RFC 9113 and RFC 7541 for servers over TCP, a unix socket and TLS.
func TestConformance(t *testing.T) {
	cert, pool := selfSigned(t)
	for _, way := range []string{"tcp", "unix", "tls"} {
		t.Run(way, func(t *testing.T) {
			network, o := way, Options{Limits: Limits{Streams: 10, ControlFrames: 200}}
			if way == "tls" {
				network, o.TLS = "tcp", &tls.Config{Certificates: []tls.Certificate{cert}}
			}
			_, l, _ := start(t, network, o)
			for _, r := range rows() {
				conn, err := net.Dial(network, l.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				if way == "tls" {
					conn = tls.Client(conn, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1", NextProtos: []string{"h2"}})
				}
				r.run(t, conn)
				conn.Close()
			}
		})
	}
}

func (r row) run(t *testing.T, conn net.Conn) {
	k := &talk{t: t, conn: conn, Framer: hello(t, conn), dec: hpack.NewDecoder(4096, func(hpack.HeaderField) {})}
	k.enc = hpack.NewEncoder(&k.block)
	k.AllowIllegalReads = true
	r.do(k)
	want := r.want
	if len(want) == 0 || want[len(want)-1] != "end" {
		_ = k.WritePing(false, [8]byte{'e', 'n', 'd'})
		want = append(append([]string{}, want...), "PING ack=true end")
	}
	for i, w := range want {
		if got := k.hear(); got != w {
			t.Errorf("%s:\nat %d got  %s\n     not  %s", r.rule, i, got, w)
			return
		}
	}
}

func TestPreface(t *testing.T) {
	_, l, r := start(t, "tcp", Options{Limits: Limits{HandshakeTimeout: 200 * time.Millisecond}})
	for _, tt := range []struct{ name, text, want, reason string }{
		{"3.4: not HTTP/2", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "end", NotHTTP2},
		{"3.4: half a preface", "PRI * HTTP/2", "end", NotHTTP2},
		{"3.4: no settings", http2.ClientPreface, "end", Cut},
		{"3.4: another frame first", http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "GOAWAY PROTOCOL_ERROR", "protocol_error"},
		{"3.4: an acknowledgement first", http2.ClientPreface + "\x00\x00\x00\x04\x01\x00\x00\x00\x00", "GOAWAY PROTOCOL_ERROR", "protocol_error"},
	} {
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		before := r.of(tt.reason)
		_, _ = io.WriteString(conn, tt.text)
		k := &talk{t: t, conn: conn, Framer: http2.NewFramer(conn, conn)}
		if got := k.hear(); got != tt.want {
			t.Errorf("%s: %s", tt.name, got)
		}
		eventually(t, tt.name+" is counted as "+tt.reason, func() bool { return r.of(tt.reason) > before })
		conn.Close()
	}
	probe, err := net.Dial("tcp", l.Addr().String())
	if err := errors.Join(err, probe.Close()); err != nil {
		t.Fatal(err)
	}
	if n := r.of(NotHTTP2); n != 2 {
		t.Errorf("%d counted: a probe is none", n)
	}
}
