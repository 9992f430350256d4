package main

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suites returns the suites. Budgets are for two processors with a warm build cache.
var suites = map[string]func() []*stage{"quick": quick, "test": whole, "deep": deep}

// quick is the suite that answers within three minutes whether the parts work together.
func quick() []*stage {
	return []*stage{
		machineStage(quickTests), buildStage(),
		{name: "lint", about: "formatting, vet, tidiness, golangci-lint", budget: time.Minute, jobs: command(2, "make", "-s", "lint")},
		{name: "unit", about: "unit tests without the race detector, short", budget: 2 * time.Minute, jobs: quickUnit},
		{name: "e2e", about: "one real Envoy, one cluster", budget: time.Minute, after: []string{"machine", "build"}, wants: []string{"ip"}, jobs: endToEnd(quickTests)},
	}
}

// quickTests lists the end-to-end tests of quick.
var quickTests = []string{"TestOwnerDirect", "TestExactPerSecond"}

// whole is the suite of everything that must pass before a change lands.
func whole() []*stage {
	return []*stage{
		machineStage(nil), buildStage(),
		{name: "unit", about: "unit, property and conformance tests with the race detector", budget: 4 * time.Minute, jobs: unit},
		{
			name: "e2e", about: "real processes, real Envoys, mTLS", budget: 8 * time.Minute, after: []string{"machine", "build", "unit", "lint"}, // without the stages that only compute: they would disturb its measurements
			wants: []string{"root", "ip", "iptables", "redis", "postgres", "venv", "node", "npm", "curl"}, jobs: endToEnd(nil),
		},
		{name: "rlqs", about: "Envoy's client of quotas, three releases", budget: time.Minute, after: []string{"machine", "e2e"}, jobs: quotas(nil)},
		{name: "module", about: "the dynamic module, four releases of Envoy", budget: 2 * time.Minute, after: []string{"machine", "build", "e2e"}, needs: []string{"cargo"}, jobs: dynamicModule(nil)},
		{name: "walk", about: "what the manual says, command by command", budget: time.Minute, after: []string{"e2e"}, needs: []string{"redis"}, jobs: walk},
		{name: "page", about: "the page of a real cluster in Chromium", budget: 2 * time.Minute, after: []string{"e2e"}, needs: []string{"chromium"}, jobs: pageTests},
		{
			name: "boards", about: "dashboards and alerts: Grafana's schema, promtool, a real cluster's Prometheus", budget: 3 * time.Minute, after: []string{"e2e"},
			needs: []string{"prometheus", "npm"}, jobs: boards,
		},
		{
			name: "kube", about: "the chart on a real Kubernetes of one node", budget: 5 * time.Minute, after: []string{"kube-build", "e2e"}, needs: kubeNeeds,
			jobs: kube,
		},
		{
			name: "gateways", about: "control planes of real gateways", budget: 2 * time.Minute, after: []string{"build", "gateways-build", "e2e"}, needs: []string{"root", "ip"},
			jobs: gateways,
		},
		{name: "gateways-build", about: "the control planes of gateways: once for a version", budget: 10 * time.Second, after: []string{"machine", "e2e"}, jobs: idly(command(1, "scripts/gateways", "build"))},
		{name: "kube-build", about: "a Kubernetes, Helm 3 and 4: once for a version", budget: 10 * time.Second, after: []string{"machine", "e2e"}, jobs: idly(command(1, "test/kube/tools/build"))},
		{name: "lint", about: "formatting, vet, tidiness, golangci-lint", budget: 2 * time.Minute, jobs: idly(command(1, "make", "-s", "lint"))},
		{name: "search", about: "searches by one goroutine, without the race detector", after: []string{"e2e"}, wants: []string{"java", "mvn"}, budget: 3 * time.Minute, jobs: idly(search)},
		{
			name: "stores", about: "coordinators of federations: real Redis and PostgreSQL servers", after: []string{"machine", "e2e"}, budget: 2 * time.Minute,
			needs: []string{"redis", "postgres"}, jobs: idly(stores),
		},
		{name: "sim", about: "whole clusters in virtual time", after: []string{"e2e"}, budget: 5 * time.Minute, jobs: idly(sim)},
		{name: "chart", about: "the Helm chart, with Helm 3 and 4", budget: 2 * time.Minute, after: []string{"kube-build"}, jobs: idly(chart)},
		{name: "bench", about: "the benchmarks' own tests", budget: time.Minute, after: []string{"build", "e2e"}, jobs: idly(bench)},
		{name: "release", about: "known vulnerabilities; two builds of the sidecar with the same bytes; what makes releases", after: []string{"e2e"}, budget: 4 * time.Minute, jobs: idly(release)},
	}
}

