package e2e

import (
	"bytes"
	"compress/lzw"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

// TestSecurityGossip sends a member compressed bombs, which it would unpack had it no bound, and packets of another key and of
// another label. Memory stays bounded, each is counted, and no member is lost.
func TestSecurityGossip(t *testing.T) {
	var packed bytes.Buffer
	w := lzw.NewWriter(&packed, lzw.LSB, 8)
	for range 60 {
		_, _ = w.Write(make([]byte, 1<<20))
	}
	w.Close()
	bomb := append([]byte{9, 0x82, 0xa4}, "Algo\x00\xa3Buf\xdb"...) // memberlist's compressed message, of 60 MiB
	bomb = append(binary.BigEndian.AppendUint32(bomb, uint32(packed.Len())), packed.Bytes()...)
	labelled := func(label string, b []byte) []byte {
		return append(append([]byte{244, byte(len(label))}, label...), b...)
	}
	for name, tt := range map[string]struct {
		insecure bool
		reason   string
		packet   []byte
	}{
		"bombs in the clear":      {true, "compressed", labelled("lab", bomb)},
		"bombs without the key":   {false, "key", labelled("lab", bomb)},
		"another key":             {false, "key", labelled("lab", append([]byte{10, 1}, make([]byte, 100)...))},
		"another label":           {false, "label", labelled("other", append([]byte{10, 1}, make([]byte, 100)...))},
		"another label, no label": {false, "label", []byte("\x0a\x01no label")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}, Expect: 2, Insecure: tt.insecure})
			start(t, l, names(2)...)
			s := l.Sidecars[0]
			most := 0
			rises(t, s.Metrics, name, "keyward_refused_total", refusedBy("gossip", tt.reason), func() {
				for range 20 {
					knock(t, s.Gossip, tt.packet)
					if rss, err := s.RSS(); err == nil {
						most = max(most, int(rss>>20))
					}
				}
			})
			t.Logf("%d MiB at most", most)
			if most > 200 {
				t.Errorf("%d MiB", most)
			}
			awaitRing(t, l, names(2)...)
			if n := sum(t, l, "keyward_cluster_deaths_total"); n != 0 {
				t.Errorf("%v members lost", n)
			}
		})
	}
}

// TestSecurityGossipSilence holds 1,000 silent connections to each gossip port open, without a key, and opens each again when
// it is closed. Two members meet all the same, and both keep to their share until they have.
func TestSecurityGossipSilence(t *testing.T) {
	const strangers = 1000
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}, Expect: 2})
	for i, name := range names(2) {
		if _, err := l.AddSidecar(name); err != nil {
			t.Fatal(err)
		}
		besiege(t, strangers, l.Sidecars[i].Gossip)
	}
	began := time.Now()
	awaitRing(t, l, names(2)...)
	took := time.Since(began)
	t.Logf("met %v after the last connection", took)
	if took > 5*time.Second {
		t.Errorf("two members met after %v, want 5 s at most", took)
	}
	for _, s := range l.Sidecars {
		rises(t, s.Metrics, "silence", "keyward_refused_total", refusedBy("gossip", "silent"), func() {})
	}
}

// besiege holds n silent connections to an address open until the test ends, and opens each again when it is closed.
func besiege(t *testing.T, n int, to string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all, opened sync.WaitGroup
	opened.Add(n)
	for range n {
		all.Go(func() {
			first := sync.OnceFunc(opened.Done)
			defer first()
			for ctx.Err() == nil {
				var d net.Dialer
				c, err := d.DialContext(ctx, "tcp", to)
				if err != nil { // it may not listen yet
					time.Sleep(10 * time.Millisecond)
					continue
				}
				first()
				stop := context.AfterFunc(ctx, func() { _ = c.Close() })
				_, _ = io.Copy(io.Discard, c)
				stop()
				_ = c.Close()
			}
		})
	}
	opened.Wait()
	t.Cleanup(func() {
		cancel()
		all.Wait()
	})
}

