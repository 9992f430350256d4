package admin

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/keyward/keyward/internal/api"
)

func TestPages(t *testing.T) {
	reg := prometheus.NewRegistry()
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "keyward_x", Help: "x"}, func() float64 { return 7 }))
	var ready error = errors.New("not joined yet")
	srv := httptest.NewServer(Handler(Options{
		Gatherer: reg,
		Cluster: func() api.ClusterStatus {
			return api.ClusterStatus{Self: "a", Ring: api.RingStatus{Members: []string{"a", "b"}}}
		},
		Ready: func() error { return ready },
	}))
	defer srv.Close()
	get := func(path string) (int, string) {
		t.Helper()
		res, err := http.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	if code, body := get("/metrics"); code != 200 || !strings.Contains(body, "keyward_x 7") {
		t.Errorf("/metrics: %d %s", code, body)
	}
	var c api.ClusterStatus
	if code, body := get("/cluster"); code != 200 || json.Unmarshal([]byte(body), &c) != nil || c.Self != "a" || len(c.Ring.Members) != 2 {
		t.Errorf("/cluster: %d %s", code, body)
	}
	if code, body := get("/readyz"); code != 503 || !strings.Contains(body, "not joined yet") {
		t.Errorf("/readyz before: %d %s", code, body)
	}
	ready = nil
	if code, _ := get("/readyz"); code != 200 {
		t.Errorf("/readyz after: %d", code)
	}
	if code, _ := get("/healthz"); code != 200 {
		t.Errorf("/healthz: %d", code)
	}
	if code, _ := get("/nothing"); code != 404 {
		t.Errorf("/nothing: %d", code)
	}
}