var kubeNeeds = []string{"root", "python3", "containerd", "runc", "etcd", "cni", "iptables", "ip", "nsenter"}

// machineStage installs the Debian packages, Go modules, Envoys and Python packages that the stages need.
func machineStage(tests []string) *stage {
	return &stage{name: "machine", about: "packages, Go modules, Envoys", budget: 20 * time.Second, jobs: func(_ context.Context, m *machine) ([]*job, error) {
		var jobs []*job
		if packages := missingPackages(m.stages); len(packages) > 0 {
			if args, err := m.installer(packages); err == nil {
				jobs = append(jobs, &job{name: "packages", args: args, optional: true})
			}
		}
		versions, modules := []string{envoyVersion}, []string{"."}
		if tests == nil {
			versions = append(versions, envoy136, envoy138, envoy139)
			modules = append(modules, "bench", "test/page", "test/kube/tools", "test/gateways/tools/envoy-gateway", "tools/release")
			jobs = append(jobs, &job{name: "original", args: []string{"scripts/original"}})
		}
		for _, dir := range modules {
			jobs = append(jobs, &job{name: "modules " + dir, args: []string{"go", "mod", "download"}, dir: dir})
		}
		for _, v := range versions {
			jobs = append(jobs, &job{name: "envoy " + v, args: []string{"scripts/envoy", v}})
		}
		return jobs, nil
	}}
}

const envoyVersion, envoy136, envoy138, envoy139 = "1.40.0", "1.36.4", "1.38.3", "1.39.3"

// program of the end-to-end tests, compiled once.
const endToEndProgram = ".cache/test/e2e.test"

func buildStage() *stage {
	return &stage{name: "build", about: "the programs, and the program of the end-to-end tests", budget: 20 * time.Second, jobs: func(context.Context, *machine) ([]*job, error) {
		return []*job{
			{name: "programs", args: []string{"make", "-s", "build"}, load: 1},
			{name: "e2e", args: []string{"go", "test", "-c", "-o", endToEndProgram, "./test/e2e"}, load: 1},
		}, nil
	}}
}

// packages returns the module's packages, except those of other stages.
func (m *machine) packages(ctx context.Context) ([]string, error) {
	text, err := m.output(ctx, "go", "list", "./...")
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(strings.Fields(text), func(p string) bool {
		return slices.ContainsFunc([]string{"/test/e2e", "/test/sim", "/test/kube", "/test/gateways", "/test/rlqs", "/test/module", "/charts", "/dashboards", "/federation/redis", "/federation/postgres", "/federation/remote"}, func(dir string) bool { return strings.HasSuffix(p, dir) })
	}), nil
}

func unit(ctx context.Context, m *machine) ([]*job, error) {
	packages, err := m.packages(ctx)
	if err != nil {
		return nil, err
	}
	args := append([]string{"go", "test", "-race", "-v", "-count=1", "-p", "4", "-timeout", "15m"}, packages...)
	return []*job{{args: args, env: []string{"CGO_ENABLED=1"}, load: 2}}, nil
}

func quickUnit(ctx context.Context, m *machine) ([]*job, error) {
	packages, err := m.packages(ctx)
	if err != nil {
		return nil, err
	}
	return []*job{{args: append([]string{"go", "test", "-short", "-v", "-p", "4", "-timeout", "10m"}, packages...), load: 2}}, nil
}

