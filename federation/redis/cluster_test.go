package redis

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	redigo "github.com/gomodule/redigo/redis"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/federation/federationtest"
	"github.com/keyward/keyward/internal/lab"
)

// startNode starts a node of a Redis Cluster.
func startNode(t *testing.T) *testServer {
	t.Helper()
	bus, err := lab.Ports{}.Addr()
	if err != nil {
		t.Fatal(err)
	}
	return startServer(t, "--cluster-enabled", "yes", "--cluster-port", bus[strings.LastIndex(bus, ":")+1:],
		"--cluster-node-timeout", "60000", "--repl-diskless-sync-delay", "0") // so that only tests cause failovers
}

// eventually waits until the server knows what text describes, in the reply to a command.
func (s *testServer) eventually(text, name string, args ...any) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), 20*time.Second)
	defer cancel()
	err := lab.Await(ctx, text, func(context.Context) error {
		if got, err := redigo.String(s.do(name, args...)); err != nil || !strings.Contains(got, text) {
			return fmt.Errorf("%s %w", got, err)
		}
		return nil
	})
	if err != nil {
		s.Fatal(err)
	}
}

func (s *testServer) join(other *testServer) {
	s.Helper()
	_, port, _ := strings.Cut(other.address, ":")
	s.do("CLUSTER", "MEET", "127.0.0.1", port, other.args[slices.Index(other.args, "--cluster-port")+1])
}

func (s *testServer) id() string {
	s.Helper()
	id, err := redigo.String(s.do("CLUSTER", "MYID"))
	if err != nil {
		s.Fatal(err)
	}
	return id
}

// TestCluster runs on a Redis Cluster of one node, which requires that the keys of a request are in one slot.
func TestCluster(t *testing.T) {
	s := startNode(t)
	s.do("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	s.eventually("cluster_state:ok", "CLUSTER", "INFO")
	federationtest.Run(t, s.empty(""))
	federationtest.RunStore(t, s.empty(""))
	fails(t, s.open("?layout=envoyproxy").Healthy(t.Context()), "use a single primary")
	fails(t, s.open("?wait=1").Healthy(t.Context()), "use a single primary")
}

// oneOfEachTag returns requests for one key of each hash tag, which ask for more than was granted to them before.
func oneOfEachTag(seq, have uint64) (rs []federation.PoolRequest) {
	for n := range uint64(tags) {
		r := request(year, 1)
		r.Key, r.Seq, r.Have = federation.Key{1, n}, seq, have
		r.Window = time.Now().UnixMicro() / year.Microseconds()
		rs = append(rs, r)
	}
	return rs
}

// granted requires that each key has total hits.
func granted(t *testing.T, c *Coordinator, seq, total uint64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	gs, err := c.Lease(ctx, "a", oneOfEachTag(seq, total-1))
	if err != nil || len(gs) != tags {
		t.Fatalf("%d grants: %v", len(gs), err)
	}
	for _, g := range gs {
		if g.Total != total || g.Used != total {
			t.Errorf("%+v, not %d", g, total)
		}
	}
}

// TestClusterChanges runs on two primaries and a replica. A call goes to all of them at once; it follows slots that have moved;
// and after a failover it finds the new primary.
func TestClusterChanges(t *testing.T) {
	a, b, replica := startNode(t), startNode(t), startNode(t)
	a.do("CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	b.do("CLUSTER", "ADDSLOTSRANGE", "8192", "16383")
	a.join(b)
	a.join(replica)
	for _, s := range []*testServer{a, b, replica} {
		s.eventually("cluster_state:ok", "CLUSTER", "INFO")
		s.eventually("cluster_known_nodes:3", "CLUSTER", "INFO")
	}
	replica.do("CLUSTER", "REPLICATE", b.id())
	replica.eventually("master_link_status:up", "INFO", "replication")
	for _, s := range []*testServer{a, b} {
		s.eventually("slave "+b.id(), "CLUSTER", "NODES")
	}

	c := b.open("")
	if err := c.Init(t.Context()); err != nil {
		t.Fatal(err)
	}
	granted(t, c, 1, 1)
	if err := c.Healthy(t.Context()); err != nil {
		t.Error(err)
	}
	first, moving := c.topology, slot(2)
	if !slices.Contains(first.primaries[:], a.address) || !slices.Contains(first.primaries[:], b.address) {
		t.Errorf("%+v", first)
	}

	from, to := a, b
	if moving > 8191 {
		from, to = b, a
	}
	move(t, from, to, moving)
	granted(t, c, 2, 2) // by the server that the former one names
	granted(t, c, 3, 3)
	if c.topology == first || c.topology.primaries[2] != to.address {
		t.Errorf("%s has tag 2", c.topology.primaries[2])
	}

	b.do("WAIT", "1", "1000")
	b.process.Kill()
	if _, err := c.Lease(t.Context(), "a", oneOfEachTag(4, 3)); err == nil {
		t.Error("a killed server has replied")
	}
	replica.do("CLUSTER", "FAILOVER", "TAKEOVER")
	a.eventually("myself,master", "CLUSTER", "NODES")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := lab.Await(ctx, "the new primary", func(ctx context.Context) error {
		top, err := c.locate(ctx)
		if err == nil && top.primaries[255] == b.address || err == nil && top.primaries[0] == b.address {
			c.forget(top)
			err = errors.New("not known to the others")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	granted(t, c, 5, 4)
}

// move moves a slot with its keys from one primary to another.
func move(t *testing.T, from, to *testServer, slot int) {
	t.Helper()
	to.do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id())
	from.do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id())
	keys, err := redigo.Strings(from.do("CLUSTER", "GETKEYSINSLOT", slot, 100))
	if err != nil || len(keys) < 2 {
		t.Fatal(keys, err)
	}
	host, port, _ := strings.Cut(to.address, ":")
	args := []any{host, port, "", 0, 5000, "KEYS"}
	for _, key := range keys {
		args = append(args, key)
	}
	from.do("MIGRATE", args...)
	for _, s := range []*testServer{to, from} {
		s.do("CLUSTER", "SETSLOT", slot, "NODE", to.id())
	}
}
