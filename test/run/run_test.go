package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

const printed = `=== RUN   TestOne
    one_test.go:3: first
=== PAUSE TestOne
=== RUN   TestTwo
=== CONT  TestOne
    one_test.go:4: second
--- FAIL: TestOne (1.50s)
    --- FAIL: TestOne/sub (0.10s)
--- PASS: TestTwo (0.25s)
=== RUN   TestThree
    three_test.go:9: no browser
--- SKIP: TestThree (0.00s)
FAIL
FAIL	example.com/one	2.000s
=== RUN   TestOne
--- PASS: TestOne (0.00s)
PASS
ok  	example.com/two	0.100s
=== RUN   TestEndless
    four_test.go:1: going
panic: it ended
`

func TestParser(t *testing.T) {
	p := newParser()
	for _, line := range strings.Split(strings.TrimSuffix(printed, "\n"), "\n") {
		p.line(line)
	}
	want := []result{
		{"example.com/one", "TestOne", "FAIL", 1500 * time.Millisecond, "    one_test.go:3: first\n    one_test.go:4: second\n    --- FAIL: TestOne/sub (0.10s)\n"},
		{"example.com/one", "TestTwo", "PASS", 250 * time.Millisecond, ""},
		{"example.com/one", "TestThree", "SKIP", 0, "    three_test.go:9: no browser\n"},
		{"example.com/two", "TestOne", "PASS", 0, ""},
	}
	if !slices.Equal(p.results, want) {
		t.Errorf("results:\n%+v\nwant\n%+v", p.results, want)
	}
	if got := p.results[2].reason(); got != "no browser" {
		t.Errorf("reason %q", got)
	}
	u := p.unfinished()
	if len(u) != 1 || u[0].name != "TestEndless" || !strings.Contains(u[0].output, "panic: it ended") {
		t.Errorf("unfinished: %+v", u)
	}
}

// play runs stages of shell scripts and returns the output.
func play(t *testing.T, require bool, stages ...*stage) (*queue, string) {
	t.Helper()
	t.Chdir(t.TempDir())
	dir, err := repositoryOf(t)
	if err != nil {
		t.Fatal(err)
	}
	m, err := newMachine(dir, false, require)
	if err != nil {
		t.Fatal(err)
	}
	m.match = regexp.MustCompile("")
	needs["nothing"] = need{have: func() bool { return false }, bring: "bring nothing"}
	t.Cleanup(func() { delete(needs, "nothing") })
	var out bytes.Buffer
	q := newQueue(m, stages, 2, &out)
	q.run(t.Context())
	q.report()
	return q, out.String()
}

func repositoryOf(t *testing.T) (string, error) {
	t.Helper()
	if err := os.WriteFile("arch_test.go", nil, 0o644); err != nil {
		return "", err
	}
	return repository()
}

func scripts(load float64, texts ...string) func(context.Context, *machine) ([]*job, error) {
	return func(context.Context, *machine) (jobs []*job, err error) {
		for i, text := range texts {
			jobs = append(jobs, &job{name: string(rune('a' + i)), args: []string{"sh", "-c", text}, load: load})
		}
		return jobs, nil
	}
}

func TestQueue(t *testing.T) {
	print := func(text string) string { return "printf '" + strings.ReplaceAll(text, "\n", `\n`) + "'" }
	q, out := play(t, false,
		&stage{name: "good", budget: time.Hour, after: []string{"lacking"}, jobs: scripts(1, print("=== RUN   TestA\n--- PASS: TestA (0.10s)\n"), "true")},
		&stage{name: "bad", budget: time.Hour, jobs: scripts(1, print("=== RUN   TestB\n    b_test.go:1: the cause\n--- FAIL: TestB (0.00s)\n")+"; exit 1")},
		&stage{name: "lacking", budget: time.Hour, needs: []string{"nothing"}, jobs: scripts(1, "echo never")},
		&stage{name: "slow", jobs: scripts(1, "true")},
	)
	if got := q.failed(); !slices.Equal(got, []string{"bad"}) {
		t.Errorf("failed: %v", got)
	}
	for _, want := range []string{"b_test.go:1: the cause", "   OVER ITS BUDGET of 0:00", "this machine lacks nothing", "bring nothing", "\n3 passed, 1 failed, 1 skipped\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("not printed: %q\n%s", want, out)
		}
	}
	if q, _ := play(t, true, &stage{name: "lacking", needs: []string{"nothing"}}); len(q.failed()) != 1 {
		t.Error("a skipped stage passed, though everything is required")
	}
}

