package snippet

import (
	"fmt"
	"slices"
	"strings"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
)

// Sources of the hits that requests of rules with reserve hold and spend: Options.Reserve.
const (
	// reserveOpenAI reads both from bodies in the shape of OpenAI's API.
	reserveOpenAI = "openai"
	// reserveMetadata is followed by the namespace of the dynamic metadata in which the user's own filters write them.
	reserveMetadata = "metadata:"
)

// tokensNamespace is the namespace of what the filter for reserveOpenAI writes.
const tokensNamespace = "keyward.tokens"

// holds describes what a descriptor's rules hold.
type holds struct {
	Reserves bool // hits, until the request is done and what it spent is known
	InFlight bool // a slot, until the request is done
	Marked   bool // the reservation needs a mark, since other requests have none
}

// holdsOf returns what a rule holds.
func holdsOf(r *config.RuleSpec) holds {
	switch h := r.Extension.Holds; {
	case h == nil:
		return holds{}
	case r.Extension.Algorithm == limit.InFlight:
		return holds{InFlight: true}
	default:
		return holds{Reserves: true, Marked: h.Settle == claim.SettleAddend}
	}
}

func (h *holds) merge(o holds) {
	h.Reserves, h.InFlight, h.Marked = h.Reserves || o.Reserves, h.InFlight || o.InFlight, h.Marked || o.Marked
}

// reserveFaults returns errors of Options.Reserve.
func (g *generator) reserveFaults() (faults []error) {
	space, own := strings.CutPrefix(g.Reserve, reserveMetadata)
	switch {
	case g.Reserve == "":
	case g.Reserve != reserveOpenAI && (!own || space == "" || strings.ContainsAny(space, "%(): ")):
		faults = append(faults, fmt.Errorf("reserve %q: want openai or metadata:NAMESPACE", g.Reserve))
	case g.Gateway != "" && g.Gateway != gatewayIstio:
		faults = append(faults, fmt.Errorf("reserve: %s generates the descriptors itself: see docs/holds.md", g.Gateway))
	case g.Shape == Routes:
		faults = append(faults, fmt.Errorf("reserve: in shape routes, the Envoys of the pods hold hits"))
	}
	return faults
}

// planHolds checks that what the rules hold can be held and settled by the configuration.
func (g *generator) planHolds() (faults []error) {
	if g.Shape == Routes {
		return nil
	}
	for i := range g.Domains {
		for _, x := range g.Domains[i].Descriptors {
			rules := strings.Join(x.Rules, ", ")
			switch {
			case x.Holds.Reserves && x.Holds.InFlight:
				faults = append(faults, fmt.Errorf("domain %s: %s have the same descriptor, but some of them count requests in flight and "+
					"others reserve hits", g.Domains[i].Name, rules))
			case x.Holds.Reserves && g.Reserve == "":
				g.warn("domain %s: nothing settles what %s reserves, so it lapses: --reserve openai or --reserve metadata:NAMESPACE",
					g.Domains[i].Name, rules)
			}
		}
	}
	if g.Holds() && g.ActionsInRoutes() {
		faults = append(faults, fmt.Errorf("hot filters: they read the descriptors of the routes, which cannot hold hits: use caps"))
	}
	if g.Reserve != "" && !slices.ContainsFunc(g.Domains, func(d domain) bool { return d.reserves() }) && len(faults) == 0 {
		g.warn("no rule has reserve, so --reserve has no effect")
	}
	return faults
}

func (d *domain) reserves() bool {
	return slices.ContainsFunc(d.Descriptors, func(x descriptor) bool { return x.Holds.Reserves })
}

// The methods below are called by the templates.

// Holds reports whether calls of the domain make holds, which need ids.
func (d domain) Holds() bool {
	return slices.ContainsFunc(d.Descriptors, func(x descriptor) bool { return x.Holds.Reserves || x.Holds.InFlight })
}

// Holds reports whether requests need the filters with ids and hits of holds.
func (g *generator) Holds() bool {
	return g.Shape != Routes && slices.ContainsFunc(g.Domains, domain.Holds)
}

// ReadsTokens reports whether a filter reads the hits from the bodies.
func (g *generator) ReadsTokens() bool {
	return g.Reserve == reserveOpenAI && slices.ContainsFunc(g.Domains, func(d domain) bool { return d.reserves() })
}

// Settles reports whether the configuration has the hits that requests spend.
func (g *generator) Settles() bool { return g.Reserve != "" }

// Tokens returns the namespace of the dynamic metadata with the hits.
func (g *generator) Tokens() string {
	if space, own := strings.CutPrefix(g.Reserve, reserveMetadata); own {
		return space
	}
	return tokensNamespace
}

// DefaultReserve returns the most hits that a rule reserves for a request without hits of its own.
func (g *generator) DefaultReserve() (most uint64) {
	for _, r := range g.Rules.Rules() {
		if holdsOf(r).Reserves {
			most = max(most, r.Extension.Holds.Reserve)
		}
	}
	return most
}
