package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

const sigCont = syscall.SIGCONT

// Envoy is a running Envoy.
type Envoy struct {
	*Process
	Listener, Admin string
	Config          string // path of its bootstrap
}

// EnvoyOptions configures an Envoy: with the output of `keyward envoy-config` for Args, or with Config.
type EnvoyOptions struct {
	Name        string
	Path        string   // the binary
	Shape       string   // owner-direct, routes or plain
	XDS         string   // address of the xDS server
	Upstream    string   // address of the application behind it
	Args        []string // more arguments of `keyward envoy-config`
	Concurrency int      // worker threads; 0 means 1
	Env         []string // KEY=VALUE, additional environment
	Flags       []string // more flags of the program
	Config      string   // a complete bootstrap to use instead; @HOST@, @PORT@, @ADMINHOST@ and @ADMINPORT@ are replaced by its addresses
}

// AddEnvoy writes a bootstrap and starts an Envoy with it.
func (l *Lab) AddEnvoy(o EnvoyOptions) (*Envoy, error) {
	e := &Envoy{Config: l.path(o.Name + ".envoy.yaml")}
	if err := l.ports.fill(&e.Listener, &e.Admin); err != nil {
		return nil, err
	}
	host, port, _ := strings.Cut(e.Listener, ":")
	adminHost, adminPort, _ := strings.Cut(e.Admin, ":")
	text := strings.NewReplacer("@HOST@", host, "@PORT@", port, "@ADMINHOST@", adminHost, "@ADMINPORT@", adminPort).Replace(o.Config)
	if o.Config == "" {
		out, err := l.envoyConfig(e, o)
		if err != nil {
			return nil, err
		}
		text = out
	}
	if err := os.WriteFile(e.Config, []byte(text), 0o644); err != nil {
		return nil, fmt.Errorf("configure Envoy: %w", err)
	}
	p, err := StartProcess(l.path("log"), Spec{Name: o.Name, Path: o.Path, Env: o.Env, Args: append([]string{
		"--config-path", e.Config, "--disable-hot-restart", "--concurrency", strconv.Itoa(max(1, o.Concurrency)), "--log-level", "warning",
	}, o.Flags...)})
	if err != nil {
		return nil, err
	}
	e.Process = p
	l.Envoys = append(l.Envoys, e)
	return e, nil
}

// envoyConfig runs `keyward envoy-config`.
func (l *Lab) envoyConfig(e *Envoy, o EnvoyOptions) (string, error) {
	args := []string{
		"envoy-config", "--shape", o.Shape, "--rules", filepath.Join(l.Sidecars[0].Runtime, "ratelimit", "config"),
		"--listen", e.Listener, "--envoy-admin", e.Admin, "--upstream", o.Upstream, "--xds", o.XDS,
	}
	if !l.Insecure {
		args = append(args, "--tls-cert", l.CertFile("envoy", ".crt"), "--tls-key", l.CertFile("envoy", ".key"), "--tls-ca", l.CertFile("ca", ".crt"))
	}
	cmd := exec.Command(filepath.Join(l.Bin, "keyward"), append(args, o.Args...)...)
	var warnings strings.Builder
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("keyward %s: %w\n%s", strings.Join(cmd.Args[1:], " "), err, warnings.String())
	}
	return string(out), nil
}

// Await waits until Envoy is live and, if cluster is not empty, has that many healthy hosts in it.
func (e *Envoy) Await(ctx context.Context, cluster string, healthy int) error {
	return Await(ctx, fmt.Sprintf("%d healthy hosts in %s of %s", healthy, cluster, e.Name), func(ctx context.Context) error {
		if !e.Running() {
			return fmt.Errorf("%s has ended: %s", e.Name, e.Tail(2000))
		}
		if _, err := Get(ctx, "http://"+e.Admin+"/ready"); err != nil {
			return err
		}
		n, err := e.Stat(ctx, "cluster."+cluster+".membership_healthy")
		if err != nil {
			return err
		}
		if n != float64(healthy) {
			return fmt.Errorf("%v healthy hosts", n)
		}
		return nil
	})
}

// Stat returns one of Envoy's statistics, or 0 if Envoy has none of that name.
func (e *Envoy) Stat(ctx context.Context, name string) (float64, error) {
	body, err := Get(ctx, "http://"+e.Admin+"/stats?filter=^"+strings.ReplaceAll(regexp.QuoteMeta(name), `\`, "%5C")+"$")
	if err != nil {
		return 0, err
	}
	_, value, ok := strings.Cut(strings.TrimSpace(string(body)), ": ")
	if !ok {
		return 0, nil
	}
	return strconv.ParseFloat(value, 64)
}

// Requests returns the requests that Envoy has sent to each host of a cluster, by address, from its /clusters page.
func (e *Envoy) Requests(ctx context.Context, cluster string) (map[string]int, error) {
	body, err := Get(ctx, "http://"+e.Admin+"/clusters")
	if err != nil {
		return nil, err
	}
	sent := map[string]int{}
	for line := range strings.Lines(string(body)) {
		f := strings.Split(strings.TrimSpace(line), "::")
		if len(f) == 4 && f[0] == cluster && f[2] == "rq_total" {
			n, err := strconv.Atoi(f[3])
			if err != nil {
				return nil, fmt.Errorf("read /clusters: %q: %w", line, err)
			}
			sent[f[1]] = n
		}
	}
	return sent, nil
}
