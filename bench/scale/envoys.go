package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/keyward/keyward/ring"
)

// bootstrap is an Envoy with the ring that xDS serves, its endpoints in a file that is watched.
var bootstrap = template.Must(template.New("").Parse(`
admin: {address: {socket_address: {address: 127.0.0.1, port_value: {{.Admin}}}}}
node: {id: scale, cluster: scale}
static_resources:
  clusters:
{{if .Capacity}}  - name: keyward
    type: EDS
    eds_cluster_config: {eds_config: {path_config_source: {path: {{.Endpoints}}}, resource_api_version: V3}}
    lb_policy: RING_HASH
    ring_hash_lb_config: {minimum_ring_size: {{.Points}}, maximum_ring_size: 8388608}
    common_lb_config: {locality_weighted_lb_config: {}, healthy_panic_threshold: {value: 0}, update_merge_window: 0s}
{{end}}`))

// endpoints are some members and the void.
var endpoints = template.Must(template.New("").Parse(`
resources:
- "@type": type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment
  cluster_name: keyward
  endpoints:
{{range .Members}}  - {locality: {sub_zone: {{.ID}}}, load_balancing_weight: 1, lb_endpoints: [{endpoint: {address: {socket_address: {address: {{.Address}}, port_value: 8082}}},
       metadata: {filter_metadata: {envoy.lb: {hash_key: {{.ID}}}}}}]}
{{end}}  - {locality: {region: void}, load_balancing_weight: {{.Void}}, lb_endpoints: [{health_status: UNHEALTHY, endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}}]}
`))

// envoys runs a real Envoy with rings of every size, and one without; and one ring with the largest capacity.
func envoys(m *Measured, binary string) error {
	if binary == "" {
		return errors.New("give its binary with -envoy")
	}
	m.Envoys = nil
	without, _, err := envoy(binary, 0, 0)
	if err != nil {
		return err
	}
	for _, n := range append(slices.Clone(Sizes), 100) {
		c := Capacity(n)
		if len(m.Envoys) == len(Sizes) {
			c = ring.MaxCapacity
		}
		bytes, cpu, err := envoy(binary, n, c)
		if err != nil {
			return fmt.Errorf("%d members: %w", n, err)
		}
		m.Envoys = append(m.Envoys, EnvoyCost{Members: n, Capacity: c, Bytes: bytes - without, Millis: cpu * 1e3})
	}
	return nil
}

// envoy is the memory of one, and the CPU seconds of one change of its endpoints.
func envoy(binary string, n, capacity int) (memory, cpu float64, err error) {
	dir, err := os.MkdirTemp("", "scale")
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	admin, err := freePort()
	if err != nil {
		return 0, 0, err
	}
	file := filepath.Join(dir, "endpoints.yaml")
	if err := writeEndpoints(file, n, capacity); err != nil {
		return 0, 0, err
	}
	var b bytes.Buffer
	data := map[string]any{"Admin": admin, "Capacity": capacity, "Points": capacity * ring.PointsPerWeight, "Endpoints": file}
	if err := bootstrap.Execute(&b, data); err != nil {
		return 0, 0, err
	}
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, b.Bytes(), 0o600); err != nil {
		return 0, 0, err
	}
	cmd := exec.Command(binary, "-c", config, "--concurrency", "2", "--log-level", "error", "--disable-hot-restart")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, 0, err
	}
	defer func() {
		_ = cmd.Process.Kill() // and it was to end
		_ = cmd.Wait()
	}()
	if capacity == 0 {
		time.Sleep(3 * time.Second)
		memory, err = resident(cmd.Process.Pid)
		return memory, 0, err
	}
	return changes(cmd.Process.Pid, admin, file, n, capacity)
}

// changes has the endpoints change a few times.
func changes(pid, admin int, file string, n, capacity int) (memory, cpu float64, err error) {
	const times = 6
	if err := await("Envoy to have its ring", time.Minute, func() bool { return updates(admin) >= 1 }); err != nil {
		return 0, 0, err
	}
	time.Sleep(2 * time.Second)
	before, err := processor(pid)
	if err != nil {
		return 0, 0, err
	}
	for i := range times {
		seen := updates(admin)
		if err := writeEndpoints(file, n+(i+1)%2, capacity); err != nil {
			return 0, 0, err
		}
		if err := await("Envoy to take a change", time.Minute, func() bool { return updates(admin) > seen }); err != nil {
			return 0, 0, err
		}
	}
	after, err := processor(pid)
	if err != nil {
		return 0, 0, err
	}
	memory, err = resident(pid)
	return memory, (after - before) / times, err
}

// writeEndpoints replaces the file by a new one, because Envoy watches for that.
func writeEndpoints(file string, n, capacity int) error {
	type host struct {
		ID      ring.ID
		Address string
	}
	var members []host
	for i := range n {
		members = append(members, host{Member(i).ID, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)})
	}
	var b bytes.Buffer
	if err := endpoints.Execute(&b, map[string]any{"Members": members, "Void": capacity - n}); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b.Bytes(), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// updates is how often Envoy has built its ring again: successful changes of the endpoints.
func updates(admin int) int {
	r, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/stats?filter=cluster.keyward.update_success", admin))
	if err != nil {
		return 0
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return 0
	}
	_, n, _ := strings.Cut(strings.TrimSpace(string(body)), ": ")
	v, _ := strconv.Atoi(n) // 0 before there is any
	return v
}

// resident is a process's memory.
func resident(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	var size, pages float64
	_, err = fmt.Sscan(string(b), &size, &pages)
	return pages * float64(os.Getpagesize()), err
}

// processor is the seconds of CPU that a process has used; the kernel counts them by the hundredth.
func processor(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	user, err1 := strconv.ParseFloat(fields[11], 64)
	system, err2 := strconv.ParseFloat(fields[12], 64)
	return (user + system) / 100, errors.Join(err1, err2)
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer ln.Close()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
