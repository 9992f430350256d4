package ringcheck

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/keyward/keyward/ring"
)

// files returns the recorded vectors.
func files(t testing.TB) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/envoy-ring/*.json")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no vectors: %v", err)
	}
	return paths
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func parse(t testing.TB, data []byte) *Vectors {
	t.Helper()
	v, err := ParseVectors(data)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestVectors(t *testing.T) {
	for _, path := range files(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			v := parse(t, read(t, path))
			res := v.Check()
			if res.Failed != 0 || res.Passed != len(v.Requests) || res.Passed == 0 {
				t.Errorf("%d passed, %d failed of %d: %q", res.Passed, res.Failed, len(v.Requests), res.Failures)
			}
			if v.Gauges == nil {
				t.Error("no gauges")
			}
		})
	}
}

// TestCheckFindsDifferences requires that Check reports each of these changes.
func TestCheckFindsDifferences(t *testing.T) {
	load := func() *Vectors { return parse(t, read(t, "testdata/envoy-ring/health-mixed-n8.json")) }
	for name, c := range map[string]struct {
		change func(v *Vectors)
		failed int
		report string
	}{
		"nothing":       {func(*Vectors) {}, 0, ""},
		"another host":  {func(v *Vectors) { v.Requests[7].Host = 99 }, 1, "request 7"},
		"no host":       {func(v *Vectors) { v.Requests[7].Host = NoHost }, 1, "envoy chose -1"},
		"gauge":         {func(v *Vectors) { v.Gauges.Size++ }, 1, "gauges"},
		"host too many": {func(v *Vectors) { v.HostsInRing = append(v.HostsInRing, 1) }, 1, "hosts in ring"},
		"no ring":       {func(v *Vectors) { v.Cluster.MaximumRingSize = 1 }, 660, "minimum_ring_size 4096: above"},
		"murmur":        {func(v *Vectors) { v.Cluster.HashFunction = ring.Murmur2 }, -1, "envoy chose"},
	} {
		t.Run(name, func(t *testing.T) {
			v := load()
			c.change(v)
			res := v.Check()
			if res.Failed != c.failed && c.failed >= 0 || c.failed < 0 && res.Failed < 100 {
				t.Errorf("%d failed, want %d", res.Failed, c.failed)
			}
			if report := strings.Join(res.Failures, "\n"); !strings.Contains(report, c.report) || len(res.Failures) > maxFailures {
				t.Errorf("%d failures described: %s", len(res.Failures), report)
			}
		})
	}
}

func TestAbsentHeaderMayGoAnywhereInTheRing(t *testing.T) {
	v := parse(t, []byte(`{"hosts":[{"id":4,"address":"a"},{"id":5,"address":"b","health_status":"DRAINING"},{"id":6,"address":"c"}],
		"requests":[{"v":[],"host":4},{"host":6},{"v":[],"host":5}]}`))
	if res := v.Check(); res.Passed != 2 || res.Failed != 1 {
		t.Errorf("%+v", res)
	}
}

func TestParseVectorsIsLiberal(t *testing.T) {
	v := parse(t, []byte(`{"name":"n","later":{"x":[1]},"header":"x-api-key",
		"ring":{"hash_function":"murmur_hash_2","locality_weighted_lb_config":{},"healthy_panic_threshold":{"value":12.5},"new":1},
		"hosts":[{"address":"[::1]:80","hash_key":7,"zone":"z"},{"id":10,"hash_key":"k","weight":3,"health_status":"timeout","priority":1,"locality_zone":"a"}],
		"requests":[{"v":"one","host":0},{"hex":"80ff","host":10},{"hex":["80","81"],"host":null},{"v":["a","b"],"host":-1}]}`))
	if *v.Cluster.PanicThreshold != 12.5 || !v.Cluster.LocalityWeighted || v.Cluster.HashFunction != ring.Murmur2 || v.Gauges != nil || v.HostsInRing != nil {
		t.Errorf("cluster %+v", v.Cluster)
	}
	if !slices.Equal(v.IDs, []int{0, 10}) || v.Cluster.Hosts[0] != (Host{Address: "[::1]:80"}) ||
		v.Cluster.Hosts[1] != (Host{HashKey: "k", Weight: 3, Health: Timeout, Priority: 1, Locality: Locality{Zone: "a"}}) {
		t.Errorf("hosts %v %+v", v.IDs, v.Cluster.Hosts)
	}
	want := []RecordedRequest{{[]string{"one"}, 0}, {[]string{"\x80\xff"}, 10}, {[]string{"\x80", "\x81"}, NoHost}, {[]string{"a", "b"}, NoHost}}
	if !slices.EqualFunc(v.Requests, want, func(a, b RecordedRequest) bool { return a.Host == b.Host && slices.Equal(a.Lines, b.Lines) }) {
		t.Errorf("requests %+v", v.Requests)
	}
}

func TestParseVectorsNamesEveryFault(t *testing.T) {
	for _, c := range []struct {
		name, data string
		want       []string
	}{
		{"empty", "", []string{"line 1", "unexpected end"}},
		{"cut off", "{\n\"hosts\": [\n", []string{"line 3", "unexpected end"}},
		{"syntax", "{\n\"hosts\": [],\n\"requests\": [}\n", []string{"line 3", "invalid character"}},
		{"not an object", "[]", []string{"line 1", "top-level value"}},
		{"null", "null", []string{"hosts: missing", "requests: missing"}},
		{"type", "{\n\n\"ring\": {\"minimum_ring_size\": \"x\"}}", []string{"line 3", "ring.minimum_ring_size", "string"}},
		{"negative", `{"ring": {"maximum_ring_size": -1}}`, []string{"ring.maximum_ring_size"}},
		{"gauge", `{"envoy_gauges": {"size": 1.5}}`, []string{"envoy_gauges.size"}},
		{"flag", `{"ring": {"locality_weighted": 3}}`, []string{"ring.locality_weighted: 3"}},
		{"many", `{"ring":{"hash_function":"SHA","healthy_panic_threshold":"half"},
			"hosts":[{"id":1},{"id":1},{"weight":-2},{"health_status":"ILL"},7],
			"requests":[{"v":3},{"hex":["0"]},{"hex":["zz"]},{"v":["a"],"hex":["00"]},{"host":"a"},"x"]}`, []string{
			`ring.hash_function: "SHA"`, `healthy_panic_threshold: "half"`, "hosts[1].id: 1 is used twice", "hosts[2].weight",
			`hosts[3].health_status: "ILL"`, "hosts[4]", "requests[0].v: 3", "requests[1].hex", "requests[2].hex", "requests[3].hex: given together with v",
			"requests[4].host: is a string", "requests[5]",
		}},
		{"very many", `{"hosts":[],"requests":[` + strings.Repeat("1,", 99) + `1]}`, []string{"requests[9]", "and 90 more"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseVectors([]byte(c.data))
			if err == nil {
				t.Fatal("no error")
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func FuzzParseVectors(f *testing.F) {
	for _, path := range files(f) {
		data := read(f, path)
		if len(data) < 9000 {
			f.Add(data)
		}
	}
	f.Add([]byte(`{"hosts":[{"id":1,"address":"a"}],"requests":[{"v":"x","host":1},{"hex":"80","host":null}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := ParseVectors(data)
		if err != nil {
			return
		}
		v.Cluster.MinimumRingSize = min(v.Cluster.MinimumRingSize, 5000)
		v.Cluster.MaximumRingSize = min(max(v.Cluster.MaximumRingSize, 1), 5000)
		if res := v.Check(); res.Passed+res.Failed < len(v.Requests) || len(res.Failures) > maxFailures || (res.Failed == 0) != (len(res.Failures) == 0) {
			t.Errorf("%d requests: %+v", len(v.Requests), res)
		}
	})
}