// stores runs the tests of the coordinators that keep their accounts in a server, or speak to one.
func stores(context.Context, *machine) ([]*job, error) {
	return []*job{{
		args: []string{"go", "test", "-race", "-v", "-count=1", "-timeout", "10m", "./federation/redis", "./federation/postgres", "./federation/remote"},
		env:  []string{"CGO_ENABLED=1", "KEYWARD_REDIS=required", "KEYWARD_POSTGRES=required"},
	}}, nil
}

// search runs the tests of the files *_norace_test.go, which are built without the race detector alone.
func search(ctx context.Context, m *machine) ([]*job, error) {
	text, err := m.output(ctx, "git", "ls-files", "--cached", "--others", "--exclude-standard", "*_norace_test.go")
	if err != nil {
		return nil, err
	}
	var packages, tests []string
	for _, path := range strings.Fields(text) {
		if strings.HasPrefix(path, "charts/") || strings.HasPrefix(path, "bench/") {
			continue // the stages chart and bench run all of them
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for _, f := range testFunc.FindAllSubmatch(source, -1) {
			tests = append(tests, string(f[1]))
		}
		packages = append(packages, "./"+filepath.Dir(path))
	}
	slices.Sort(packages)
	args := []string{"go", "test", "-v", "-count=1", "-timeout", "15m", "-run", "^(" + strings.Join(tests, "|") + ")$"}
	return []*job{{args: append(args, slices.Compact(packages)...)}}, nil
}

var testFunc = regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)

func sim(context.Context, *machine) ([]*job, error) {
	return []*job{{args: []string{"go", "test", "-v", "-count=1", "-timeout", "30m", "./test/sim/..."}}}, nil
}

func bench(context.Context, *machine) ([]*job, error) {
	return []*job{
		{name: "vet", args: []string{"go", "vet", "./..."}, dir: "bench"},
		{name: "tests", args: []string{"go", "test", "-v", "-count=1", "./..."}, dir: "bench"},
	}, nil
}

func release(context.Context, *machine) ([]*job, error) {
	return []*job{{name: "vuln", args: []string{"make", "-s", "vuln"}}, {name: "reproduce", args: []string{"make", "-s", "reproduce"}}, {name: "tools", args: []string{"go", "test", "-v", "-count=1", "./..."}, dir: "tools/release"}}, nil
}

// chart renders the chart with the Helm binaries of the stage kube-build.
func chart(ctx context.Context, m *machine) ([]*job, error) {
	dir, err := m.output(ctx, "test/kube/tools/build", "path")
	if err != nil {
		return nil, err
	}
	return []*job{{args: []string{"go", "test", "-v", "-count=1", "-skip", "TestDefinitions", "./charts"}, env: []string{"KEYWARD_HELM=" + dir}}}, nil
}

func pageTests(context.Context, *machine) ([]*job, error) {
	args := []string{"go", "test", "-count=1", "-timeout", "5m", "-v"}
	if os.Getenv("KEYWARD_SHOTS") == "" {
		args = append(args, "-skip", "TestPictures")
	}
	return []*job{{args: append(args, "./..."), dir: "test/page", load: 1, env: []string{"KEYWARD_BROWSER=required"}}}, nil
}

func boards(ctx context.Context, m *machine) ([]*job, error) {
	envoy, err := m.output(ctx, "scripts/envoy", envoyVersion)
	return []*job{{
		args: []string{"go", "test", "-count=1", "-timeout", "10m", "-v", "./dashboards/..."}, load: 0.5, env: []string{"KEYWARD_BOARDS=required", "ENVOY_BIN=" + envoy},
	}}, err
}

func kube(context.Context, *machine) ([]*job, error) {
	return []*job{{args: []string{"scripts/kube"}, load: 1, env: []string{"KEYWARD_KUBE=required"}}}, nil
}

func gateways(context.Context, *machine) ([]*job, error) {
	return []*job{{args: []string{"scripts/gateways"}, load: 1}}, nil
}

