package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/keyward/keyward/internal/certs"
	"github.com/keyward/keyward/internal/lab"
)

// secret is a folder that is replaced as Kubernetes replaces a mounted Secret: all of its files at once, by one rename.
type secret struct {
	dir     string
	version int
}

// newSecret makes a Secret of the files that lie in dir.
func newSecret(t *testing.T, dir string) *secret {
	t.Helper()
	s, files := &secret{dir: dir}, map[string][]byte{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files[e.Name()] = readFile(t, filepath.Join(dir, e.Name()))
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	s.replace(t, files)
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// replace changes some of the files.
func (s *secret) replace(t *testing.T, files map[string][]byte) {
	t.Helper()
	s.version++
	name := fmt.Sprintf("..v%d", s.version)
	all := map[string][]byte{}
	if s.version > 1 {
		entries, err := os.ReadDir(filepath.Join(s.dir, "..data"))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			all[e.Name()] = readFile(t, filepath.Join(s.dir, "..data", e.Name()))
		}
	}
	for n, b := range files {
		all[n] = b
	}
	err := os.Mkdir(filepath.Join(s.dir, name), 0o755)
	for n, b := range all {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir, name, n), b, 0o600))
	}
	if err := errors.Join(err, os.Symlink(name, filepath.Join(s.dir, "..new")), os.Rename(filepath.Join(s.dir, "..new"), filepath.Join(s.dir, "..data"))); err != nil {
		t.Fatal(err)
	}
}

// steady is traffic whose every request must be admitted: through Envoy, and by a client of the RLS port that dials again again and
// again.
type steady struct {
	stop           context.CancelFunc
	done           sync.WaitGroup
	envoys, direct atomic.Int64
	mu             sync.Mutex
	failed         []error // guarded by mu
}

func (l *steady) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.failed = append(l.failed, err)
}

func startSteady(t *testing.T, envoy, direct string, creds credentials.TransportCredentials) *steady {
	ctx, stop := context.WithCancel(t.Context())
	l := &steady{stop: stop}
	client := &http.Client{Timeout: 10 * time.Second}
	for w := range 2 {
		l.done.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				steadily(3 * time.Millisecond)
				if a := send(client, envoy, fmt.Sprintf("key-%d-%d", w, i%50)); a.err != nil || a.status != http.StatusOK {
					l.fail(fmt.Errorf("through Envoy: %d, %w", a.status, a.err))
				}
				l.envoys.Add(1)
			}
		})
	}
	l.done.Go(func() {
		for ctx.Err() == nil {
			c, err := grpc.NewClient("passthrough:///"+direct, grpc.WithTransportCredentials(creds))
			if err != nil {
				l.fail(err)
				return
			}
			for i := range 50 {
				steadily(3 * time.Millisecond)
				call, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				res, err := rlsv3.NewRateLimitServiceClient(c).ShouldRateLimit(call, request("app", 1, "api_key", fmt.Sprint(i)))
				cancel()
				if err != nil || res.OverallCode != rlsv3.RateLimitResponse_OK {
					l.fail(fmt.Errorf("directly: %v, %w", res.GetOverallCode(), err))
				}
				l.direct.Add(1)
			}
			c.Close()
		}
	})
	return l
}

func (l *steady) finish(t *testing.T) {
	t.Helper()
	l.stop()
	l.done.Wait()
	t.Logf("%d requests through Envoy, %d requests by a client that dials again and again", l.envoys.Load(), l.direct.Load())
	if len(l.failed) > 0 {
		t.Errorf("%d failed, such as %v", len(l.failed), l.failed[0])
	}
}

