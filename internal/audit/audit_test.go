package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	logs "go.opentelemetry.io/proto/otlp/logs/v1"
	"google.golang.org/protobuf/proto"
)

// slow is a sink that blocks until it is released, and fails as often as required.
type slow struct {
	release chan struct{}
	fail    int
	got     []Record
}

func (s *slow) write(_ context.Context, records []Record) (int, error) {
	<-s.release
	if s.fail > 0 {
		s.fail--
		return 0, errors.New("failed")
	}
	s.got = append(s.got, records...)
	return len(records), nil
}

func (s *slow) close() {}

// TestAddNeverBlocks requires that records that find no room are counted, also in the next record that is written.
func TestAddNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{release: make(chan struct{})}
		l := start(Options{Member: "a"}, s, 2)
		l.Add(Record{Kind: "lease"})
		synctest.Wait() // the sink has it
		for range 5 {
			l.Add(Record{Kind: "lease"})
		}
		close(s.release)
		l.Close()
		if len(s.got) != 3 || s.got[0].Lost != 0 || s.got[1].Lost != 3 || s.got[2].Lost != 0 || s.got[0].Member != "a" {
			t.Errorf("%+v", s.got)
		}
	})
}

// TestSinkFails requires that the records of a failed write are counted in the next one.
func TestSinkFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slow{release: make(chan struct{}), fail: 1}
		close(s.release)
		l := start(Options{}, s, 2)
		l.Add(Record{Kind: "lease"})
		synctest.Wait()
		l.Add(Record{Kind: "reset"})
		l.Close()
		if len(s.got) != 1 || s.got[0].Kind != "reset" || s.got[0].Lost != 1 {
			t.Errorf("%+v", s.got)
		}
	})
}

// TestFileRotates requires that a file is renamed at its size, and opened again after another process has renamed it.
func TestFileRotates(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f := &lines{path: path, maxSize: 150}
	l := start(Options{Member: "a"}, f, 8)
	write := func(kind string) { l.write(t.Context(), []Record{{Kind: kind, Key: "<k>"}}) }
	l.Close()
	write("first")
	write("second")
	f.close()
	if err := os.Rename(path, path+".moved"); err != nil {
		t.Fatal(err)
	}
	l.Reopen()
	write("third")
	f.close()
	for name, want := range map[string]string{path + ".1": "first", path + ".moved": "second", path: "third"} {
		b, err := os.ReadFile(name)
		var r Record
		if err != nil || json.Unmarshal(b, &r) != nil || r.Kind != want || !bytes.Contains(b, []byte("<k>")) {
			t.Errorf("%s: %s, %v", name, b, err)
		}
	}
}

// TestCollector requires that the collector gets the records as OTLP logs, with the headers of the environment.
func TestCollector(t *testing.T) {
	var got logs.LogsData
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/elsewhere" {
			return // 200
		}
		b, _ := io.ReadAll(r.Body)
		if r.URL.Path != "/v1/logs" || r.Header.Get("X-Key") != "a b" || proto.Unmarshal(b, &got) != nil {
			t.Errorf("%s %v", r.URL, r.Header)
		}
		w.Header().Set("Location", "/v1/elsewhere")
		w.WriteHeader(status)
	}))
	defer srv.Close()
	env := map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": srv.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20b"}
	c := newCollector("keyward", "a", func(k string) string { return env[k] })
	defer c.close()
	write := func() error {
		_, err := c.write(t.Context(), []Record{{Kind: "lease", Key: "k"}})
		return err
	}
	if err := write(); err != nil {
		t.Fatal(err)
	}
	r := got.GetResourceLogs()[0].GetScopeLogs()[0].GetLogRecords()[0]
	if r.GetEventName() != "keyward.audit.lease" || len(r.GetBody().GetStringValue()) == 0 {
		t.Errorf("%v", r)
	}
	for _, status = range []int{http.StatusServiceUnavailable, http.StatusFound, http.StatusTemporaryRedirect} {
		if err := write(); err == nil {
			t.Errorf("status %d is no error", status)
		}
	}
}

// TestCloseIsBounded requires that a sink that blocks delays Close for two seconds, and that its records are counted as
// waiting before, and as lost afterwards.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, reg := &slow{release: make(chan struct{})}, prometheus.NewRegistry()
		l := start(Options{Registerer: reg}, s, 4)
		for range 3 {
			l.Add(Record{Kind: "lease"})
			synctest.Wait()
		}
		if got := readCounts(t, reg); got != (counts{waiting: 3}) {
			t.Errorf("%+v, want 3 waiting", got)
		}
		began := time.Now()
		l.Close()
		if d := time.Since(began); d > lastRecords {
			t.Errorf("closed after %v", d)
		}
		l.Add(Record{Kind: "lease"})
		close(s.release)
		synctest.Wait()
		if got := readCounts(t, reg); got != (counts{lost: 4}) || len(s.got) > 1 {
			t.Errorf("%+v, want 4 lost; %d written later", got, len(s.got))
		}
	})
}
