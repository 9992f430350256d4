package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/keyward/keyward/internal/api"
)

// frame is one state of `keyward top`.
type frame struct {
	Time    time.Time      `json:"time"`
	Members []string       `json:"members"`          // that answered
	Silent  []string       `json:"silent,omitempty"` // members that did not, and why
	Keys    []topKey       `json:"keys"`             // busiest first
	Routes  []api.HotRoute `json:"routes"`           // the newest of each key
}

// topKey is a key with its owner and its leases.
type topKey struct {
	Owner string `json:"owner"`
	api.HotKeyStatus
	Held  []topHeld     `json:"held,omitempty"`
	Route *api.HotRoute `json:"route,omitempty"`
}

// topHeld is a lease as its holder reports it.
type topHeld struct {
	Member string `json:"member"`
	api.HeldLease
}

// said is the answer of one member.
type said struct {
	page    string // URL of its page
	name    string // as other members list it; empty for a given address
	cluster api.ClusterStatus
	hot     api.HotKeys
	leases  api.HeldLeases
	budgets api.Budgets
	err     error
}

// lookBound is the time for all answers.
const lookBound = 2 * time.Second

// look asks the members at the pages, and all members that their /cluster lists, each once.
func look(ctx context.Context, pages []string) *frame {
	return newFrame(time.Now(), askMembers(ctx, pages, (*said).ask))
}

// askMembers calls ask for the members at the pages, and for all members that their /cluster lists, for each once.
func askMembers(ctx context.Context, pages []string, ask func(*said, context.Context)) (answers []said) {
	ctx, cancel := context.WithTimeout(ctx, lookBound)
	defer cancel()
	next := make([]said, len(pages))
	for i, page := range pages {
		next[i].page = page
	}
	for len(next) > 0 {
		askAll(ctx, next, ask)
		answers = append(answers, next...)
		next = others(answers)
	}
	return answers
}

// others returns the members that the answers list and that were not asked yet.
func others(answers []said) (next []said) {
	known := map[string]bool{}
	for _, a := range answers {
		known[a.page] = true
		known[a.name] = true
		known[a.cluster.Self] = true
	}
	for _, a := range answers {
		for _, m := range a.cluster.Members {
			page := "http://" + m.Page
			if m.Role != "member" || m.Page == "" || known[m.ID] || known[page] {
				continue
			}
			known[m.ID], known[page] = true, true
			next = append(next, said{page: page, name: m.ID})
		}
	}
	return next
}

func askAll(ctx context.Context, who []said, ask func(*said, context.Context)) {
	var asking sync.WaitGroup
	for i := range who {
		asking.Go(func() { ask(&who[i], ctx) })
	}
	asking.Wait()
}

func (a *said) ask(ctx context.Context) {
	if a.cluster, a.err = get[api.ClusterStatus](ctx, a.page+"/cluster"); a.err != nil {
		return
	}
	if a.hot, a.err = get[api.HotKeys](ctx, a.page+"/v1/hotkeys"); a.err != nil {
		return
	}
	a.leases, a.err = get[api.HeldLeases](ctx, a.page+"/v1/leases")
}

// errAnother is the error of a page that another member serves than the one that /cluster lists.
var errAnother = errors.New("another member answers at this address")

// silence describes a member that did not answer, with the reason and advice.
func (a *said) silence() string {
	who := strings.TrimPrefix(a.page, "http://")
	if a.name != "" {
		who = a.name + " at " + who
	}
	advice := "set --member to an address that is reachable from here, as after kubectl port-forward"
	why := plainly(a.err)
	switch {
	case errors.Is(a.err, syscall.ECONNREFUSED):
		advice = "start the member, or " + advice
	case errors.Is(a.err, context.DeadlineExceeded):
		why = fmt.Errorf("no answer within %v", lookBound)
		advice = "make its --metrics port reachable from here, or " + advice
	case errors.Is(a.err, errNotServed):
		why = errNotServed
		advice = "set --member to the --metrics address of a sidecar"
	}
	return fmt.Sprintf("%s: %v: %s", who, why, advice)
}

// unasked returns the members whose page no answer lists.
func unasked(answers []said) (names []string) {
	asked := map[string]bool{}
	for _, a := range answers {
		asked[a.name], asked[a.cluster.Self] = true, true
	}
	for _, a := range answers {
		for _, m := range a.cluster.Members {
			if m.Role == "member" && !asked[m.ID] {
				asked[m.ID] = true
				names = append(names, m.ID)
			}
		}
	}
	return names
}

// silences describes all members that are not shown.
func silences(answers []said) (all []string) {
	for _, a := range answers {
		if a.err == nil && a.name != "" && a.name != a.cluster.Self {
			a.err = errAnother
		}
		if a.err != nil {
			all = append(all, a.silence())
		}
	}
	for _, name := range unasked(answers) {
		all = append(all, name+": its address is unknown: add it to --member")
	}
	return all
}

// newFrame combines the answers.
func newFrame(now time.Time, answers []said) *frame {
	f := &frame{Time: now, Members: []string{}, Keys: []topKey{}, Routes: []api.HotRoute{}}
	held, routes := map[string][]topHeld{}, map[[2]string]api.HotRoute{}
	for _, a := range answers {
		if a.err != nil || slices.Contains(f.Members, a.hot.Member) {
			continue
		}
		f.Members = append(f.Members, a.hot.Member)
		for _, k := range a.hot.Keys {
			f.Keys = append(f.Keys, topKey{Owner: a.hot.Member, HotKeyStatus: k})
		}
		for _, l := range a.leases.Keys {
			held[l.Digest] = append(held[l.Digest], topHeld{Member: a.leases.Member, HeldLease: l})
		}
		for _, r := range a.hot.Routes {
			id := [2]string{r.Domain, r.OwnerString}
			if old, ok := routes[id]; !ok || old.Since.Before(r.Since) {
				routes[id] = r
			}
		}
	}
	f.Silent = silences(answers)
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
	f.sort()
	return f
}

// sort puts the busiest keys first, and routes in the order of their names.
func (f *frame) sort() {
	slices.SortFunc(f.Routes, func(a, b api.HotRoute) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name), cmp.Compare(a.OwnerString, b.OwnerString))
	})
	slices.SortFunc(f.Keys, func(a, b topKey) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Digest, b.Digest))
	})
}