// TestSecurityRotation replaces CA, certificates and gossip keys under load, in the three steps of each that docs/security.md
// reports, with connections that live 2 s: no request fails, none is answered without its owner, none is sent to another member
// except by a retry of Envoy, no member is lost. What was taken away is refused afterwards.
func TestSecurityRotation(t *testing.T) {
	rules := "domain: app\ndescriptors:\n  - key: api_key\n    rate_limit: {unit: hour, requests_per_unit: 1000000}\n"
	l := newLab(t, lab.Options{Rules: map[string]string{"app.yaml": rules}, Expect: 3, Args: []string{"--decision-timeout", "1s", "--connection-age", "2s"}})
	mount := newSecret(t, certDir(l))
	members := names(3)
	start(t, l, members...)
	xds, err := l.AddXDS("xds", "--connection-age", "2s", "--envoy-connect-timeout", "2s") // as in startXDS
	if err != nil {
		t.Fatal(err)
	}
	awaitRing(t, l, members...)
	sds := sdsFiles(t, l)
	up := startUpstream(t)
	envoy := addEnvoy(t, l, lab.EnvoyOptions{
		Shape: "owner-direct", XDS: xds.Addr, Upstream: up.addr,
		Args: []string{"--from", "api_key=header:x-api-key", "--timeout", "1s", "--failure-mode-deny", "--sds", sds, "--tls-peer-name", certs.DemoSAN("sidecar")},
	}, "keyward", 3)

	clientConf, err := certs.Client(certs.DemoFiles(certDir(l), "envoy"), certs.ClientOptions{ServerName: "localhost", Reload: certs.Reload{Interval: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	old := t.TempDir() // what a thief has copied
	for _, name := range []string{"ca.crt", "sidecar.crt", "sidecar.key"} {
		if err := os.WriteFile(filepath.Join(old, name), readFile(t, filepath.Join(certDir(l), name)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	nulStopsAtEnvoy(t, envoy, up)
	traffic := startSteady(t, envoy.Listener, l.Sidecars[0].Direct, credentials.NewTLS(clientConf))
	rotateCertificates(t, l, mount)
	rotateGossipKey(t, l, mount)
	traffic.finish(t)

	for metric, what := range map[string]string{
		"keyward_degraded_total": "requests answered without their owner", "keyward_cluster_deaths_total": "members lost",
	} {
		if n := sum(t, l, metric); n != 0 {
			t.Errorf("%v %s", n, what)
		}
	}
	if n := misrouted(t, l, envoy); n != 0 {
		t.Errorf("%v requests misrouted", n)
	}
	s := l.Sidecars[0]
	rises(t, s.Metrics, "the old certificate", "keyward_peer_inbound_refused_total", []string{"reason", "authority"}, func() {
		handshakeFails(t, s.Peer, credentialsOf(t, l, old, "sidecar", "keyward-peer"))
	})
}

// nulStopsAtEnvoy sends a NUL in the key's header: Envoy refuses it itself, so nothing is let through uncounted.
func nulStopsAtEnvoy(t *testing.T, e *lab.Envoy, up *upstream) {
	t.Helper()
	c, err := net.Dial("tcp", e.Listener)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	_, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nx-api-key: a\x00b\r\n\r\n")
	line, _ := bufio.NewReader(c).ReadString('\n')
	if !strings.Contains(line, " 400 ") || up.calls.Load() != 0 {
		t.Errorf("a key with NUL: %q, %d let through", line, up.calls.Load())
	}
}

// sdsFiles writes the two files through which Envoy follows the certificates, and returns their folder.
func sdsFiles(t *testing.T, l *lab.Lab) string {
	t.Helper()
	dir := t.TempDir()
	for part, name := range map[string]string{"sds-client": "keyward_client.yaml", "sds-ca": "keyward_ca.yaml"} {
		out, err := exec.Command(filepath.Join(l.Bin, "keyward"), "envoy-config", "--part", part, "--sds", dir,
			"--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt")).Output()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), out, 0o644)
		}
		if err != nil {
			t.Fatal(part, err)
		}
	}
	return dir
}

// rotateCertificates goes to another CA: trust both, show the new one's certificates, trust the new one alone. The connections of
// each step must have been replaced before the next one.
func rotateCertificates(t *testing.T, l *lab.Lab, mount *secret) {
	t.Helper()
	next := t.TempDir()
	if err := certs.MakeDemo(next, certs.DemoOptions{}); err != nil {
		t.Fatal(err)
	}
	file := func(name string) []byte { return readFile(t, filepath.Join(next, name)) }
	both := slices.Concat(readFile(t, l.CertFile("ca", ".crt")), file("ca.crt"))
	all := map[string][]byte{}
	for _, who := range []string{"sidecar", "xds", "envoy"} {
		all[who+".crt"], all[who+".key"] = file(who+".crt"), file(who+".key")
	}
	for _, step := range []map[string][]byte{{"ca.crt": both}, all, {"ca.crt": file("ca.crt")}} {
		reloads := sum(t, l, "keyward_certificate_reloads_total", "result", "success")
		mount.replace(t, step)
		awaitAll(t, "new certificates to be in use", func() error {
			// The port of peers, the one of RLS and the one of xDS look at the files each.
			if n := sum(t, l, "keyward_certificate_reloads_total", "result", "success"); n < reloads+2*float64(len(l.Sidecars)) {
				return fmt.Errorf("%v reloads after %v", n, reloads)
			}
			return nil
		})
		settle(t, 2*time.Second)
	}
	if n := sum(t, l, "keyward_certificate_reloads_total", "result", "failure"); n != 0 {
		t.Errorf("%v reloads failed", n)
	}
}

// rotateGossipKey goes to another key: know it, use it, forget the old one.
func rotateGossipKey(t *testing.T, l *lab.Lab, mount *secret) {
	t.Helper()
	oldKey := strings.TrimSpace(string(readFile(t, l.CertFile("gossip", ".key"))))
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	newKey := base64.StdEncoding.EncodeToString(raw)
	var prints []string
	for _, keys := range [][]string{{oldKey, newKey}, {newKey, oldKey}, {newKey}} {
		mount.replace(t, map[string][]byte{"gossip.key": []byte(strings.Join(keys, "\n") + "\n")})
		awaitAll(t, "all to have the keys", func() error {
			var have []string
			for _, s := range l.Sidecars {
				have = append(have, strings.Join(gossipKeys(t, s), ","))
			}
			if same := slices.Compact(slices.Clone(have)); len(same) != 1 || strings.Count(same[0], ",") != len(keys)-1 || slices.Contains(prints, same[0]) {
				return fmt.Errorf("keys %q", have)
			}
			prints = append(prints, have[0])
			return nil
		})
		settle(t, time.Second) // xds, and what is on its way
	}
}

// gossipKeys are the fingerprints of a member's keys.
func gossipKeys(t *testing.T, s *lab.Sidecar) []string {
	t.Helper()
	body, err := lab.Get(t.Context(), "http://"+s.Metrics+"/v1/self")
	if err != nil {
		t.Fatal(err)
	}
	var self struct {
		Keys []string `json:"gossip_key"`
	}
	if err := json.Unmarshal(body, &self); err != nil {
		t.Fatal(err)
	}
	return self.Keys
}

func awaitAll(t *testing.T, what string, cond func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, what, func(context.Context) error { return cond() }); err != nil {
		t.Fatal(err)
	}
}

// settle lets connections of a given age end.
func settle(t *testing.T, age time.Duration) {
	t.Helper()
	select {
	case <-time.After(age):
	case <-t.Context().Done():
	}
}
