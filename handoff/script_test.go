package handoff

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/ring"
)

var update = flag.Bool("update", false, "rewrite the expected output of testdata/*.txt")

// TestScripts runs the scripts in testdata. A script is a list of commands, each followed by "----" and its expected
// output; testdata/README.md describes the commands.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			old, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := runScript(t, string(old))
			if *update {
				err = os.WriteFile(file, []byte(got), 0o644)
			} else if got != string(old) {
				t.Errorf("%s: the output differs (run with -update and look at the diff); now:\n%s", file, got)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// runScript executes the commands of a script and returns it with their output.
func runScript(t *testing.T, text string) string {
	s := &script{t: t, rings: map[uint64]string{}}
	var out strings.Builder
	inOutput := false
	for line := range strings.Lines(text) {
		switch command, _, _ := strings.Cut(strings.TrimSpace(line), "#"); {
		case inOutput:
			inOutput = strings.TrimSpace(line) != ""
		case strings.TrimSpace(line) == "----":
			inOutput = true
		case command == "":
			out.WriteString(line)
		default:
			out.WriteString(line + "----\n" + s.run(strings.Fields(command)) + "\n")
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n"
}

// script is a cluster that is driven by commands.
type script struct {
	t     *testing.T
	c     *cluster
	out   strings.Builder
	keys  []sampleKey
	seen  map[string]string // the state that was printed last, by subject
	rings map[uint64]string // names of rings, by version
}

// sampleKey is a key that the script observes.
type sampleKey struct {
	name string
	hash uint64
}

// run executes one command and returns its output: the messages that it delivers and the changes that follow.
func (s *script) run(command []string) string {
	s.out.Reset()
	args := command[1:]
	switch command[0] {
	case "cluster":
		s.start(args)
	case "boot":
		s.c.boot(ring.ID(args[0]), stateOf(args[1]))
	case "state":
		s.c.states[ring.ID(args[0])] = stateOf(args[1])
	case "crash":
		delete(s.c.machines, ring.ID(args[0]))
	case "gone":
		delete(s.c.machines, ring.ID(args[0]))
		s.c.left = append(s.c.left, ring.ID(args[0]))
	case "nref":
		_, err := fmt.Sscan(args[0], &s.c.nref)
		s.check(err)
	case "cut":
		s.c.cut = func(from, to ring.ID) bool {
			return slices.Contains(args, string(from)) != slices.Contains(args, string(to))
		}
	case "heal":
		s.c.cut = nil
	case "adopt":
		s.adopt(args)
	case "split":
		s.c.takeOver(ids(args)...)
	case "deliver":
		s.deliver()
	case "transfer":
		s.transfer()
	case "run":
		s.advance(args[0])
	default:
		s.t.Fatalf("unknown command %q", command)
	}
	s.changes("")
	return s.out.String()
}

func (s *script) check(err error) {
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format, args...) }

// start boots a complete cluster of the members before "keys", and observes one key for each member: key a is the first
// one that member a owns in a ring of all the names.
func (s *script) start(names []string) {
	members, all, _ := cutAt(names, "keys")
	s.c = newCluster(s.t, ids(members)...)
	var on []ring.Member
	for _, name := range all {
		on = append(on, ring.Member{ID: ring.ID(name), Weight: 1})
	}
	r := ring.New(on)
	for _, name := range all {
		h := uint64(1)
		for string(r.At(r.Owner(h)).ID) != name {
			h += 0x9E3779B97F4A7C15
		}
		s.keys = append(s.keys, sampleKey{"key " + name, h})
	}
	s.seen = map[string]string{}
}

// adopt makes the named members, or all, adopt the ring of the active members.
func (s *script) adopt(names []string) {
	who := ids(names)
	if names[0] == "all" {
		who = s.c.ids()
	}
	r := s.c.ring()
	s.name(r)
	for _, id := range who {
		s.c.adopt(id, r)
	}
}

// name gives a ring the name by which it is printed.
func (s *script) name(r *ring.Ring) string {
	var names []string
	for i := range r.Len() {
		names = append(names, string(r.At(i).ID))
	}
	name := "{" + strings.Join(names, " ") + "}"
	s.rings[r.Fingerprint()] = name
	return name
}

// deliver delivers the messages that are queued now, and prints those that arrive, except Pongs. What they cause is
// queued for the next call.
func (s *script) deliver() {
	queue := s.c.queue
	s.c.queue = nil
	for _, e := range queue {
		m := s.c.machines[e.To]
		if m == nil || s.c.cut != nil && s.c.cut(e.from, e.To) {
			continue
		}
		if e.Msg.Kind != protocol.Pong {
			s.printf("%s -> %s: %s\n", e.from, e.To, s.describe(&e.Msg))
		}
		s.c.send(e.To, m.Step(s.c.now, e.from, e.bootID, &e.Msg))
	}
}

// transfer completes the transfers in progress. Their Acks are queued.
func (s *script) transfer() {
	for _, id := range s.c.ids() {
		m := s.c.machines[id]
		for _, t := range m.Transfers() {
			what := "counters"
			switch {
			case t.Prefetch:
				what = "prefetched replicas"
			case t.SuccessorCopy:
				what = "successor replicas"
			}
			if msg, ok := m.Finish(s.c.now, t, 0); ok {
				s.printf("%s sends %s to %s, then %s\n", id, what, t.To, s.describe(&msg))
				s.c.send(id, []protocol.Outbound{{To: t.To, Msg: msg}})
			}
		}
	}
}

// advance lets time pass. Messages and transfers take no time; only changes are printed, with the time since the
// command.
func (s *script) advance(d string) {
	wait, err := time.ParseDuration(d)
	s.check(err)
	for start := s.c.now; s.c.now < start+int64(wait); {
		s.c.run(50 * time.Millisecond)
		s.changes(fmt.Sprintf("+%v ", time.Duration(s.c.now-start)))
	}
}

// describe prints a message.
func (s *script) describe(msg *protocol.Message) string {
	kinds := map[protocol.MessageKind]string{protocol.Ping: "Ping", protocol.Pong: "Pong", protocol.Ack: "Ack"}
	text := kinds[msg.Kind]
	if name := s.rings[msg.Ring]; name != "" {
		text += " " + name
	}
	for _, f := range []struct {
		flag protocol.MessageFlags
		name string
	}{
		{protocol.Confirmed, "Confirmed"}, {protocol.NeedsAck, "NeedsAck"}, {protocol.Prefetch, "Prefetch"}, {protocol.NeverOwned, "NeverOwned"},
		{protocol.SuccessorCopy, "SuccessorCopy"}, {protocol.NeedsCopies, "NeedsCopies"},
	} {
		if msg.Flags&f.flag != 0 {
			text += " " + f.name
		}
	}
	return text
}

// changes prints what is different since it was printed last: who owns each key, how much of a limit each member may
// admit, and how far it is with its ring.
func (s *script) changes(prefix string) {
	if s.c == nil {
		return
	}
	now := map[string]string{}
	for _, k := range s.keys {
		now[k.name] = "no owner"
		if owners := s.c.holders(k.hash); len(owners) > 0 {
			now[k.name] = "owned by " + strings.Trim(fmt.Sprint(owners), "[]")
		}
	}
	for _, id := range s.c.ids() {
		now["member "+string(id)] = s.describeMember(id)
	}
	for _, subject := range slices.Sorted(keysOfBoth(s.seen, now)) {
		if s.seen[subject] != now[subject] {
			s.printf("%s%s: %s\n", prefix, subject, orNone(now[subject]))
		}
	}
	s.seen = now
}

func (s *script) describeMember(id ring.ID) string {
	m := s.c.machines[id]
	v, p := m.View(), m.Progress()
	text := "ring " + s.name(v.Ring())
	switch {
	case s.c.states[id] == membership.Joining && p.Prefetched:
		text += ", joining, prefetched"
	case s.c.states[id] == membership.Joining:
		text += ", joining"
	case s.c.states[id] == membership.Leaving && p.HandedOff:
		text += ", leaving, handed off"
	case s.c.states[id] == membership.Leaving:
		text += ", leaving"
	case p.Complete():
		text += " complete"
	}
	switch extent, num, den := v.Extent(s.c.now, policy.PartShare); {
	case v.Self() < 0:
	case extent == ExtentNone:
		text += ", may admit its local share only"
	case extent == ExtentPart:
		text += fmt.Sprintf(", may admit %d/%d of a limit", num, den)
	}
	return text
}

func orNone(text string) string {
	if text == "" {
		return "gone"
	}
	return text
}

// keysOfBoth iterates over the keys of two maps.
func keysOfBoth(a, b map[string]string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range a {
			if !yield(k) {
				return
			}
		}
		for k := range b {
			if _, both := a[k]; !both && !yield(k) {
				return
			}
		}
	}
}

func cutAt(names []string, at string) (before, after []string, found bool) {
	i := slices.Index(names, at)
	if i < 0 {
		return names, names, false
	}
	return names[:i], names[i+1:], true
}

func ids(names []string) []ring.ID {
	var out []ring.ID
	for _, name := range names {
		out = append(out, ring.ID(name))
	}
	return out
}

func stateOf(name string) membership.MemberState {
	return map[string]membership.MemberState{"joining": membership.Joining, "active": membership.Active, "leaving": membership.Leaving}[name]
}