// quotas runs the tests of Envoy's RLQS client with all its releases.
func quotas(env []string) func(context.Context, *machine) ([]*job, error) {
	return func(ctx context.Context, m *machine) ([]*job, error) {
		env := append([]string{"KEYWARD_RLQS=required"}, env...)
		for name, version := range map[string]string{"ENVOY_1_36": envoy136, "ENVOY_1_38": envoy138, "ENVOY_BIN": envoyVersion} {
			path, err := m.output(ctx, "scripts/envoy", version)
			if err != nil {
				return nil, err
			}
			env = append(env, name+"="+path)
		}
		return []*job{{args: []string{"go", "test", "-v", "-count=1", "-timeout", "20m", "./test/rlqs"}, env: env, load: 2}}, nil
	}
}

// dynamicModule builds the dynamic module and runs its tests, and those with all its Envoys.
func dynamicModule(env []string) func(context.Context, *machine) ([]*job, error) {
	return func(ctx context.Context, m *machine) ([]*job, error) {
		args := []string{"go", "test", "-v", "-count=1", "-timeout", "30m", "-skip", "TestCost|TestUpgrade", "./test/module"}
		if len(env) == 0 {
			args[len(args)-2] = "TestCost|TestUpgrade|TestRestarts" // needs a minute
		}
		env := append([]string{"KEYWARD_MODULE=required"}, env...)
		for name, args := range map[string][]string{
			"ENVOY_1_36": {"scripts/envoy", envoy136}, "ENVOY_1_38": {"scripts/envoy", envoy138}, "ENVOY_1_39": {"scripts/envoy", envoy139},
			"ENVOY_BIN": {"scripts/envoy", envoyVersion}, "KEYWARD_MODULES": {"scripts/module", "all"},
		} {
			path, err := m.output(ctx, args...)
			if err != nil {
				return nil, err
			}
			env = append(env, name+"="+path)
		}
		return []*job{
			{name: "Envoys", args: args, env: env, load: 2},
			{name: "crate", args: []string{"scripts/module", "test"}, env: env, load: 1},
		}, nil
	}
}

func walk(context.Context, *machine) ([]*job, error) {
	return []*job{
		{name: "quickstart", args: []string{"go", "run", "./test/walk", "docs/quickstart.md", "On this machine"}, load: 0.5, apart: true},
		{name: "migration", args: []string{"go", "run", "./test/walk", "docs/migration.md"}, load: 0.5, apart: true},
	}, nil
}

// endToEnd has one job for each test, those with the highest load first.
func endToEnd(only []string) func(context.Context, *machine) ([]*job, error) {
	return func(ctx context.Context, m *machine) ([]*job, error) {
		env, err := m.endToEndEnv(ctx, only == nil)
		if err != nil {
			return nil, err
		}
		names, err := m.output(ctx, endToEndProgram, "-test.list", "^Test")
		if err != nil {
			return nil, err
		}
		all := strings.Fields(names)
		if err := known(all); err != nil {
			return nil, err
		}
		var jobs []*job
		for _, name := range all {
			if deepTests[name] || only != nil && !slices.Contains(only, name) || !m.match.MatchString(name) {
				continue
			}
			jobs = append(jobs, &job{
				name: name, args: []string{m.root + "/" + endToEndProgram, "-test.v", "-test.timeout", "8m", "-test.run", "^" + name + "$"},
				dir: "test/e2e", env: env, load: loadOf(name), alone: alone[name], apart: true,
			})
		}
		slices.SortStableFunc(jobs, byLoad)
		return jobs, nil
	}
}

// endToEndEnv sets the paths of the Envoys, and of Python if all tests must run.
func (m *machine) endToEndEnv(ctx context.Context, all bool) ([]string, error) {
	commands := map[string][]string{"ENVOY_BIN": {"scripts/envoy", envoyVersion}}
	if all {
		maps.Copy(commands, map[string][]string{"ENVOY_1_36": {"scripts/envoy", envoy136}, "ENVOY_1_38": {"scripts/envoy", envoy138}, "KEYWARD_ORIGINAL": {"scripts/original"}})
		if why, _ := m.lacking([]string{"python3", "venv"}); why == "" {
			commands["KEYWARD_PYTHON"] = []string{"scripts/python"}
		}
		if why, _ := m.lacking([]string{"node", "npm"}); why == "" {
			commands["KEYWARD_TYPESCRIPT"] = []string{"scripts/typescript"}
		}
	}
	var env []string
	for need, name := range map[string]string{"redis": "KEYWARD_REDIS", "postgres": "KEYWARD_POSTGRES"} {
		if why, _ := m.lacking([]string{need}); why == "" {
			env = append(env, name+"=required")
		}
	}
	for name, args := range commands {
		path, err := m.output(ctx, args...)
		if err != nil {
			return nil, err
		}
		env = append(env, name+"="+path)
	}
	return env, nil
}

