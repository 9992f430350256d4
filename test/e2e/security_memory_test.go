package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/keyward/keyward/internal/lab"
)

// mostResident is the resident memory that a sidecar may reach in each of the attacks below, in bytes.
const mostResident = 96 << 20

const memoryRules = `domain: app
descriptors:
  - {key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}
  - {key: page, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1000000}}
`

// attacked starts one sidecar, runs the attack and reports the most memory that the sidecar had until the attack ended.
func attacked(t *testing.T, most uint64, do func(t *testing.T, s *lab.Sidecar)) {
	t.Helper()
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": memoryRules}, Expect: 1})
	start(t, l, "pod-a")
	s := l.Sidecars[0]
	a := &asker{member: s}
	a.look()
	before := a.rss
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			a.look()
			time.Sleep(5 * time.Millisecond)
		}
	})
	began := time.Now()
	do(t, s)
	stop()
	watching.Wait()
	t.Logf("%d MiB resident before, %d MiB at most; %v", before>>20, a.rss>>20, time.Since(began).Round(time.Millisecond))
	if a.rss > most {
		t.Errorf("%d MiB resident, at most %d are allowed", a.rss>>20, most>>20)
	}
}

// TestSecurityMemoryHeaders opens as many calls as one connection may have, each with a long key and without an end.
func TestSecurityMemoryHeaders(t *testing.T) {
	attacked(t, mostResident, func(t *testing.T, s *lab.Sidecar) {
		rises(t, s.Metrics, "calls with long keys", "keyward_refused_total", refusedBy("rls", "unfinished"), func() { longKeys(t, s.RLS) })
	})
}

// longKeys opens 4,090 calls with a key of 126,000 bytes each on one connection and keeps them open for a moment.
func longKeys(t *testing.T, addr string) {
	c, f := http2Conn(t, addr)
	defer c.Close()
	block := callHeaders()
	e := hpack.NewEncoder(block)
	e.SetMaxDynamicTableSize(0)
	_ = e.WriteField(hpack.HeaderField{Name: "x-keyward-key", Value: strings.Repeat("0", 126_000)})
	for i := range 4090 {
		if err := writeBlock(f, uint32(2*i+1), block.Bytes()); err != nil {
			return // cut off
		}
	}
	time.Sleep(2 * time.Second)
}

// writeBlock writes a header block in as many frames as it takes.
func writeBlock(f *http2.Framer, id uint32, block []byte) error {
	const most = 16 << 10
	part := block[:min(len(block), most)]
	err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: part, EndHeaders: len(part) == len(block)})
	for rest := block[len(part):]; len(rest) > 0 && err == nil; rest = rest[min(len(rest), most):] {
		err = f.WriteContinuation(id, len(rest) <= most, rest[:min(len(rest), most)])
	}
	return err
}

// TestSecurityMemoryHalfOpen opens 1,000 connections and sends on each a header block without an end, or half a frame.
func TestSecurityMemoryHalfOpen(t *testing.T) {
	block := append(callHeaders().Bytes(), bytes.Repeat([]byte("\x00\x01a\x01b"), 3000)...)
	headers := frameBytes(func(f *http2.Framer) error {
		err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10-100]})
		for range 6 {
			err = errors.Join(err, f.WriteContinuation(1, false, bytes.Repeat([]byte("\x00\x01a\x01b"), 3000)))
		}
		return err
	})
	half := frameBytes(func(f *http2.Framer) error {
		return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16<<10-100], EndHeaders: true})
	})
	for name, say := range map[string][]byte{
		"headers without an end": headers,
		"half a frame":           half[:len(half)-50],
		"half a frame, small":    half[:20],
	} {
		t.Run(name, func(t *testing.T) {
			attacked(t, mostResident, func(t *testing.T, s *lab.Sidecar) {
				before := value(metrics(t, s.Metrics), "keyward_refused_total", refusedBy("rls", "stalled")...) + value(metrics(t, s.Metrics), "keyward_refused_total", refusedBy("rls", "unfinished")...)
				open := halfOpen(t, s.RLS, say)
				if open > 0 {
					t.Errorf("%d of 1000 connections are open after 8 seconds", open)
				}
				after := value(metrics(t, s.Metrics), "keyward_refused_total", refusedBy("rls", "stalled")...) + value(metrics(t, s.Metrics), "keyward_refused_total", refusedBy("rls", "unfinished")...)
				if after-before < 1000 {
					t.Errorf("%v of 1000 connections are counted", after-before)
				}
			})
		})
	}
}

// frameBytes returns what write writes.
func frameBytes(write func(*http2.Framer) error) []byte {
	var b bytes.Buffer
	if err := write(http2.NewFramer(&b, nil)); err != nil {
		panic(err) // a Buffer takes all
	}
	return b.Bytes()
}

// halfOpen sends that on 1,000 connections and returns how many of them are open 8 seconds later.
func halfOpen(t *testing.T, addr string, say []byte) (open int) {
	var conns []net.Conn
	for range 1000 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x00\x04\x00\x00\x00\x00\x00"+string(say)) // an error: it is cut off already
		conns = append(conns, c)
	}
	end := time.Now().Add(8 * time.Second)
	for _, c := range conns {
		_ = c.SetReadDeadline(end)
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			open++
		}
	}
	return open
}

// TestSecurityMemoryPages has 250 readers ask for a large page of metrics and not read it, and others that ask for counters
// without a pause.
func TestSecurityMemoryPages(t *testing.T) {
	attacked(t, mostResident+8<<20, func(t *testing.T, s *lab.Sidecar) { // 92 MiB on a quiet machine, of which 10,000 series and a scrape take 41
		client := dial(t, s.RLS, nil)
		for first := 0; first < 10_000; first += 250 {
			r := request("app", 1)
			for i := range 250 {
				r.Descriptors = append(r.Descriptors, request("app", 1, "page", fmt.Sprint("a-value-of-some-length-", first+i)).Descriptors...)
			}
			ask(t, client, r)
		}
		base := &asker{member: s}
		base.look()
		page, err := lab.Get(t.Context(), "http://"+s.Metrics+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d MiB resident with 10,000 series, a page of %d KiB", base.rss>>20, len(page)>>10)
		rises(t, s.Metrics, "pages", "keyward_refused_total", refusedBy("metrics", "busy"), func() { silentReaders(t, s.Metrics) })
		rises(t, s.Metrics, "counters", "keyward_refused_total", refusedBy("metrics", "busy"), func() { counterFlood(t, s.Metrics) })
	})
}

func silentReaders(t *testing.T, addr string) {
	// Small segments keep the kernel from taking a whole page into its send buffer, which loopback's large ones let it do.
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536)
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
		})
	}}
	for range 250 {
		c, err := small.DialContext(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_, _ = io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	time.Sleep(5 * time.Second)
}

// counterFlood asks for one counter 500 times.
func counterFlood(t *testing.T, addr string) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() { _, _ = io.Copy(io.Discard, c) }()
	for range 500 {
		_, _ = io.WriteString(c, "GET /v1/counters?domain=app&key=k=v HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	time.Sleep(500 * time.Millisecond)
}
