package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/keyward/keyward/envoy/holds/client"
	pb "github.com/keyward/keyward/envoy/holds/keywardv1"
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
		"TypeScript": runPageTypeScript,
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

func runPageTypeScript(t *testing.T, dir string) (got, want string) {
	c := chapterOf(t, holdsPage, "TypeScript")
	program(t, "node")
	compiler := os.Getenv("KEYWARD_TYPESCRIPT")
	if compiler == "" {
		t.Skip("no TypeScript: KEYWARD_TYPESCRIPT names its compiler, scripts/typescript prepares it")
	}
	file := filepath.Join(dir, "holds.mts")
	if err := os.WriteFile(file, []byte(c.block(t, "ts")), 0o600); err != nil {
		t.Fatal(err)
	}
	types := filepath.Join(filepath.Dir(compiler), "..", "@types")
	output(t, dir, compiler, "--strict", "--target", "es2022", "--module", "nodenext", "--types", "node", "--typeRoots", types, file)
	return output(t, dir, "node", strings.TrimSuffix(file, ".mts")+".mjs"), c.block(t, "")
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

// TestHoldsOfSeveralMembers makes holds by one member, and reads and settles them by the others: each of them asks the
// owner of the key.
func TestHoldsOfSeveralMembers(t *testing.T) {
	yaml := chapterOf(t, holdsPage, "Rules").block(t, "yaml")
	l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": yaml}, Expect: 3})
	start(t, l, "pod-a", "pod-b", "pod-c")
	var members []*client.HoldClient
	for _, s := range l.Sidecars {
		conn, err := grpc.NewClient(s.RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		members = append(members, client.New(conn, "worker"))
	}
	for i := range 9 {
		tenant := client.Descriptor("tenant", fmt.Sprint("tenant-", i))
		expect := func(spent, held uint64) {
			t.Helper()
			for _, m := range members {
				u, err := m.Usage(t.Context(), "llm", tenant)
				if err != nil {
					t.Fatal(err)
				}
				if got := u[0]; got.GetSpent() != spent || got.GetHeld() != held || uint64(got.GetLeft()) != 1000-spent-held {
					t.Errorf("usage %v, want %d spent and %d held", got, spent, held)
				}
			}
		}
		h, err := members[i%3].Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: []*pb.Descriptor{tenant}, Hits: 600})
		if err != nil {
			t.Fatal(err)
		}
		expect(0, 600)
		if err := members[(i+1)%3].Find("llm", h.ID, tenant).Commit(t.Context(), 250); err != nil {
			t.Fatal(err)
		}
		expect(250, 0)
	}
}

// TestHoldsOfDeadCallers ends the only connection of a caller, which has slots at all members and no session.
func TestHoldsOfDeadCallers(t *testing.T) {
	yaml := chapterOf(t, holdsPage, "Rules").block(t, "yaml")
	l := newLab(t, lab.Options{Rules: map[string]string{"llm.yaml": yaml}, Expect: 3})
	start(t, l, "pod-a", "pod-b", "pod-c")
	dial := func(i int, caller string) (*client.HoldClient, *grpc.ClientConn) {
		conn, err := grpc.NewClient(l.Sidecars[i].RLS, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return client.New(conn, caller), conn
	}
	dying, conn := dial(0, "first")
	other, _ := dial(1, "second")
	for i := range 9 {
		stream := client.One("streams", fmt.Sprint("tenant-", i))
		for _, c := range []*client.HoldClient{dying, other} {
			if _, err := c.Reserve(t.Context(), client.Reserve{Domain: "llm", Descriptors: stream}); err != nil {
				t.Fatal(err)
			}
		}
	}
	conn.Close()
	for i := range 9 {
		tenant, held := client.Descriptor("streams", fmt.Sprint("tenant-", i)), uint64(2)
		for end := time.Now().Add(20 * time.Second); held != 1 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			u, err := other.Usage(t.Context(), "llm", tenant)
			if err != nil {
				t.Fatal(err)
			}
			held = u[0].GetHeld()
		}
		if held != 1 {
			t.Errorf("%d slots of tenant %d are held", held, i)
		}
	}
}
