package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/keyward/keyward/admin"
	"github.com/keyward/keyward/lab"
)

// frame is what `keyward top` shows at one time.
type frame struct {
	Time    time.Time        `json:"time"`
	Members []string         `json:"members"`          // that answered
	Silent  []string         `json:"silent,omitempty"` // who did not, and why
	Keys    []topKey         `json:"keys"`             // the busiest first
	Routes  []admin.HotRoute `json:"routes"`           // the newest about each key
}

// topKey is a key with its owner and all that is known of its holders.
type topKey struct {
	Owner string `json:"owner"`
	admin.HotKey
	Held  []topHeld       `json:"held,omitempty"`
	Route *admin.HotRoute `json:"route,omitempty"`
}

// topHeld is what a holder says of its lease.
type topHeld struct {
	Member string `json:"member"`
	admin.Lease
}

// said is what one member answers.
type said struct {
	addr    string
	cluster admin.Cluster
	hot     admin.HotKeys
	leases  admin.Leases
	err     error
}

// lookBound is how long members may take to answer.
const lookBound = 2 * time.Second

// look asks the members at addrs, and with one address those that it knows of.
func look(ctx context.Context, addrs []string) *frame {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	answers := askAll(ctx, addrs)
	if len(answers) == 1 && answers[0].err == nil {
		guessed := others(addrs[0], &answers[0].cluster)
		var more []string
		for _, addr := range guessed {
			more = append(more, addr)
		}
		for _, a := range askAll(ctx, more) {
			if a.err == nil && guessed[a.cluster.Self] != a.addr {
				a.err = errors.New("another member answers there; name every member with --addr")
			}
			answers = append(answers, a)
		}
	}
	return newFrame(time.Now(), answers)
}

// others guesses where the pages of the other members are: at their own address and the port of the one that is known.
func others(known string, c *admin.Cluster) map[string]string {
	_, port, err := net.SplitHostPort(known)
	if err != nil {
		return nil
	}
	at := map[string]string{}
	for _, m := range c.Members {
		host, _, err := net.SplitHostPort(cmp.Or(m.Peer, m.Gossip))
		if err != nil || m.ID == c.Self || m.Role != "member" {
			continue
		}
		at[m.ID] = net.JoinHostPort(host, port)
	}
	return at
}

func askAll(ctx context.Context, addrs []string) []said {
	answers := make([]said, len(addrs))
	var asking sync.WaitGroup
	for i, addr := range addrs {
		asking.Go(func() { answers[i] = askOne(ctx, addr) })
	}
	asking.Wait()
	return answers
}

func askOne(ctx context.Context, addr string) said {
	a := said{addr: addr}
	for path, into := range map[string]any{"/cluster": &a.cluster, "/v1/hotkeys": &a.hot, "/v1/leases": &a.leases} {
		body, err := lab.Get(ctx, "http://"+addr+path)
		if err == nil {
			err = json.Unmarshal(body, into)
		}
		var where *url.Error
		if errors.As(err, &where) {
			err = where.Err // the address is said anyway
		}
		a.err = cmp.Or(a.err, err)
	}
	return a
}

// newFrame puts the answers together.
func newFrame(now time.Time, answers []said) *frame {
	f := &frame{Time: now, Members: []string{}, Keys: []topKey{}, Routes: []admin.HotRoute{}}
	held, routes := map[string][]topHeld{}, map[[2]string]admin.HotRoute{}
	for _, a := range answers {
		if a.err != nil {
			f.Silent = append(f.Silent, fmt.Sprintf("%s: %v", a.addr, a.err))
			continue
		}
		if slices.Contains(f.Members, a.hot.Member) {
			continue
		}
		f.Members = append(f.Members, a.hot.Member)
		for _, k := range a.hot.Keys {
			f.Keys = append(f.Keys, topKey{Owner: a.hot.Member, HotKey: k})
		}
		for _, l := range a.leases.Keys {
			held[l.Digest] = append(held[l.Digest], topHeld{Member: a.leases.Member, Lease: l})
		}
		for _, r := range a.hot.Routes {
			id := [2]string{r.Domain, r.OwnerString}
			if old, ok := routes[id]; !ok || old.Since.Before(r.Since) {
				routes[id] = r
			}
		}
	}
	slices.Sort(f.Members)
	for i := range f.Keys {
		k := &f.Keys[i]
		k.Held = held[k.Digest]
		if r, ok := routes[[2]string{k.Domain, k.OwnerString}]; ok && k.OwnerString != "" {
			k.Route = &r
		}
	}
	for _, r := range routes {
		f.Routes = append(f.Routes, r)
	}
	slices.SortFunc(f.Routes, func(a, b admin.HotRoute) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name), cmp.Compare(a.OwnerString, b.OwnerString))
	})
	slices.SortFunc(f.Keys, func(a, b topKey) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Digest, b.Digest))
	})
	return f
}
