package owner

import (
	"fmt"
	"github.com/cockroachdb/datadriven"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/ring"
)

// TestScripts runs the scripts in testdata/scripts, each of which shows one thing that happens to a cluster: read them to learn how members
// decide. After a change that is meant, `go test ./owner -run TestScripts -rewrite` writes the output again.
//
// The commands:
//
//	members a b c [policy=share|available|quorum]   starts a cluster of these members
//	key K owner=a [successor=b] limit=10 [degraded=fail_open|fail_closed]
//	                                                 names a key by its place on the present ring
//	take K [hits=1] [times=1] at=b                   sends requests for the key to a member, which forwards them if it has to
//	who K                                            what each member would do with a request for the key
//	join d | leave a | crash a | restart a           one change of the members, with the time that it takes
//	cut a                                            cuts members off from the others, before any member notices
//	notice                                           each side removes the other from its ring
//	heal                                             ends the cut and puts all members on one ring
//	run 2s                                           lets time pass
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		s := &script{keys: map[string]Request{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			if s.network != nil {
				s.network.t = t
			}
			s.run(t, d)
			return s.out.String()
		})
	})
}

// script is one script as it runs.
type script struct {
	*network
	out  strings.Builder
	keys map[string]Request
	off  []ring.ID // the members that are cut off
}

func (s *script) printf(format string, args ...any) { fmt.Fprintf(&s.out, format+"\n", args...) }

func (s *script) run(t *testing.T, d *datadriven.TestData) {
	commands := map[string]func(*testing.T, *datadriven.TestData){
		"members": s.members, "key": s.key, "take": s.take, "who": s.who, "join": s.join, "leave": s.leave, "crash": s.crash,
		"restart": s.restart, "cut": s.cutOff, "notice": s.notice, "heal": s.heal, "run": s.pass,
	}
	f := commands[d.Cmd]
	if f == nil {
		d.Fatalf(t, "there is no command %q", d.Cmd)
	}
	f(t, d)
}

// operands are the arguments without values, as members.
func operands(d *datadriven.TestData) (ids []ring.ID) {
	for _, a := range d.CmdArgs {
		if len(a.Vals) == 0 {
			ids = append(ids, ring.ID(a.Key))
		}
	}
	return ids
}

// option is the value of an argument, or the default.
func option[T any](t *testing.T, d *datadriven.TestData, name string, value T) T {
	if d.HasArg(name) {
		d.ScanArgs(t, name, &value)
	}
	return value
}

func (s *script) members(t *testing.T, d *datadriven.TestData) {
	p, known := policy.ParsePartition(option(t, d, "policy", "share"))
	if !known {
		d.Fatalf(t, "unknown policy")
	}
	s.network = newNetwork(t, 1, Options{Policy: p, DenyCache: 1000}, operands(d)...)
	s.state()
}

// state prints the ring of each member, and whether its handoffs are complete.
func (s *script) state() {
	for _, id := range s.ids() {
		switch p := s.nodes[id].Progress(); {
		case p.HandedOff:
			s.printf("%s: has given all of its keys away", id)
		case p.Complete():
			s.printf("%s: ring of %s, complete", id, s.names(s.nodes[id]))
		default:
			s.printf("%s: ring of %s, in progress", id, s.names(s.nodes[id]))
		}
	}
}

func (s *script) names(n *Node) string {
	r := n.serial.view.Ring()
	var names []string
	for i := range r.Len() {
		names = append(names, string(r.At(i).ID))
	}
	return strings.Join(names, " ")
}

func (s *script) key(t *testing.T, d *datadriven.TestData) {
	name, r := d.CmdArgs[0].Key, s.ring()
	owner, successor := option(t, d, "owner", ""), option(t, d, "successor", "")
	degraded := map[string]policy.Degraded{"local_share": policy.LocalShare, "fail_open": policy.FailOpen, "fail_closed": policy.FailClosed}
	for i := len(s.keys) * 1000; ; i++ {
		req := ask(i, uint32(option(t, d, "limit", uint64(10))), 24*time.Hour, 1)
		req.Degraded = degraded[option(t, d, "degraded", "local_share")]
		o, h := r.At(r.Owner(req.RingPos)).ID, r.At(r.Successor(req.RingPos)).ID
		if string(o) == owner && (successor == "" || string(h) == successor) {
			s.keys[name] = req
			s.printf("%s: owner %s, successor %s, limit %d", name, o, h, req.Rule.Limit)
			return
		}
	}
}

