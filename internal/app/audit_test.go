package app

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/audit"
)

// resetLent charges a hit to a key whose rule has audit logs, and resets the key.
func (p *process) resetLent(t *testing.T) {
	t.Helper()
	p.hitKey(t, "lent", "x", 1)
	var r api.ResetResult
	order := api.ResetOrder{Domain: "d", Descriptor: api.KeyDescriptor{Entries: []api.KeyValue{{Key: "lent", Value: "x"}}}}
	if code := p.post(t, "/reset", order, &r); code != http.StatusOK || r.Before != 1 || r.After != 0 {
		t.Fatalf("reset: %d %+v", code, r)
	}
}

// auditRecords returns the records of an audit log, or none if there is no such file.
func auditRecords(t *testing.T, path string) (all []audit.Record) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	b = b[:bytes.LastIndexByte(b, '\n')+1] // the rest is being written
	for s := bufio.NewScanner(bytes.NewReader(b)); s.Scan(); {
		var r audit.Record
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			t.Fatalf("%s: %v", s.Bytes(), err)
		}
		all = append(all, r)
	}
	return all
}

// records returns how many audit records p has written or lost.
func (p *process) records(t *testing.T, result string) int {
	t.Helper()
	_, b := p.get("/metrics")
	m := regexp.MustCompile(`keyward_audit_records_total\{result="` + result + `"\} (\d+)`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no records by result %s", result)
	}
	n, _ := strconv.Atoi(string(m[1]))
	return n
}

// TestResetsAreAudited requires a record of each reset, with the key and the digest by which /v1/explain shows it. The
// file is opened again at SIGHUP.
func TestResetsAreAudited(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.log")
	p := launch(t, "a", "--audit-log", path)
	eventually(t, "ready", p.up)
	digest := read[api.Explanation](t, p, "/v1/explain?domain=d&key=lent=x").Digest
	p.resetLent(t)
	eventually(t, "a record", func() bool { return len(auditRecords(t, path)) == 1 })
	r := auditRecords(t, path)[0]
	if r.Kind != "reset" || r.Member != "a" || r.Domain != "d" || r.Key != "lent=x" || r.Digest != digest || len(digest) != 32 ||
		r.Peer != "a" || r.Hits != 1 || r.Used != 0 || r.Limit != 100000 || r.Time.IsZero() {
		t.Errorf("%+v, the digest is %s", r, digest)
	}
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new file", func() bool {
		p.resetLent(t)
		return len(auditRecords(t, path)) > 0
	})
	if n := p.records(t, "lost"); n != 0 {
		t.Errorf("%d lost", n)
	}
}

// TestFullDisk requires that records that cannot be written are counted and reported, and that the member answers
// calls. A file that cannot be opened ends the member.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	p := launch(t, "a", "--audit-log", "/dev/full")
	eventually(t, "ready", p.up)
	for range 3 {
		p.resetLent(t)
	}
	eventually(t, "lost records", func() bool { return p.records(t, "lost") == 3 })
	if n := p.records(t, "written"); n != 0 {
		t.Errorf("%d written", n)
	}
	eventually(t, "a warning", func() bool {
		return strings.Contains(p.log.String(), "audit records lost") && strings.Contains(p.log.String(), "no space left on device")
	})
	p.hit(t, "x", 1)

	missing := filepath.Join(t.TempDir(), "missing", "audit.log")
	p = launch(t, "b", "--audit-log", missing)
	if code := p.end(t); code == 0 || !strings.Contains(p.log.String(), "--audit-log: open "+missing) {
		t.Errorf("exit %d: %s", code, p.log.String())
	}
}

// TestAuditPipes requires that a member whose audit log is a pipe that is full, and is not read, ends when it is asked to,
// and that a pipe without a reader ends the member at its start.
func TestAuditPipes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "a", "--audit-log", path)
	if code := p.end(t); code == 0 || !strings.Contains(p.log.String(), "no process reads this pipe") {
		t.Errorf("exit %d: %s", code, p.log.String())
	}

	pipe, err := syscall.Open(path, syscall.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(pipe)
	p = launch(t, "b", "--audit-log", path)
	eventually(t, "ready", p.up)
	for err == nil {
		_, err = syscall.Write(pipe, []byte("\n"))
	}
	p.resetLent(t)
	eventually(t, "a waiting record", func() bool {
		_, b := p.get("/metrics")
		return bytes.Contains(b, []byte("\nkeyward_audit_records_waiting 1\n"))
	})
	p.signal(t)
	p.end(t)
}

// TestAuditByOTLP requires that a collector gets the records as OTLP logs, and that records are counted as lost while it
// refuses them.
func TestAuditByOTLP(t *testing.T) {
	var refuse atomic.Bool
	got := make(chan audit.Record, 100)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		b, _ := io.ReadAll(r.Body)
		var data logs.LogsData
		if err := proto.Unmarshal(b, &data); err != nil || r.URL.Path != "/v1/logs" || r.Header.Get("Authorization") != "Bearer a b" {
			t.Errorf("%s %v: %v", r.URL, r.Header, err)
		}
		for _, l := range data.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords() {
			var x audit.Record
			if err := json.Unmarshal([]byte(l.GetBody().GetStringValue()), &x); err != nil || l.GetEventName() != "keyward.audit."+x.Kind {
				t.Errorf("%v: %v", l, err)
			}
			got <- x
		}
	}))
	defer srv.Close()
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", srv.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20a%20b")
	p := launch(t, "a", "--audit-log", "otlp")
	eventually(t, "ready", p.up)
	p.resetLent(t)
	if r := <-got; r.Kind != "reset" || r.Key != "lent=x" || r.Lost != 0 {
		t.Errorf("%+v", r)
	}
	refuse.Store(true)
	p.resetLent(t)
	p.resetLent(t)
	eventually(t, "lost records", func() bool { return p.records(t, "lost") == 2 })
	refuse.Store(false)
	p.resetLent(t)
	if r := <-got; r.Lost != 2 {
		t.Errorf("%+v, want 2 lost before it", r)
	}
}
