package peer

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// stoppedMember is the environment variable that makes this test's program a member: JSON of addresses by name, and of
// the clocks that advance while the process is stopped.
const stoppedMember = "KEYWARD_TEST_STOPPED_MEMBER"

type stoppedOptions struct {
	Addresses map[ring.ID]string // of the other members
	Boot      bool               // CLOCK_BOOTTIME advances
}

// stoppedClocks are the system's clocks without the time in which the process was stopped, like those of a machine that
// was stopped itself. The wall clock is not corrected.
type stoppedClocks struct {
	start time.Time
	boot  bool
	last  atomic.Int64
	lost  atomic.Int64
}

func (s *stoppedClocks) mono() int64 { return s.read().mono }

func (s *stoppedClocks) read() reading {
	now := int64(time.Since(s.start))
	for last := s.last.Load(); now > last; last = s.last.Load() {
		if s.last.CompareAndSwap(last, now) {
			if gap := now - last; gap > int64(time.Second) {
				s.lost.Add(gap)
			}
			break
		}
	}
	r := reading{mono: now - s.lost.Load(), boot: now + 1}
	r.wall = s.start.UnixNano() + r.mono
	if !s.boot {
		r.boot = r.mono + 1
	}
	return r
}

const (
	stoppedLimit  = 1000
	commandHit    = 'h' // one hit
	commandSlow   = 's' // one hit, a millisecond after the last
	commandStop   = 'z' // stop this process, between two checks of the clocks
	commandReport = 't' // print what was admitted since the last report, and why ownership was revoked
)

// runStoppedMember is member m0. It runs the commands that it reads.
func runStoppedMember() {
	var o stoppedOptions
	if err := json.Unmarshal([]byte(os.Getenv(stoppedMember)), &o); err != nil {
		panic(err)
	}
	node := owner.New(owner.Options{Self: "m0", BootID: bootOf("m0"), Seed: [2]uint64{1, 2}, NoHot: true})
	clocks := &stoppedClocks{start: time.Now(), boot: o.Boot}
	p, err := New(Options{
		Node: node, Self: "m0", BootID: bootOf("m0"), Cluster: "test", Listen: "127.0.0.1:0",
		Registerer: prometheus.NewRegistry(), clocks: clocks,
	})
	if err != nil {
		panic(err)
	}
	fmt.Fprintln(os.Stdout, p.Addr())
	r := ringOf("m0", "m1", "m2")
	live := []membership.Member{announced("m0", "")}
	for id, address := range o.Addresses {
		live = append(live, announced(id, address))
	}
	p.SetView(viewOf("m0", r, live))
	for !node.Progress().Complete() || len(p.ClockOffsets()) < 2 {
		time.Sleep(time.Millisecond)
	}
	fmt.Fprintln(os.Stdout, "ready")
	runCommands(p, newRequest(ownedBy(r, "m0", 1)[0], stoppedLimit, 1))
}

// runCommands runs the commands of standard input until it ends.
func runCommands(p *Peer, q owner.Request) {
	reqs, results := []owner.Request{q}, make([]owner.Result, 1)
	admitted, full := 0, 0
	for in := bufio.NewReader(os.Stdin); ; {
		c, err := in.ReadByte()
		if err != nil {
			return
		}
		switch c {
		case commandStop:
			for p.clock.mono()-p.clockCheck.lastCheck.Load() < int64(2*clockCheckEvery) {
				time.Sleep(100 * time.Microsecond)
			}
			syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		case commandReport:
			revocations := func(reason string) float64 { return testutil.ToFloat64(p.m.revocations.WithLabelValues(reason)) }
			fmt.Fprintln(os.Stdout, admitted, full, revocations(revokedStep), revocations(revokedSuspend),
				revocations(revokedPeers))
			admitted, full = 0, 0
		case commandSlow, commandHit:
			if c == commandSlow {
				time.Sleep(time.Millisecond)
			}
			p.Decide(by(20*time.Millisecond), false, reqs, results)
			if !results[0].Over {
				admitted++
				if results[0].Authority == owner.Full {
					full++
				}
			}
		}
	}
}

// stoppedProcess is a member in its own process.
type stoppedProcess struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
	at  membership.Member
}

func startStopped(t *testing.T, o stoppedOptions) *stoppedProcess {
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	s := &stoppedProcess{t: t, cmd: exec.Command(os.Args[0])}
	s.cmd.Env, s.cmd.Stderr = append(os.Environ(), stoppedMember+"="+string(b)), os.Stderr
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	s.out = bufio.NewReader(out)
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.cmd.Process.Kill()
		s.cmd.Wait()
	})
	s.at = announced("m0", s.line())
	return s
}

func (s *stoppedProcess) line() string {
	s.t.Helper()
	text, err := s.out.ReadString('\n')
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.TrimSpace(text)
}