// Jobs share the processors by their loads. One idle job runs in addition, and a job that is alone runs without others.
func TestFits(t *testing.T) {
	q := newQueue(&machine{}, nil, 2, nil)
	run := func(jobs ...*job) {
		q.active = map[*job]time.Time{}
		for _, j := range jobs {
			q.active[j] = time.Now()
		}
	}
	half, full, idle, alone := &job{load: 0.5}, &job{load: 2}, &job{idle: true}, &job{load: 2, alone: true}
	for _, tt := range []struct {
		running []*job
		next    *job
		fits    bool
	}{
		{nil, full, true}, {nil, alone, true}, {nil, &job{load: 9}, true},
		{[]*job{half, {load: 1.5}}, half, false}, {[]*job{half, {load: 1}}, half, true},
		{[]*job{full}, idle, true}, {[]*job{full, idle}, &job{idle: true}, false}, {[]*job{idle}, full, true},
		{[]*job{idle}, alone, true}, {[]*job{half}, alone, false}, {[]*job{alone}, idle, false},
	} {
		if run(tt.running...); q.fits(tt.next) != tt.fits {
			t.Errorf("%+v next to %+v: want %v", tt.next, tt.running, tt.fits)
		}
	}
}

// Jobs start by their loads, so that those with a high one do not wait until all others have ended.
func TestOrderOfJobs(t *testing.T) {
	jobs := []*job{{name: "a", load: 0.25}, {name: "b", load: 0.5}, {name: "TestRegions", load: 0.5}, {name: "c", load: 1}, {name: "TestDemo", load: 0.25}, {name: "d", load: 0.5, alone: true}}
	slices.SortStableFunc(jobs, byLoad)
	var order []string
	for _, j := range jobs {
		order = append(order, j.name)
	}
	if want := []string{"d", "c", "TestRegions", "b", "TestDemo", "a"}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

// While a job runs alone, an idle job is paused.
func TestIdleJobIsPaused(t *testing.T) {
	beats := filepath.Join(t.TempDir(), "beats")
	idle := func(context.Context, *machine) ([]*job, error) {
		return []*job{{idle: true, args: []string{"sh", "-c", "while [ ! -e " + beats + ".end ]; do echo >> " + beats + "; sleep 0.01; done"}}}, nil
	}
	apart := func(context.Context, *machine) ([]*job, error) {
		script := "until [ -s " + beats + " ]; do sleep 0.01; done; sleep 0.1; wc -c < " + beats + " > " + beats + ".one; sleep 0.3; wc -c < " + beats + " > " + beats + ".two"
		return []*job{{alone: true, args: []string{"sh", "-c", script}}}, nil
	}
	last := scripts(1, "touch "+beats+".end")
	q, out := play(t, false, &stage{name: "idle", budget: time.Hour, jobs: idle}, &stage{name: "wait", budget: time.Hour, jobs: scripts(1, "until [ -s "+beats+" ]; do sleep 0.01; done")},
		&stage{name: "apart", budget: time.Hour, after: []string{"wait"}, jobs: apart}, &stage{name: "last", budget: time.Hour, after: []string{"apart"}, jobs: last})
	one, err := os.ReadFile(beats + ".one")
	two, _ := os.ReadFile(beats + ".two")
	if err != nil || !bytes.Equal(one, two) || len(q.failed()) > 0 {
		t.Errorf("the idle job went on from %s to %s beats (%v)\n%s", bytes.TrimSpace(one), bytes.TrimSpace(two), err, out)
	}
}

// What a job leaves running ends with it.
func TestLeftoversEnd(t *testing.T) {
	marker := filepath.Join(t.TempDir(), "marker")
	_, out := play(t, false, &stage{name: "one", budget: time.Hour, jobs: scripts(1, "sleep 60 > /dev/null 2>&1 & echo $! > "+marker)})
	pid, err := os.ReadFile(marker)
	if err != nil {
		t.Fatal(err, out)
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		b, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		if err != nil || bytes.Contains(b, []byte(") Z ")) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %s", b)
		}
		time.Sleep(time.Millisecond)
	}
}

// Every stage names needs and stages that exist, and the tables of loads name tests that exist.
func TestSuites(t *testing.T) {
	for name, stages := range suites {
		var names []string
		for _, s := range stages() {
			names = append(names, s.name)
		}
		for _, s := range stages() {
			for _, n := range slices.Concat(s.needs, s.wants) {
				if _, ok := needs[n]; !ok {
					t.Errorf("%s: %s needs %s, which is not known", name, s.name, n)
				}
			}
			for _, a := range s.after {
				if !slices.Contains(names, a) {
					t.Errorf("%s: %s comes after %s, which is no stage", name, s.name, a)
				}
			}
			if s.about == "" || s.budget == 0 {
				t.Errorf("%s: %s has no description or no budget", name, s.name)
			}
		}
	}
	if _, err := choose("test", "e2e,nonsense"); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("a stage that is not there: %v", err)
	}
	if _, err := choose("nonsense", ""); err == nil {
		t.Error("a suite that is not there was taken")
	}
	if err := known([]string{"TestSoak"}); err == nil || !strings.Contains(err.Error(), "TestHotKey,") {
		t.Errorf("tests that are not there: %v", err)
	}
}
