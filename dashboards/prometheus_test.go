package dashboards

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// target is a process that Prometheus scrapes.
type target struct{ job, path, instance, addr string }

// prometheusOf starts a real Prometheus that scrapes the targets once a second, with the alerts loaded.
func prometheusOf(t *testing.T, program, dir string, targets ...target) (base string) {
	t.Helper()
	alerts, err := filepath.Abs("alerts.yml")
	if err != nil {
		t.Fatal(err)
	}
	var c strings.Builder
	fmt.Fprintf(&c, "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\nrule_files: [%q]\nscrape_configs:\n", alerts)
	jobs := map[string][]target{}
	for _, x := range targets {
		jobs[x.job] = append(jobs[x.job], x)
	}
	for _, job := range sorted(jobs) {
		fmt.Fprintf(&c, "- job_name: %s\n  metrics_path: %s\n  static_configs:\n", job, jobs[job][0].path)
		for _, x := range jobs[job] {
			fmt.Fprintf(&c, "  - {targets: [%q], labels: {instance: %s, cluster: lab, namespace: test}}\n", x.addr, x.instance)
		}
	}
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(c.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	var ports lab.Ports
	addr, err := ports.Addr()
	if err != nil {
		t.Fatal(err)
	}
	p, err := lab.StartProcess(dir, lab.Spec{Name: "prometheus", Path: program, Args: []string{
		"--config.file", file, "--storage.tsdb.path", filepath.Join(dir, "tsdb"), "--web.listen-address", addr, "--log.level", "warn",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(10 * time.Second); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "Prometheus", func(ctx context.Context) error {
		_, err := lab.Get(ctx, "http://"+addr+"/-/ready")
		return err
	}); err != nil {
		t.Fatalf("%v\n%s", err, p.Tail(2000))
	}
	return "http://" + addr
}

// result is a series with its values.
type result struct {
	labels map[string]string
	values []float64
}

// queryPrometheus evaluates expr now if from is zero, otherwise for every second from then until now.
func queryPrometheus(ctx context.Context, base, expr string, from time.Time) ([]result, error) {
	path, q := "query", url.Values{"query": {expr}}
	if !from.IsZero() {
		path = "query_range"
		unix := func(t time.Time) []string { return []string{strconv.FormatInt(t.Unix(), 10)} }
		q["start"], q["end"], q["step"] = unix(from), unix(time.Now()), []string{"1"}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/api/v1/"+path+"?"+q.Encode(), nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var body struct {
		Status, Error string
		Data          struct {
			Result []struct {
				Metric map[string]string
				Value  [2]any
				Values [][2]any
			}
		}
	}
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return nil, fmt.Errorf("%s: %w", res.Status, err)
	}
	if body.Status != "success" {
		return nil, fmt.Errorf("%s: %s", body.Error, expr)
	}
	all := make([]result, len(body.Data.Result))
	for i, r := range body.Data.Result {
		all[i].labels = r.Metric
		if r.Value[1] != nil {
			r.Values = append(r.Values, r.Value)
		}
		for _, v := range r.Values {
			n, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64)
			if err != nil {
				return nil, err
			}
			all[i].values = append(all[i].values, n)
		}
	}
	return all, nil
}

// some reports whether any value of the series is a number that ok accepts.
func some(all []result, ok func(float64) bool) bool {
	for _, r := range all {
		for _, v := range r.values {
			if !math.IsNaN(v) && ok(v) {
				return true
			}
		}
	}
	return false
}

func number(float64) bool { return true }

func notZero(v float64) bool { return v != 0 }
