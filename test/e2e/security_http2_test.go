package e2e

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/keyward/keyward/internal/lab"
)

// TestSecurityHTTP2Lean abuses HTTP/2 on the port of Envoys while an honest client asks on. Each abuse is refused and counted,
// memory stays bounded, and the honest client is answered every time.
func TestSecurityHTTP2Lean(t *testing.T) {
	abuseHTTP2(t, "rls", mostResident, []abuse{
		{"header bombs", "frame_size_error", headerBombs},
		{"a flood of continuations", "enhance_your_calm", continuations},
		{"rapid resets", "enhance_your_calm", rapidResets},
		{"pings", "enhance_your_calm", pings},
		{"messages that do not end", "unfinished", endlessMessages},
		{"gzip bombs", "question_resourceexhausted", gzipBombs},
		{"half a preface", "preface", halfPrefaces},
		{"10,000 idle connections", "crowded_out", idleConnections},
	})
}

// TestSecurityHTTP2GRPC does the same on the port of xDS, which grpc-go serves.
func TestSecurityHTTP2GRPC(t *testing.T) {
	abuseHTTP2(t, "xds", 300<<20, []abuse{
		{"header bombs", "frame_size_error", headerBombs},
		{"a flood of continuations", "cut", continuations},
		{"pings", "enhance_your_calm", pings},
		{"half a preface", "preface", halfPrefaces},
		{"10,000 idle connections", "crowded_out", idleConnections},
	})
}

// abuse is an attack on a port, and the reason for which it is refused.
type abuse struct {
	name, reason string
	do           func(t *testing.T, addr string)
}

func abuseHTTP2(t *testing.T, surface string, mostMemory uint64, attacks []abuse) {
	l := newLab(t, lab.Options{
		Rules:  map[string]string{"app.yaml": "domain: app\ndescriptors:\n  - key: k\n    rate_limit: {unit: hour, requests_per_unit: 1000000}\n"},
		Expect: 1, Insecure: true, // mTLS would keep the attacks from the port of xDS
	})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	addr := map[string]string{"rls": s.RLS, "xds": s.XDS}[surface]
	for _, attack := range attacks {
		t.Run(attack.name, func(t *testing.T) {
			client := honest(t, s)
			rises(t, s.Metrics, attack.name, "keyward_refused_total", refusedBy(surface, attack.reason), func() { attack.do(t, addr) })
			client.finish(t, mostMemory)
		})
	}
}

// asker is an honest client that asks without a pause, and looks at the member's memory.
type asker struct {
	stop context.CancelFunc
	done sync.WaitGroup
	took []time.Duration
	errs []error
	rss  uint64

	member *lab.Sidecar
}

func (a *asker) look() {
	if rss, err := a.member.RSS(); err == nil {
		a.rss = max(a.rss, uint64(rss))
	}
}

func honest(t *testing.T, s *lab.Sidecar) *asker {
	client := dial(t, s.RLS, nil)
	ask(t, client, request("app", 1, "k", "honest"))
	ctx, stop := context.WithCancel(t.Context())
	a := &asker{stop: stop, member: s}
	a.done.Go(func() {
		for ctx.Err() == nil {
			begin := time.Now()
			call, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			res, err := client.ShouldRateLimit(call, request("app", 1, "k", "honest"))
			cancel()
			if err == nil && res.OverallCode != rlsv3.RateLimitResponse_OK {
				err = errors.New(res.OverallCode.String())
			}
			if err != nil {
				a.errs = append(a.errs, err)
			}
			a.took = append(a.took, time.Since(begin))
			if len(a.took)%100 == 0 {
				a.look()
			}
		}
	})
	return a
}

func (a *asker) finish(t *testing.T, mostMemory uint64) {
	t.Helper()
	a.stop()
	a.done.Wait()
	a.look()
	slices.Sort(a.took)
	t.Logf("an honest client asked %d times meanwhile: p50 %v, p99 %v; %d MiB at most", len(a.took), a.took[len(a.took)/2], a.took[len(a.took)*99/100], a.rss>>20)
	if len(a.errs) > 0 {
		t.Errorf("%d of %d honest requests failed: %v", len(a.errs), len(a.took), a.errs[0])
	}
	if a.rss > mostMemory {
		t.Errorf("%d MiB", a.rss>>20)
	}
}

// http2Conn opens HTTP/2 by hand.
func http2Conn(t *testing.T, addr string) (net.Conn, *http2.Framer) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	go func() { _, _ = io.Copy(io.Discard, c) }()
	f := http2.NewFramer(c, nil)
	_, err = io.WriteString(c, http2.ClientPreface)
	if err := errors.Join(err, f.WriteSettings()); err != nil {
		t.Fatal(err)
	}
	return c, f
}