// worlds are the kinds of virtual clusters besides the usual one: options of the simulator.
var worlds = []struct{ kind, about string }{
	{"leases", "leases"},
	{"full", "tables too small for their keys"},
	{"still", "machines that stop"},
	{"closed", "fail_closed rules"},
	{"detection", "other detection times"},
	{"ring", "rings of the user's own"},
	{"choices", "rules that choose their policies"},
	{"fair", "rules that divide their limits between tenants"},
	{"reclaim", "leases of failed holders lent again"},
	{"zones", "zones that fail"},
	{"durable", "journals, disks that fail, and crashes of all members"},
	{"holds", "holds that are settled, lapse and move with their keys"},
	{"quota", "Envoys that spend parts of a limit without calls"},
	{"federation", "several regions, whose links, coordinators and clocks fail"},
}

// deep is the suite of tests that take hours and are started manually.
func deep() []*stage {
	stages := []*stage{machineStage(nil), buildStage(),
		{name: "seeds", about: "100,000 clusters in virtual time", budget: time.Hour, jobs: command(2, "go", "run", "./test/sim/main", "-seeds", "100000", "-all")},
	}
	for _, w := range worlds {
		stages = append(stages, &stage{name: w.kind, about: "20,000 clusters in virtual time, with " + w.about, budget: time.Hour,
			jobs: command(2, "go", "run", "./test/sim/main", "-seeds", "20000", "-"+w.kind, "-all")})
	}
	return append(stages,
		&stage{name: "race", about: "the simulator with the race detector", budget: 20 * time.Minute, jobs: race},
		&stage{name: "memory", about: "tables of ten million keys", budget: 10 * time.Minute, jobs: memory},
		&stage{name: "rlqs", about: "Envoy's client of quotas, three releases, with more repetitions", budget: 5 * time.Minute, after: []string{"machine"}, jobs: quotas([]string{"KEYWARD_LONG=1"})},
		&stage{name: "module", about: "the dynamic module: a million corrupt segments, ten million requests", budget: 10 * time.Minute, after: []string{"machine", "build"}, needs: []string{"cargo"},
			jobs: dynamicModule([]string{"KEYWARD_LONG=1", "KEYWARD_SEGMENTS=1000000", "KEYWARD_REQUESTS=10000000"})},
		&stage{name: "soak", about: "twenty rounds of rolling updates, hot keys of five members, half an hour of faults", budget: 90 * time.Minute, after: []string{"build"}, jobs: command(2, "make", "-s", "soak")},
		&stage{name: "upgrade", about: "members of the former version replaced by those of this one and back: calls, RLQS, the module", budget: 20 * time.Minute, after: []string{"build"}, jobs: command(2, "make", "-s", "upgrade")},
		&stage{name: "figures", about: "what three regions reach, with windows of ten seconds and a minute", budget: 20 * time.Minute, after: []string{"build"}, needs: []string{"redis"}, jobs: command(2, "make", "-s", "figures")},
		&stage{name: "fuzz", about: "every fuzz target for five minutes", budget: 3 * time.Hour, jobs: command(2, "make", "-s", "fuzz", "FUZZTIME=5m")},
	)
}

func race(context.Context, *machine) ([]*job, error) {
	return []*job{{args: []string{"go", "test", "-race", "-v", "-count=1", "-timeout", "2h", "./test/sim/..."}, env: []string{"CGO_ENABLED=1", "KEYWARD_SEEDS=600"}, load: 2}}, nil
}

func memory(context.Context, *machine) ([]*job, error) {
	return []*job{{args: []string{"go", "test", "-v", "-count=1", "-timeout", "1h", "-run", "Memory", "./owner"}, env: []string{"KEYWARD_LONG=1"}, load: 2}}, nil
}
