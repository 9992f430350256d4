package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/keyward/keyward/internal/lab"
)

const holdsPage = "../../docs/holds-api.md"

// chapter is a chapter of a page with its blocks of code, by language; "" are outputs.
type chapter struct {
	name, text string
}

var codeBlock = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// block returns the chapter's only block of a language.
func (c chapter) block(t *testing.T, language string) string {
	t.Helper()
	var found []string
	for _, m := range codeBlock.FindAllStringSubmatch(c.text, -1) {
		if m[1] == language {
			found = append(found, m[2])
		}
	}
	if len(found) != 1 {
		t.Fatalf("chapter %s has %d blocks of %q", c.name, len(found), language)
	}
	return found[0]
}

func chapterOf(t *testing.T, page, name string) chapter {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, text, ok := strings.Cut(string(b), "\n## "+name+"\n")
	if !ok {
		t.Fatalf("%s has no chapter %s", page, name)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	return chapter{name, text}
}

// TestHoldsPage runs the programs of the manual as they are printed, against a real member.
func TestHoldsPage(t *testing.T) {
	yaml := chapterOf(t, holdsPage, "Rules").block(t, "yaml")
	for name, run := range map[string]func(t *testing.T, dir string) (got, want string){
		"Python":     runPagePython,
		"JavaScript": runPageJavaScript,
		"HTTP":       runPageHTTP,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": yaml}, Expect: 1})
			start(t, l, "pod-a")
			dir := t.TempDir()
			t.Log(l.Sidecars[0])
			env := []string{"KEYWARD_GRPC=" + l.Sidecars[0].RLS, "KEYWARD_HTTP=" + l.Sidecars[0].HTTP}
			if err := os.WriteFile(filepath.Join(dir, "env"), []byte(strings.Join(env, "\n")), 0o600); err != nil {
				t.Fatal(err)
			}
			if got, want := run(t, dir); got != want {
				t.Errorf("the program prints\n%s\nand not\n%s", got, want)
			}
		})
	}
}

// output runs a program in dir with the environment that TestHoldsPage has written there.
func output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	env, err := os.ReadFile(filepath.Join(dir, "env"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), strings.Split(string(env), "\n")...)
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", name, err, out, complaints.String())
	}
	return string(out)
}

func runPagePython(t *testing.T, dir string) (got, want string) {
	interpreter := python(t)
	if exec.Command(interpreter, "-c", "import grpc_tools").Run() != nil {
		if os.Getenv("KEYWARD_PYTHON") != "" {
			t.Fatalf("%s has no grpcio-tools", interpreter)
		}
		t.Skip("no Python with grpcio-tools: scripts/python prepares it")
	}
	c := chapterOf(t, holdsPage, "Python")
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(root, "envoy"), filepath.Join(dir, "envoy")); err != nil {
		t.Fatal(err)
	}
	output(t, dir, "sh", "-ec", strings.Replace(c.block(t, "sh"), "python3", interpreter, 1))
	return output(t, dir, interpreter, "-c", c.block(t, "python")), c.block(t, "")
}

func runPageJavaScript(t *testing.T, dir string) (got, want string) {
	c := chapterOf(t, holdsPage, "JavaScript")
	program(t, "node")
	file := filepath.Join(dir, "holds.mjs")
	if err := os.WriteFile(file, []byte(c.block(t, "js")), 0o600); err != nil {
		t.Fatal(err)
	}
	return output(t, dir, "node", file), c.block(t, "")
}

func runPageHTTP(t *testing.T, dir string) (got, want string) {
	program(t, "curl")
	out := output(t, dir, "sh", "-ec", chapterOf(t, holdsPage, "HTTP").block(t, "sh"))
	if !strings.Contains(strings.ReplaceAll(out, " ", ""), `"admitted":true,"id":"job-17"`) {
		return out, "an answer with the hold"
	}
	return "", ""
}

// program skips the test if a program is missing.
func program(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		t.Skip(err)
	}
}