// knock sends a packet as a datagram and as a stream.
func knock(t *testing.T, to string, packet []byte) {
	t.Helper()
	u, err := net.Dial("udp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	_, _ = u.Write(packet)
	c, err := net.Dial("tcp", to)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, _ = c.Write(packet)
	_ = c.(*net.TCPConn).CloseWrite()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.Copy(io.Discard, c)
}

// impostor speaks the peer protocol, as internal/peer/PROTOCOL.md has it, with a member's certificate.
type impostor struct {
	t    *testing.T
	tls  *tls.Config
	conn net.Conn
}

// shakeHands greets as boot inst of member from; ok reports whether it was accepted.
func (i *impostor) shakeHands(addr, from, to string, inst, toInst uint64) (ok bool) {
	i.t.Helper()
	c, err := tls.Dial("tcp", addr, i.tls)
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { c.Close() })
	i.conn = c
	le := binary.LittleEndian
	b := []byte{1, 0, 2, 0, 1, 0, 0, 0} // versions 1 to 2, key scheme 1
	label := sha256.Sum256([]byte("keyward peer label\x00lab"))
	b = append(b, label[:16]...)
	b = le.AppendUint64(le.AppendUint64(le.AppendUint64(b, 1), inst), toInst)
	b = append(append(b, byte(len(from))), from...)
	b = append(append(b, byte(len(to))), to...)
	_, _ = c.Write(append([]byte("KEYWARDP"), frame(16, b)...))
	answer := make([]byte, 14)
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, err = io.ReadFull(c, answer)
	_ = c.SetDeadline(time.Time{})
	return err == nil && answer[13] == 0
}

func frame(typ byte, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(payload)+1))
	return append(append(b, typ), payload...)
}

// slot is one writer's part of a counter.
type slot struct {
	writer        uint64
	at            int64
	charged, back uint64
}

// replica is a message that brings copies of one counter of hourRules.
func replica(key uint64, slots ...slot) []byte {
	le, now := binary.LittleEndian, time.Now().UnixNano()
	b := le.AppendUint16(nil, 57)
	b = append(b, 0, 0, 1, 0, 0, 0, 0, 0)         // flags, status, one counter, part
	b = le.AppendUint64(le.AppendUint64(b, 0), 1) // ring, seq
	b = append(b, make([]byte, 16)...)            // base, sent
	b = le.AppendUint64(b, uint64(now))           //
	b = append(b, make([]byte, 9)...)             // quiet, no member
	b = le.AppendUint16(b, uint16(len(slots)))    // writers
	for _, s := range slots {
		b = le.AppendUint64(b, s.writer)
	}
	var c []byte
	for _, v := range []uint64{key, key, 1, 1, uint64(time.Hour)} {
		c = le.AppendUint64(c, v)
	}
	c = le.AppendUint32(le.AppendUint32(c, 5), 0)
	c = le.AppendUint64(c, uint64(now+int64(time.Hour)))
	c = le.AppendUint64(c, 0)
	c = append(le.AppendUint16(c, uint16(len(slots))), 0, 0)
	last := int64(0)
	for i, s := range slots {
		c = binary.AppendVarint(binary.AppendUvarint(c, uint64(i)), s.at-last)
		c = binary.AppendUvarint(binary.AppendUvarint(c, s.charged), s.back)
		last = s.at
	}
	return frame(37, append(le.AppendUint32(b, uint32(len(c))), c...))
}

