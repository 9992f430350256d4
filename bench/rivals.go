package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// startRatelimit starts a Redis without persistence and the service over it, with the same metrics on as Keyward has.
func startRatelimit(ctx context.Context, a *arena, r *running, env ...string) error {
	path, err := buildRatelimit(ctx, a)
	if err != nil {
		return err
	}
	addrs, err := r.addrs(5) // Redis, gRPC, HTTP, debug, Prometheus
	if err != nil {
		return err
	}
	port := make([]string, len(addrs))
	for i, addr := range addrs {
		_, port[i], _ = strings.Cut(addr, ":")
	}
	config := filepath.Join(r.dir, "ratelimit", "config")
	if err := errors.Join(os.MkdirAll(config, 0o755), os.WriteFile(filepath.Join(config, "bench.yaml"), []byte(rules), 0o644)); err != nil {
		return err
	}
	err = r.process(lab.Spec{Name: "redis", Path: a.redis, Args: []string{
		"--bind", "127.0.0.1", "--port", port[0], "--save", "", "--appendonly", "no", "--daemonize", "no",
	}})
	if err != nil {
		return err
	}
	if err := awaitTCP(ctx, addrs[0]); err != nil { // the service gives up when there is no Redis
		return err
	}
	r.targets, r.debug = []target{{addr: addrs[1]}}, addrs[3:4]
	return r.process(lab.Spec{Name: "ratelimit", Path: path, Env: append([]string{
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port[1], "HOST=127.0.0.1", "PORT=" + port[2], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port[3],
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + addrs[0], "USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=" + addrs[4],
		"RUNTIME_ROOT=" + r.dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
	}, env...)})
}

// buildRatelimit builds the competitor with the versions that its maintainers pinned: ratelimit/go.mod asks for nothing
// else, and go.sum holds them.
func buildRatelimit(ctx context.Context, a *arena) (string, error) {
	path := filepath.Join(a.bin, "bench", "ratelimit")
	cmd := exec.CommandContext(ctx, "go", "build", "-C", "ratelimit", "-o", path, "github.com/envoyproxy/ratelimit/src/service_cmd")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build envoyproxy/ratelimit: %w\n%s", err, out)
	}
	return path, nil
}

// limitadorLimits are the rules as Limitador 2 writes them.
var limitadorLimits = fmt.Sprintf(`- namespace: bench
  max_value: %d
  seconds: 31536000
  conditions: ["descriptors[0]['route'] == 'search'"]
  variables: ["descriptors[0]['api_key']"]
`, uint32(limitPerYear))

// startLimitador starts a Limitador that keeps its counters in memory. It answers with a code and no statuses.
func startLimitador(_ context.Context, a *arena, r *running) error {
	addrs, err := r.addrs(2) // gRPC, HTTP
	if err != nil {
		return err
	}
	file := filepath.Join(r.dir, "limits.yaml")
	if err := os.WriteFile(file, []byte(limitadorLimits), 0o644); err != nil {
		return err
	}
	host, rls, _ := strings.Cut(addrs[0], ":")
	_, http, _ := strings.Cut(addrs[1], ":")
	r.targets, r.blind = []target{{addr: addrs[0]}}, true
	return r.process(lab.Spec{Name: "limitador", Path: a.limitador, Args: []string{file, "memory"}, Env: []string{
		"ENVOY_RLS_HOST=" + host, "ENVOY_RLS_PORT=" + rls, "HTTP_API_HOST=" + host, "HTTP_API_PORT=" + http, "LIMITS_FILE=" + file,
	}})
}

// startGubernator starts Gubernators that know each other. They speak a protocol of their own.
func startGubernator(_ context.Context, a *arena, r *running, n int) error {
	addrs, err := r.addrs(3 * n) // gRPC, HTTP, gossip
	if err != nil {
		return err
	}
	r.service, r.calls, r.blind = gubernator(), gubernatorCalls(a.keys), true
	for i := range n {
		grpc, http, gossip := addrs[3*i], addrs[3*i+1], addrs[3*i+2]
		r.targets = append(r.targets, target{addr: grpc})
		err := r.process(lab.Spec{Name: fmt.Sprint("gubernator-", i), Path: a.gubernator, Env: []string{
			"GUBER_GRPC_ADDRESS=" + grpc, "GUBER_HTTP_ADDRESS=" + http, "GUBER_ADVERTISE_ADDRESS=" + grpc, "GUBER_INSTANCE_ID=" + grpc,
			"GUBER_PEER_DISCOVERY_TYPE=member-list", "GUBER_MEMBERLIST_ADDRESS=" + gossip, "GUBER_MEMBERLIST_BIND_ADDRESS=" + gossip,
			"GUBER_MEMBERLIST_KNOWN_NODES=" + addrs[2], "GUBER_CACHE_SIZE=1000000",
		}})
		if err != nil {
			return err
		}
	}
	return nil
}

// gubernator is its service V1: one limit asked about in each call, and the answer's first response.
func gubernator() loadtest.LoadTarget {
	const responses, status, failure = 1, 1, 5
	return loadtest.GRPC("/pb.gubernator.V1/GetRateLimits", func(message []byte) (over bool, err error) {
		first, err := bytesOf(message, responses)
		if err != nil {
			return false, err
		}
		if why, err := bytesOf(first, failure); err == nil {
			return false, fmt.Errorf("gubernator: %s", why)
		}
		for b := first; len(b) > 0; {
			num, typ, n := protowire.ConsumeTag(b)
			if n >= 0 && num == status && typ == protowire.VarintType {
				v, _ := protowire.ConsumeVarint(b[n:])
				over = v == 1
			}
			m := protowire.ConsumeFieldValue(num, typ, b[max(n, 0):])
			if n < 0 || m < 0 {
				return false, errResponse
			}
			b = b[n+m:]
		}
		return over, nil
	})
}

var errResponse = errors.New("the response cannot be decoded")

// bytesOf is the first field of that number that holds bytes.
func bytesOf(b []byte, want protowire.Number) ([]byte, error) {
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			break
		}
		if num == want && typ == protowire.BytesType {
			v, m := protowire.ConsumeBytes(b[n:])
			if m < 0 {
				break
			}
			return v, nil
		}
		m := protowire.ConsumeFieldValue(num, typ, b[n:])
		if m < 0 {
			break
		}
		b = b[n+m:]
	}
	return nil, errResponse
}

func gubernatorCalls(keys int) []loadtest.LoadCall {
	const name, uniqueKey, hits, limit, duration = 1, 2, 3, 4, 5
	const yearMS = 365 * 24 * 3600 * 1000
	calls := make([]loadtest.LoadCall, keys)
	for i := range calls {
		var m []byte
		for field, text := range map[protowire.Number]string{name: "search", uniqueKey: keyName(i)} {
			m = protowire.AppendString(protowire.AppendTag(m, field, protowire.BytesType), text)
		}
		for field, v := range map[protowire.Number]uint64{hits: 1, limit: limitPerYear, duration: yearMS} {
			m = protowire.AppendVarint(protowire.AppendTag(m, field, protowire.VarintType), v)
		}
		calls[i].Message = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), m)
	}
	return calls
}
