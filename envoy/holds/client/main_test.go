package client_test

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/keyward/keyward/envoy/holds"
	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/internal/stats"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// member is the address of the member that the examples call.
var member string

// alone decides with the node of a cluster of one.
type alone struct{ *owner.Node }

func (a alone) Decide(_ policy.Deadline, stop bool, qs []owner.Request, as []owner.Result) {
	a.DecideAll(time.Now().UnixNano(), stop, qs, as)
}

func TestMain(m *testing.M) {
	now := time.Now().UnixNano()
	node := owner.New(owner.Options{Self: "a"})
	node.Tick(now)
	node.SetMembership(now, &membership.View{Self: "a", Ring: ring.New([]ring.Member{{ID: "a"}}), NRef: 1, Joined: true})
	service := rls.New(rls.Options{Decider: alone{node}, Stats: stats.New(stats.Options{}), Self: "a"})
	rules, err := config.Load([]config.File{{Name: "llm.yaml", Content: []byte(`
domain: llm
descriptors:
- key: tenant
  rate_limit: {unit: hour, requests_per_unit: 1000}
  metadata: {keyward: {reserve: 100}}
`)}}, config.Options{})
	if err != nil {
		panic(err)
	}
	service.SetRules(rules, rls.Switches{})
	api := holds.New(holds.Options{Service: service})
	server, err := rls.Start(rls.StartOptions{
		Service: service, Health: rls.NewHealthServer(), Listeners: []rls.Listener{{Address: "127.0.0.1:0"}}, Methods: api.Methods(),
	})
	if err != nil {
		panic(err)
	}
	member = server.Addrs[0].String()
	code := m.Run()
	api.Close()
	server.Stop(context.Background())
	os.Exit(code)
}