// TestSecurityPoison has a client with a member's certificate send messages to a member: as a member that does not exist, as an earlier boot
// of one, and of windows to come. Each is refused and counted; a huge count of a key without requests harms no other. Where
// names are bound to certificates, it is not even welcome.
func TestSecurityPoison(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}, Expect: 2, Args: []string{"--decision-timeout", "1s"}})
	start(t, l, names(2)...)
	s := l.Sidecars[0]
	client := dial(t, s.RLS, nil)
	for range 2 {
		ask(t, client, request("app", 1, "k", "honest"))
	}
	inst := instances(t, s)
	hour := time.Now().UnixNano() / int64(time.Hour)
	greet := func(from string, inst, toInst uint64) net.Conn {
		c := &impostor{t: t, tls: credentialsOf(t, l, certDir(l), "sidecar", "keyward-peer")}
		if !c.shakeHands(s.Peer, from, "pod-a", inst, toInst) {
			t.Fatalf("%s was not welcome", from)
		}
		return c.conn
	}
	slots, messages := "keyward_slots_refused_total", "keyward_peer_messages_refused_total"
	for _, tt := range []struct {
		what, from string
		inst       uint64
		metric     string
		labels     []string
		message    []byte
	}{
		{"a foreign member", "stranger", 7, messages, []string{"reason", "unknown_member"}, replica(1, slot{7, hour, 1, 0})},
		{"an earlier boot", "pod-b", inst["pod-b"] + 2, messages, []string{"reason", "instance"}, replica(1, slot{7, hour, 1, 0})},
		{"a future window", "pod-b", inst["pod-b"], slots, nil, replica(2, slot{inst["pod-b"], hour + 1000, 1, 0})},
		{"no layout", "pod-b", inst["pod-b"], messages, []string{"reason", "malformed"}, frame(37, []byte{1, 2, 3})},
	} {
		conn := greet(tt.from, tt.inst, inst["pod-a"])
		rises(t, s.Metrics, tt.what, tt.metric, tt.labels, func() { _, _ = conn.Write(tt.message) })
	}
	before := value(metrics(t, s.Metrics), slots)
	_, _ = greet("pod-b", inst["pod-b"], inst["pod-a"]).Write(append(replica(3, slot{inst["pod-b"], hour - 1000, 1, 0}), replica(4, slot{inst["pod-b"], hour, 1<<64 - 1, 0})...))
	if res := ask(t, client, peek("app", "k", "honest")); res.Statuses[0].LimitRemaining != 3 {
		t.Errorf("the honest counter has %d left, not 3", res.Statuses[0].LimitRemaining)
	}
	if res := ask(t, client, request("app", 1, "k", "another")); res.OverallCode != rlsv3.RateLimitResponse_OK {
		t.Errorf("another key: %v", res.OverallCode)
	}
	if n := value(metrics(t, s.Metrics), slots) - before; n != 0 {
		t.Errorf("%v slots refused of a window that is over: members send those, too", n)
	}
}

// TestSecurityBoundNames gives each member a certificate with its own name and has one speak in the name of the other.
func TestSecurityBoundNames(t *testing.T) {
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": hourRules}, Expect: 2, Args: []string{
		"--tls-bind-name", "{node}.keyward.test", "--tls-peer-names", certs.DemoSAN("sidecar"), "--decision-timeout", "1s",
	}})
	dir := map[string]string{}
	for _, name := range names(2) {
		dir[name] = ownCertificate(t, l, name+".keyward.test")
		f := certs.DemoFiles(dir[name], "sidecar")
		if _, err := l.AddSidecar(name, "--tls-cert", f.Cert, "--tls-key", f.Key); err != nil {
			t.Fatal(err)
		}
	}
	awaitRing(t, l, names(2)...)
	a := l.Sidecars[0]
	client := dial(t, a.RLS, nil)
	for i := range 40 { // about half of them the other's
		ask(t, client, request("app", 1, "k", strconv.Itoa(i)))
	}
	if n := value(metrics(t, a.Metrics), "keyward_peer_questions_total", "result", "ok"); n == 0 {
		t.Error("the members do not talk")
	}
	inst := instances(t, a)
	for from, want := range map[string]bool{"pod-b": true, "pod-c": false} {
		before := value(metrics(t, a.Metrics), "keyward_peer_inbound_refused_total", "reason", "name")
		c := &impostor{t: t, tls: credentialsOf(t, l, dir["pod-b"], "sidecar", "keyward-peer")}
		if ok := c.shakeHands(a.Peer, from, "pod-a", inst["pod-b"], inst["pod-a"]); ok != want {
			t.Errorf("pod-b's certificate as %s: welcome %v", from, ok)
		}
		if n := value(metrics(t, a.Metrics), "keyward_peer_inbound_refused_total", "reason", "name") - before; (n == 0) != want {
			t.Errorf("pod-b's certificate as %s: %v counted", from, n)
		}
	}
}

// instances are the boots of the members.
func instances(t *testing.T, s *lab.Sidecar) map[string]uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	body, err := lab.Get(ctx, "http://"+s.Metrics+"/cluster")
	if err != nil {
		t.Fatal(err)
	}
	var page struct{ Members []struct{ ID, Inst string } }
	if err := json.Unmarshal(body, &page); err != nil {
		t.Fatal(err)
	}
	inst := map[string]uint64{}
	for _, m := range page.Members {
		if inst[m.ID], err = strconv.ParseUint(m.Inst, 16, 64); err != nil {
			t.Fatal(fmt.Errorf("%s: %w", m.ID, err))
		}
	}
	return inst
}