// callHeaders are the headers of a request. They use no dynamic table.
func callHeaders() *bytes.Buffer {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	e.SetMaxDynamicTableSize(0)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"},
		{":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
	}
	return &b
}

// headerBombs sends blocks of 16 KiB that unpack to 60 MiB: one header of 4000 bytes, named again by a byte each time.
func headerBombs(t *testing.T, addr string) {
	for range 20 {
		headerBomb(t, addr, 15<<10)
	}
}

// headerBomb sends 100 header blocks of so many bytes, each of which repeats a field of 4,000 bytes.
func headerBomb(t *testing.T, addr string, size int) {
	_, f := http2Conn(t, addr)
	var first bytes.Buffer
	e := hpack.NewEncoder(&first)
	_ = e.WriteField(hpack.HeaderField{Name: "x-bomb", Value: strings.Repeat("v", 4000)})
	again := bytes.Repeat([]byte{0x80 | 62}, size) // the newest entry of the dynamic table
	for i := range 100 {
		block := bytes.Clone(again)
		if i == 0 {
			block = append(first.Bytes(), again[:size*2/3]...)
		}
		if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true}); err != nil {
			return // cut off
		}
	}
}

func continuations(t *testing.T, addr string) {
	_, f := http2Conn(t, addr)
	part := bytes.Repeat([]byte("\x00\x01a\x01b"), 3000)
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: callHeaders().Bytes()})
	for i := 0; err == nil; i++ {
		if i == 100_000 {
			t.Fatal("1.5 GB of headers, and it still listens")
		}
		err = f.WriteContinuation(1, false, part)
	}
}

func rapidResets(t *testing.T, addr string) {
	_, f := http2Conn(t, addr)
	headers := callHeaders().Bytes()
	for i := range 50_000 {
		id := uint32(2*i + 1)
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true})
		if err := errors.Join(err, f.WriteRSTStream(id, http2.ErrCodeCancel)); err != nil {
			return
		}
	}
}

// endlessMessages begins messages of 16 MiB, in as many calls as a connection may have, and ends none: 400 MB.
func endlessMessages(t *testing.T, addr string) {
	headers, part := callHeaders().Bytes(), append([]byte{0, 1, 0, 0, 0}, make([]byte, 16<<10-5)...)
	for range 20 {
		_, f := http2Conn(t, addr)
		var err error
		for i := 0; i < 1250 && err == nil; i++ {
			id := uint32(2*i + 1)
			err = errors.Join(f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers, EndHeaders: true}), f.WriteData(id, false, part))
		}
	}
}

// gzipBombs sends calls of 17 KB whose messages decompress to 17 MiB, 160 of them.
func gzipBombs(t *testing.T, addr string) {
	var message bytes.Buffer
	z := gzip.NewWriter(&message)
	_, _ = z.Write(make([]byte, 17<<20))
	_ = z.Close()
	headers := callHeaders()
	e := hpack.NewEncoder(headers)
	e.SetMaxDynamicTableSize(0)
	_ = e.WriteField(hpack.HeaderField{Name: "grpc-encoding", Value: "gzip"})
	call := append(binary.BigEndian.AppendUint32([]byte{1}, uint32(message.Len())), message.Bytes()...)
	for range 8 {
		_, f := http2Conn(t, addr)
		var err error
		for i := 0; i < 20 && err == nil; i++ {
			id := uint32(2*i + 1)
			err = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: headers.Bytes(), EndHeaders: true})
			for rest := call; len(rest) > 0 && err == nil; rest = rest[min(len(rest), 16<<10):] {
				err = f.WriteData(id, len(rest) <= 16<<10, rest[:min(len(rest), 16<<10)])
			}
		}
	}
}

func pings(t *testing.T, addr string) {
	for range 8 {
		_, f := http2Conn(t, addr)
		for i := range 100_000 {
			if err := f.WritePing(false, [8]byte{byte(i)}); err != nil {
				break // cut off
			}
		}
	}
}

func halfPrefaces(t *testing.T, addr string) {
	for range 500 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, http2.ClientPreface[:10])
	}
	c, err := net.Dial("tcp", addr) // one slower than the others
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(fmt.Sprint(err), "reset") {
		t.Errorf("a silent connection: %v", err)
	}
}

func idleConnections(t *testing.T, addr string) {
	for range 10_000 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	}
}
