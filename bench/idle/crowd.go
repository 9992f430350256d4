package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/certs"
	gossip "github.com/keyward/keyward/internal/cluster"
	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/peer"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// cluster is the measured sidecar among n-1 others.
type cluster struct {
	n        int
	dir      string
	keep     bool
	lab      *lab.Lab
	log      *slog.Logger // of the others
	measured *lab.Sidecar
	others   []*other
	rings    rings
}

// rings caches the rings that were built. All other members use the same ones.
type rings struct {
	mu   sync.Mutex
	made map[string]*ring.Ring // guarded by mu
}

func (r *rings) of(members []ring.Member) *ring.Ring {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := fmt.Sprint(members)
	if r.made == nil || len(r.made) > 8 {
		r.made = map[string]*ring.Ring{}
	}
	if r.made[key] == nil {
		r.made[key] = ring.New(members)
	}
	again := *r.made[key]
	return &again
}

// other is a member that runs in this process.
type other struct {
	node   *owner.Node
	peer   *peer.Peer
	gossip *gossip.Cluster
}

const measuredName = "measured"

// startCluster starts the others, then the measured one, and waits until that has all of them on its ring and streams with
// all. The cluster is to be stopped also after an error.
func startCluster(n int, bin, keep string) (c *cluster, err error) {
	c = &cluster{n: n, dir: filepath.Join(keep, fmt.Sprint(n)), keep: keep != ""}
	if !c.keep {
		if c.dir, err = lab.TempDir("keyward-idle-"); err != nil {
			return c, err
		}
	}
	if bin, err = filepath.Abs(bin); err != nil {
		return c, err
	}
	rules := "domain: idle\ndescriptors:\n  - key: client\n    rate_limit:\n      unit: second\n      requests_per_unit: 10\n"
	c.lab, err = lab.New(lab.Options{Dir: c.dir, Bin: bin, Expect: n, Rules: map[string]string{"idle.yaml": rules}})
	if err != nil {
		return c, err
	}
	out, err := os.Create(filepath.Join(c.dir, "log", "others.log"))
	if err != nil {
		return c, err
	}
	c.log = slog.New(slog.NewTextHandler(out, nil))
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	if err := c.startOthers(ctx); err != nil {
		return c, err
	}
	// As the chart has it: xDS is another pod's.
	if c.measured, err = c.lab.AddSidecar(measuredName, "--join", otherHost(0)+":7946", "--xds", ""); err != nil {
		return c, err
	}
	return c, lab.Await(ctx, fmt.Sprintf("a ring of %d", n), c.whole)
}

// startOthers starts the members of this process and waits until all know all.
func (c *cluster) startOthers(ctx context.Context) error {
	names := certs.ServerOptions{ClientSANs: []string{certs.DemoSAN("sidecar")}}
	files := certs.DemoFiles(filepath.Join(c.dir, "certs"), "sidecar")
	server, err1 := certs.Server(files, names)
	client, err2 := certs.Client(files, certs.ClientOptions{ServerSANs: names.ClientSANs})
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	for i := range c.n - 1 {
		o, err := c.startOther(i, server, client)
		if err != nil {
			return err
		}
		c.others = append(c.others, o)
		time.Sleep(20 * time.Millisecond) // or all would join at once, and time out
	}
	return lab.Await(ctx, "the others to know each other", func(context.Context) error {
		for _, o := range c.others {
			if v := o.gossip.View(); v.Ring.Len() != c.n-1 {
				return fmt.Errorf("%s has %d members on its ring", v.Self, v.Ring.Len())
			}
		}
		return nil
	})
}

func otherHost(i int) string { return fmt.Sprintf("127.83.%d.%d", i/250, 1+i%250) }

// patience keeps n others from holding each other for dead or going onto the ring one by one, as they all share few
// processors. How often the measured one is probed stays as it is, up to a hundred; beyond, the others probe and gossip less often.
func patience(n int) gossip.Timing {
	t := gossip.Timing{
		ProbeTimeout: 450 * time.Millisecond, JoinDelay: time.Second, JoinTurn: time.Second, FlapHold: time.Millisecond, Tick: time.Second,
		ColdStart: time.Hour, JoinRetry: 5 * time.Second,
	}
	if n > 100 {
		t.Probe, t.ProbeTimeout, t.Gossip, t.MinInterval = 5*time.Second, 4*time.Second, 300*time.Millisecond, 2*time.Second
	}
	return t
}

// unreachable is an address to join at which no member listens. It makes the others wait for each other before they start.
const unreachable = "127.83.255.1:7946"

// startOther starts member i, at an address of its own.
func (c *cluster) startOther(i int, server, client *tls.Config) (*other, error) {
	id, host, inst := ring.ID(fmt.Sprintf("other-%03d", i)), otherHost(i), uint64(i+1)<<8|3
	o := &other{node: owner.New(owner.Options{Self: id, BootID: inst})}
	var err error
	o.peer, err = peer.New(peer.Options{
		Node: o.node, Self: id, BootID: inst, Cluster: "lab", Listen: host + ":7947", ServerTLS: server, ClientTLS: client,
	})
	if err != nil {
		return o, err
	}
	o.gossip, err = gossip.Start(gossip.Options{
		Timing: patience(c.n - 1), Logger: c.log,
		Node: string(id), BootID: inst, Bind: host + ":7946", Peer: host + ":7947", RLS: host + ":8082", Route: host + ":8080",
		Cluster: "lab", Expect: c.n - 1, Join: []string{otherHost(i/10) + ":7946", unreachable}, KeyFile: c.lab.CertFile("gossip", ".key"), OnView: o.view,
		NewRing: c.rings.of,
	})
	return o, err
}

// view gives the member a ring once the measured one is there, and streams to that one alone. It takes the others for alive.
func (o *other) view(v *membership.View) {
	if _, live := v.Find(measuredName); !live {
		return
	}
	one := *v
	one.Members = slices.Clone(v.Members)
	for i := range one.Members {
		m := &one.Members[i]
		if m.State != membership.Joining {
			m.State = membership.Active
		}
		if m.ID != measuredName {
			m.Peer = ""
		}
	}
	o.peer.SetView(&one)
}

// whole says what the measured member still lacks.
func (c *cluster) whole(ctx context.Context) error {
	v, err := lab.Cluster(ctx, c.measured.Metrics)
	if err != nil {
		return err
	}
	if len(v.Ring.Members) != c.n || !v.Joined {
		return fmt.Errorf("%d of %d members are on the ring, joined %v:\n%s", len(v.Ring.Members), c.n, v.Joined, strings.TrimSpace(c.measured.Tail(2000)))
	}
	s, err := c.said()
	if err == nil && (int(s.live) != c.n-1 || int(s.inbound) != c.n-1) {
		err = fmt.Errorf("%v streams to others and %v from them", s.live, s.inbound)
	}
	return err
}

// halt stops the measured member first, so that it does not wait for the others.
func (c *cluster) halt() {
	if c.measured != nil && c.measured.Process != nil {
		c.measured.Kill()
	}
	var wg sync.WaitGroup
	for _, o := range c.others {
		if o == nil {
			continue
		}
		wg.Go(func() {
			if o.gossip != nil {
				o.gossip.Close()
			}
			if o.peer != nil {
				_ = o.peer.Close()
			}
		})
	}
	wg.Wait()
	c.others = nil
}

// stop ends all, also after an error.
func (c *cluster) stop() error {
	c.halt()
	if c.keep {
		return nil
	}
	return os.RemoveAll(c.dir)
}