// take sends requests and prints equal results once.
func (s *script) take(t *testing.T, d *datadriven.TestData) {
	req, known := s.keys[d.CmdArgs[0].Key]
	if !known {
		d.Fatalf(t, "there is no key %q", d.CmdArgs[0].Key)
	}
	req.Hits = option(t, d, "hits", uint64(1))
	at := ring.ID(option(t, d, "at", ""))
	var order []string
	results := map[string]int{}
	for range option(t, d, "times", 1) {
		s.ask(at, req, func(res Result) {
			text := resultText(res)
			if results[text]++; results[text] == 1 {
				order = append(order, text)
			}
		})
		s.network.run(2 * time.Millisecond)
	}
	for _, text := range order {
		s.printf("%d %s", results[text], text)
	}
}

func resultText(res Result) string {
	what := "admitted"
	if res.Over {
		what = "refused"
	}
	by := map[Authority]string{
		Full: "by the owner, with the complete limit", Part: "by the owner, with a part of the limit", Share: "with the local share",
		Open: "by fail_open", Closed: "by fail_closed", Overflow: "by the sketch", Cached: "by the deny cache", Shed: "by load shedding", Static: "by its share",
	}[res.Authority]
	return what + " " + by
}

// who prints what each member does with a request that charges nothing.
func (s *script) who(t *testing.T, d *datadriven.TestData) {
	req := withOp(s.keys[d.CmdArgs[0].Key], Read)
	req.Hits = 0
	for _, id := range s.ids() {
		switch res := s.nodes[id].Decide(s.clock(id), &req); {
		case res.Kind == Pending:
			s.nodes[id].Cancel(req.Key, req.Waiter)
			s.printf("%s: waits for the ownership", id)
		case res.Kind == Forward && res.Member == "":
			s.printf("%s: knows no owner", id)
		case res.Kind == Forward:
			s.printf("%s: forwards to %s", id, res.Member)
		case res.Authority == Full:
			s.printf("%s: decides, count %d", id, res.After)
		case res.Authority == Part:
			s.printf("%s: decides with a part of the limit, count %d", id, res.After)
		default:
			s.printf("%s: has a local share", id)
		}
	}
}

func (s *script) join(_ *testing.T, d *datadriven.TestData) {
	for _, id := range operands(d) {
		s.boot(id, membership.Joining)
		s.adopt()
		s.network.run(time.Second)
		s.states[id] = membership.Active
		s.nref = max(s.nref, len(s.nodes))
		s.adopt()
		s.network.run(3 * time.Second)
	}
	s.state()
}

func (s *script) leave(_ *testing.T, d *datadriven.TestData) {
	for _, id := range operands(d) {
		s.states[id] = membership.Leaving
		s.adopt()
		s.network.run(3 * time.Second)
		s.state()
		delete(s.nodes, id)
		s.left = append(s.left, id)
		s.nref--
		s.adopt()
		s.network.run(time.Second)
	}
	s.state()
}

// crash removes members without a leave; the others notice before the ownership of the lost keys is taken over.
func (s *script) crash(_ *testing.T, d *datadriven.TestData) {
	for _, id := range operands(d) {
		delete(s.nodes, id)
	}
	s.network.run(300 * time.Millisecond)
	s.adopt()
	s.state()
}

// restart starts members again under their names, with nothing in memory.
func (s *script) restart(_ *testing.T, d *datadriven.TestData) {
	for _, id := range operands(d) {
		s.boot(id, membership.Active)
	}
	s.adopt()
	s.network.run(6 * time.Second)
	s.state()
}

func (s *script) cutOff(_ *testing.T, d *datadriven.TestData) {
	s.off = operands(d)
	s.network.cut = func(from, to ring.ID) bool { return slices.Contains(s.off, from) != slices.Contains(s.off, to) }
}

// notice gives both sides a ring of their own members.
func (s *script) notice(*testing.T, *datadriven.TestData) {
	all := s.nodes
	for _, off := range []bool{true, false} {
		s.nodes = map[ring.ID]*Node{}
		for id, n := range all {
			if slices.Contains(s.off, id) == off {
				s.nodes[id] = n
			}
		}
		s.adopt()
	}
	s.nodes = all
	s.state()
}

func (s *script) heal(*testing.T, *datadriven.TestData) {
	s.rejoin()
	s.state()
}

func (s *script) pass(t *testing.T, d *datadriven.TestData) {
	length, err := time.ParseDuration(d.CmdArgs[0].Key)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	s.network.run(length)
	s.state()
}
