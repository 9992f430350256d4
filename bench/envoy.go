package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/ops/loadtest"
)

// The names of what Envoy asks.
const (
	nameEnvoyNone     = "envoy-none"
	nameEnvoyLocal    = "envoy-local"
	nameEnvoyConstant = "envoy-constant"
	nameEnvoyFloor    = "envoy-floor"
	nameEnvoyOne      = "envoy-keyward-1"
	nameEnvoyDirect   = "envoy-keyward-3"
	nameEnvoyPlain    = "envoy-keyward-3-plain"
	nameEnvoyModule   = "envoy-module"
)

func behindEnvoy() []contestant {
	all := []contestant{
		{Name: nameEnvoyNone, Title: "Envoy, no rate limiting", quick: true, start: func(ctx context.Context, a *arena, r *running) error {
			return startFiltered(ctx, a, r, "")
		}},
		{Name: nameEnvoyLocal, Title: "Envoy's own local_ratelimit", start: func(ctx context.Context, a *arena, r *running) error {
			return startFiltered(ctx, a, r, localFilter)
		}},
		{Name: nameEnvoyConstant, Title: "constant grpc-go server", quick: true, start: func(ctx context.Context, a *arena, r *running) error {
			return errors.Join(startServer(a, r, constantCommand), front(ctx, a, r, r.targets[0].addr))
		}},
		{Name: nameEnvoyFloor, Title: "the floor: a bare loop", extra: true, start: func(ctx context.Context, a *arena, r *running) error {
			return errors.Join(startServer(a, r, floorCommand), front(ctx, a, r, r.targets[0].addr))
		}},
		{Name: nameEnvoyOne, Title: "Keyward, one node", quick: true, start: func(ctx context.Context, a *arena, r *running) error {
			if _, err := startCluster(ctx, a, r, r.dir, "a"); err != nil {
				return err
			}
			return front(ctx, a, r, r.targets[0].addr)
		}},
		{Name: nameEnvoyDirect, Title: "Keyward, three nodes, owner-direct, mTLS", start: func(ctx context.Context, a *arena, r *running) error {
			return startOwnerDirect(ctx, a, r, false)
		}},
		{Name: nameEnvoyPlain, Title: "Keyward, three nodes, owner-direct, no TLS", start: func(ctx context.Context, a *arena, r *running) error {
			return startOwnerDirect(ctx, a, r, true)
		}},
		module(),
	}
	for i := range all {
		all[i].envoy = true
	}
	return all
}

// localFilter takes the place of Envoy's request: one token bucket for everybody, that is never empty. It knows no keys.
const localFilter = `          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: local
              token_bucket: {max_tokens: 4000000000, tokens_per_fill: 4000000000, fill_interval: 1s}
              filter_enabled: {default_value: {numerator: 100}}
              filter_enforced: {default_value: {numerator: 100}}
`

// request is how Envoy asks: a request that fails must not pass for an answer.
var limitArgs = []string{"--from", "route=header:x-route", "--from", "api_key=header:x-api-key", "--key", "api_key", "--failure-mode-deny", "--timeout", "1s"}

// startServer runs this program as one of its servers.
func startServer(a *arena, r *running, command string) error {
	addrs, err := r.addrs(1)
	if err != nil {
		return err
	}
	r.targets = []target{{addr: addrs[0]}}
	return r.process(lab.Spec{Name: command, Path: a.self, Args: []string{command, addrs[0]}})
}

// front puts an Envoy in front of a rate limit service.
func front(ctx context.Context, a *arena, r *running, service string) error {
	return startEnvoy(ctx, a, r, func(e *lab.EnvoyOptions) error {
		e.Shape, e.Args = "plain", append([]string{"--sidecar", service}, limitArgs...)
		return nil
	})
}

// startFiltered starts an Envoy with the others' configuration, in which filter replaces the rate limit filter.
func startFiltered(ctx context.Context, a *arena, r *running, filter string) error {
	return startEnvoy(ctx, a, r, func(e *lab.EnvoyOptions) error {
		dir := filepath.Join(r.dir, "rules")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "bench.yaml"), []byte(rules), 0o644)); err != nil {
			return err
		}
		args := []string{
			"envoy-config", "--shape", "plain", "--rules", dir, "--upstream", e.Upstream, "--listen", "127.0.0.1:1", "--envoy-admin", "127.0.0.1:2",
		}
		out, err := exec.Command(filepath.Join(a.bin, "keyward"), append(args, limitArgs...)...).Output()
		if err != nil {
			return fmt.Errorf("keyward envoy-config: %w", err)
		}
		e.Config, err = replaceFilter(string(out), filter)
		return err
	})
}