func (s *stoppedProcess) send(command rune, n int) {
	s.t.Helper()
	if _, err := io.WriteString(s.in, strings.Repeat(string(command), n)); err != nil {
		s.t.Fatal(err)
	}
}

// report returns what was admitted, and how often ownership was revoked.
func (s *stoppedProcess) report() (admitted, full, step, suspend, peers int) {
	s.t.Helper()
	s.send(commandReport, 1)
	text := s.line()
	if n, err := fmt.Sscan(text, &admitted, &full, &step, &suspend, &peers); n != 5 {
		s.t.Fatal(text, err)
	}
	return
}

// stop stops the process and returns when it has stopped.
func (s *stoppedProcess) stop() {
	s.send(commandStop, 1)
	await(s.t, "the process to stop", func() bool {
		b, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(s.cmd.Process.Pid), "stat"))
		if err != nil {
			s.t.Fatal(err)
		}
		return strings.Contains(string(b), ") T ")
	})
}

// takeOverFromStopped makes m1 and m2 take over the keys of m0, and uses up all but two of the remaining hits.
func takeOverFromStopped(t *testing.T, ms []*member) {
	t.Helper()
	r := ringOf(ids(ms)...)
	for _, m := range ms {
		v := viewOf(m.id, r, membersOf(ms))
		v.NRef = 3
		m.SetView(v)
	}
	name := ownedBy(ringOf("m0", "m1", "m2"), "m0", 1)[0]
	successor := ms[r.Owner(ring.Hash(name))]
	await(t, "the successor to take over", func() bool {
		return successor.node.Progress().Complete() && successor.decideOne(patience,
			newRequest(name, stoppedLimit, 0)).Authority == owner.Full
	})
	for i := range 898 {
		if a := successor.decideOne(patience, newRequest(name, stoppedLimit, 1)); a.Over || a.Authority != owner.Full {
			t.Fatalf("hit %d at the successor: %+v", i, a)
		}
	}
}

// readmitStopped adds m0 as a joining member again, so that the others reply to it and confirm its replicas.
func readmitStopped(ms []*member, stopped membership.Member) {
	stopped.State = membership.Joining
	for _, m := range ms {
		v := viewOf(m.id, ringOf(ids(ms)...), append(membersOf(ms), stopped))
		v.NRef = 3
		m.SetView(v)
	}
}

// withStopped returns a cluster of three whose first member has its own process and has counted 100 hits.
func withStopped(t *testing.T, boot bool) ([]*member, *stoppedProcess) {
	t.Helper()
	ms := []*member{newMember(t, "m1"), newMember(t, "m2")}
	addresses := map[ring.ID]string{}
	for _, m := range ms {
		addresses[m.id] = m.Addr().String()
	}
	s := startStopped(t, stoppedOptions{Addresses: addresses, Boot: boot})
	for _, m := range ms {
		m.SetView(viewOf(m.id, ringOf("m0", "m1", "m2"), append(membersOf(ms), s.at)))
	}
	if got := s.line(); got != "ready" {
		t.Fatal(got)
	}
	s.send(commandHit, 100)
	if n, full, _, _, _ := s.report(); n != 100 || full != 100 {
		t.Fatalf("%d of 100 hits were admitted, %d with full authority", n, full)
	}
	time.Sleep(100 * time.Millisecond) // until the successor has all replicas
	return ms, s
}

// A member counts 100 hits of 1,000, and its machine is stopped until its successor has counted 898 more. Of the calls
// that wait meanwhile, it must not decide any by its old ownership.
func TestStoppedMachine(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("takes seconds, and /proc")
	}
	const share = stoppedLimit/3 + 1
	for _, tt := range []struct {
		name    string
		boot    bool
		command rune
		calls   int
		late    int // hits that may be decided by the old ownership
	}{
		{"suspended", true, commandHit, 4000, 0},
		// The member cannot detect this before it has received a heartbeat. A call comes every millisecond until then.
		{"moved, all clocks standing still", false, commandSlow, 900, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ms, s := withStopped(t, tt.boot)
			s.stop()
			s.send(tt.command, tt.calls)
			time.Sleep(1200 * time.Millisecond) // the others' heartbeats wait in the meantime, too
			takeOverFromStopped(t, ms)
			readmitStopped(ms, s.at)
			s.cmd.Process.Signal(syscall.SIGCONT)
			n, full, step, suspend, peers := s.report()
			t.Logf("%d calls: %d admitted, %d of them by the old ownership; revoked: step %d, suspend %d, peers %d",
				tt.calls, n, full, step, suspend, peers)
			if full > tt.late || n-full > share {
				t.Errorf("%d admitted, %d by the old ownership, want at most %d and %d", n, full, share+tt.late,
					tt.late)
			}
			if tt.boot && suspend != 1 || !tt.boot && peers != 1 {
				t.Errorf("ownership revoked: step %d, suspend %d, peers %d", step, suspend, peers)
			}
		})
	}
}