// replaceFilter replaces the rate limit filter of a configuration by filter. The lab fills in the addresses.
func replaceFilter(config, filter string) (string, error) {
	before, rest, ok1 := strings.Cut(config, "          - name: envoy.filters.http.ratelimit\n")
	const router = "          - name: envoy.filters.http.router\n"
	_, after, ok2 := strings.Cut(rest, router)
	if !ok1 || !ok2 {
		return "", errors.New("the configuration has no rate limit filter before its router")
	}
	return strings.NewReplacer(
		`{address: "127.0.0.1", port_value: 1}`, `{address: "@HOST@", port_value: @PORT@}`,
		`{address: "127.0.0.1", port_value: 2}`, `{address: "@ADMINHOST@", port_value: @ADMINPORT@}`,
	).Replace(before + filter + router + after), nil
}

// startOwnerDirect starts three members and an Envoy that asks each key's owner, as is recommended.
func startOwnerDirect(ctx context.Context, a *arena, r *running, plain bool) error {
	l, err := newCluster(ctx, a, r, lab.Options{Dir: r.dir, Insecure: plain}, "a", "b", "c")
	if err != nil {
		return err
	}
	return startEnvoy(ctx, a, r, func(e *lab.EnvoyOptions) error {
		e.Shape, e.XDS, e.Args = "owner-direct", l.Sidecars[0].XDS, limitArgs
		return nil
	})
}

// startEnvoy starts an Envoy of one worker and the application behind it; r is asked through it from then on.
func startEnvoy(ctx context.Context, a *arena, r *running, configure func(e *lab.EnvoyOptions) error) error {
	addrs, err := r.addrs(1)
	if err != nil {
		return err
	}
	app, err := lab.StartProcess(r.dir, lab.Spec{Name: upstreamCommand, Path: a.self, Args: []string{upstreamCommand, addrs[0]}})
	if err != nil {
		return err
	}
	r.others = append(r.others, app)
	if len(r.labs) == 0 {
		l, err := lab.New(lab.Options{Dir: r.dir, Bin: a.bin, Insecure: true, Rules: map[string]string{"bench.yaml": rules}})
		if err != nil {
			return err
		}
		s := &lab.Sidecar{Runtime: filepath.Join(r.dir, "runtime")} // none that runs: where the rules are
		if err := l.WriteRules(s, l.Rules); err != nil {
			return err
		}
		r.labs, l.Sidecars = append(r.labs, l), append(l.Sidecars, s)
	}
	o := lab.EnvoyOptions{Name: "envoy", Path: a.envoy, Upstream: addrs[0], Concurrency: a.workers}
	if err := configure(&o); err != nil {
		return err
	}
	e, err := r.labs[0].AddEnvoy(o)
	if err != nil {
		return err
	}
	if err := ready(ctx, e, o.Shape); err != nil {
		return err
	}
	r.proxies = append(r.proxies, e.Process)
	r.targets, r.service, r.calls, r.blind = []target{{addr: e.Listener}}, loadtest.HTTP("/"), a.envoyCalls(), true
	return nil
}

func ready(ctx context.Context, e *lab.Envoy, shape string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if shape == "owner-direct" {
		return e.Await(ctx, "keyward", 3)
	}
	return e.Await(ctx, "upstream", 1)
}

// envoyCalls are requests of users, as frequent as -zipf says.
func (a *arena) envoyCalls() []loadtest.LoadCall {
	if a.zipf > 0 {
		return zipfCalls(a.keys, a.zipf)
	}
	return envoyCalls(a.keys)
}

// envoyCalls are requests of users.
func envoyCalls(keys int) []loadtest.LoadCall {
	calls := make([]loadtest.LoadCall, keys)
	for i := range calls {
		calls[i].Headers = []hpack.HeaderField{{Name: "x-route", Value: "search"}, {Name: "x-api-key", Value: keyName(i)}}
	}
	return calls
}

// findEnvoy is the Envoy to use: the one that is named, or that the repository's script finds or downloads. Without one, why.
func findEnvoy(named string) (path, why string) {
	if named == "" {
		out, err := exec.Command("../scripts/envoy").Output()
		if err != nil {
			return "", "scripts/envoy finds none"
		}
		named = strings.TrimSpace(string(out))
	}
	path, err := exec.LookPath(named)
	if err != nil {
		return "", err.Error()
	}
	path, err = filepath.Abs(path)
	if err != nil {
		return "", err.Error()
	}
	return path, ""
}
