package app

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/hotkey"
	"github.com/keyward/keyward/internal/admin"
	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// manualRoutes are the routes that operators have ordered. The cluster keeps and announces them; this keeps what the
// cluster does not.
type manualRoutes struct {
	known atomic.Pointer[[]hotkey.Route] // the routes of all members; nil until the first change
	mu    sync.Mutex                     // guards wanted, and orders one after the other
	// wanted is the number of sub-keys of each order, by domain and owner string. A route has fewer while there are
	// fewer members.
	wanted map[[2]string]int
}

func (b *manualRoutes) routes() []hotkey.Route {
	if rs := b.known.Load(); rs != nil {
		return *rs
	}
	return nil
}

// onRoutes passes the routes of hot keys to all parts when they change.
func (m *sidecar) onRoutes(rs []hotkey.Route) {
	m.manual.known.Store(&rs)
	m.node.SetRoutes(rs, ring.Hash)
	if m.xds != nil {
		m.xds.setHot(rs)
	}
	m.timeline.addRoutes(time.Now(), rs)
}

// orderHot executes an order of POST /hot.
func (m *sidecar) orderHot(o api.HotOrder) (api.HotRoute, error) {
	c := m.cluster.Load()
	if c == nil {
		return api.HotRoute{}, errors.New("this member has not started gossip yet")
	}
	r, n, err := m.resolveOrder(&o)
	if err != nil {
		return api.HotRoute{}, err
	}
	if o.Members > 0 {
		n = o.Members
	}
	m.manual.mu.Lock()
	defer m.manual.mu.Unlock()
	r.Mode, r.Author, r.Version = hotkey.Mode(*o.Mode), ring.ID(m.Flags.Node), time.Now().UnixNano()
	for _, old := range m.manual.routes() { // its member's clock may be ahead
		if old.Domain == r.Domain && old.Owner == r.Owner {
			r.Version = max(r.Version, old.Version+1)
		}
	}
	if r, err = hotkey.ManualRoute(r, hotkey.Targets{Ring: c.View().Ring, Load: c.Loads()}, n); err != nil {
		return api.HotRoute{}, err
	}
	if err := c.SetManualRoute(r); err != nil {
		return api.HotRoute{}, err
	}
	if m.manual.wanted == nil {
		m.manual.wanted = map[[2]string]int{}
	}
	m.manual.wanted[[2]string{r.Domain, r.Owner}] = n
	m.Log.Info("hot key route ordered by an operator", "key", r.Name, "mode", api.HotMode(r.Mode), "sub_keys", len(r.Subs))
	return routeStatus(&r), nil
}

// resolveOrder returns a route for the key of an order, with its limit if that is known, and the number of sub-keys
// that its rule asks for.
func (m *sidecar) resolveOrder(o *api.HotOrder) (r hotkey.Route, subs int, err error) {
	r = hotkey.Route{Domain: o.Domain, Owner: o.OwnerString}
	why := ""
	if o.Descriptor == nil {
		for _, k := range m.node.HotKeys(time.Now().UnixNano()) {
			if k.Domain == o.Domain && k.Owner == o.OwnerString {
				r.Name, subs = k.Name, int(k.LeaseTerms.SubKeys)
				r.Limit, r.Window = capLimit(k.Rule), int64(k.Rule.Window)
				why = whyUncapped(k.Rule, &k.LeaseTerms, replacedKey(&k, m.service.Rules()))
			}
		}
		if mode := hotkey.Mode(*o.Mode); mode == hotkey.Quota || r.Name == "" && mode == hotkey.Cap {
			return r, 0, errors.New("this member does not know the key's limit: name the key by its descriptor")
		}
		return r, subs, refuseCap(o, why)
	}
	rules := m.service.Rules()
	if rules == nil {
		return r, 0, api.ErrNoCounter
	}
	var found config.Match
	entries := admin.Entries(o.Descriptor)
	rules.Match(o.Domain, entries, nil, &found)
	if found.Kind != config.Limited {
		return r, 0, api.ErrNoCounter
	}
	if mode := hotkey.Mode(*o.Mode); found.Rule.Extension.Fair != nil && mode != hotkey.Never && mode != hotkey.Auto {
		return r, 0, errors.New("its rule divides the limit between tenants (fair), so only its owner decides: mode never is possible")
	}
	terms := found.Extension().Lease
	if terms != nil {
		subs = int(terms.SubKeys)
	}
	if hotkey.Mode(*o.Mode) == hotkey.Quota {
		return m.resolveQuota(r, entries, rules)
	}
	why = whyUncapped(found.Limit, terms, rules.Replaced()[found.Rule.Name])
	r.Name, r.Owner = string(found.AppendName(nil, entries)), string(rules.AppendOwnerString(nil, o.Domain, entries, &found))
	r.Limit, r.Window = capLimit(found.Limit), int64(found.Limit.Window)
	if !found.Rule.SharesCounter {
		r.Entries = routeEntries(entries)
	}
	return r, subs, refuseCap(o, why)
}

// resolveQuota completes the route of a key whose limit Envoys are to spend.
func (m *sidecar) resolveQuota(r hotkey.Route, entries []config.Entry, rules *config.Rules) (hotkey.Route, int, error) {
	var found config.Match
	r.Entries = routeEntries(entries)
	r.Owner = entries[len(entries)-1].Value
	if why := whyNoQuota(r.Domain, r.Owner, r.Entries, rules, &found); why != "" {
		return r, 0, errors.New("Envoys cannot spend the limit of this key: " + why)
	}
	r.Name, r.Allow = string(found.AppendName(nil, entries)), found.Rule.Extension.Quota.First == config.FirstAllow
	return r, 0, nil
}

// capLimit returns the limit of a rule's caps: all that a bucket may admit at once.
func capLimit(r limit.Rule) uint32 { return max(r.Limit, r.Depth()) }

// replacedKey reports whether another rule replaces the rule of k.
func replacedKey(k *owner.HotKey, rules *config.Rules) bool {
	var m config.Match
	return rules != nil && rules.EntriesOf(k.Domain, k.Name, k.Key, &m) != nil && rules.Replaced()[m.Rule.Name]
}

// refuseCap returns an error if o orders a cap, and why is a reason against it.
func refuseCap(o *api.HotOrder, why string) error {
	if why == "" || hotkey.Mode(*o.Mode) != hotkey.Cap {
		return nil
	}
	return errors.New("Envoy cannot cap this key: " + why)
}

// refreshManual places the sub-keys of this member's orders on a new ring.
func (m *sidecar) refreshManual(at *ring.Ring) {
	c := m.cluster.Load()
	if c == nil || at.Len() < 2 {
		return
	}
	m.manual.mu.Lock()
	defer m.manual.mu.Unlock()
	for _, old := range m.manual.routes() {
		if !old.Manual || old.Author != ring.ID(m.Flags.Node) || len(old.Subs) == 0 {
			continue
		}
		r, err := hotkey.ManualRoute(old, hotkey.Targets{Ring: at, Load: c.Loads()}, m.manual.wanted[[2]string{old.Domain, old.Owner}])
		if err != nil || slices.Equal(r.Subs, old.Subs) {
			continue
		}
		r.Version = max(time.Now().UnixNano(), old.Version+1)
		if err := c.SetManualRoute(r); err != nil {
			m.Log.Warn("hot key route not updated after a ring change", "key", r.Name, "error", err)
		}
	}
}

// refreshCaps gives the caps that this member's operators have ordered the limits of new rules.
func (m *sidecar) refreshCaps(rules *config.Rules) {
	c := m.cluster.Load()
	if c == nil {
		return
	}
	m.manual.mu.Lock()
	defer m.manual.mu.Unlock()
	for _, old := range m.manual.routes() {
		r, changed := recapped(old, rules)
		if !changed || !old.Manual || old.Author != ring.ID(m.Flags.Node) {
			continue
		}
		r.Version = max(time.Now().UnixNano(), old.Version+1)
		if err := c.SetManualRoute(r); err != nil {
			m.Log.Warn("cap of a hot key not updated after a change of its rule", "key", r.Name, "error", err)
		} else if r.Mode == hotkey.Auto {
			m.Log.Warn("cap of a hot key withdrawn, since its new rule cannot be capped", "key", r.Name)
		}
	}
}

// recapped returns a manual route with the limit of its key's rule, and whether it differs from old. It withdraws a cap
// if the rule must not be capped any more. Without an exact descriptor, the rule is not known.
func recapped(old hotkey.Route, rules *config.Rules) (r hotkey.Route, changed bool) {
	if old.Mode == hotkey.Quota {
		return requota(old, rules)
	}
	if old.Mode != hotkey.Cap || len(old.Entries) == 0 {
		return old, false
	}
	var entries []config.Entry
	for _, e := range old.Entries {
		entries = append(entries, config.Entry(e))
	}
	var found config.Match
	rules.Match(old.Domain, entries, nil, &found)
	r = old
	if found.Kind != config.Limited || found.Rule.Extension.Fair != nil ||
		whyUncapped(found.Limit, found.Extension().Lease, rules.Replaced()[found.Rule.Name]) != "" {
		r.Mode, r.Limit, r.Window = hotkey.Auto, 0, 0
		return r, true
	}
	r.Limit, r.Window = capLimit(found.Limit), int64(found.Limit.Window)
	return r, r.Limit != old.Limit || r.Window != old.Window
}

// requota withdraws a manual route that switches a key to a quota if its rule has no such step any more, and returns
// whether it differs from old.
func requota(old hotkey.Route, rules *config.Rules) (r hotkey.Route, changed bool) {
	var found config.Match
	if r = old; whyNoQuota(r.Domain, r.Owner, r.Entries, rules, &found) != "" {
		r.Mode = hotkey.Auto
		return r, true
	}
	r.Allow = found.Rule.Extension.Quota.First == config.FirstAllow
	return r, r.Allow != old.Allow
}

func (m *sidecar) hotKeys() api.HotKeys {
	h := api.HotKeys{Member: m.Flags.Node, Keys: []api.HotKeyStatus{}, Routes: []api.HotRoute{}}
	rules := m.service.Rules()
	for _, k := range m.node.HotKeys(time.Now().UnixNano()) {
		status := hotKeyStatus(&k)
		if k.Hot && k.Name != "" && rules != nil {
			status.Relief = reliefOf(&k, rules)
		}
		h.Keys = append(h.Keys, status)
	}
	if m.xds != nil {
		h.Envoys = hotEnvoys(m.xds.status())
	}
	for _, r := range m.manual.routes() {
		status := routeStatus(&r)
		if m.xds != nil {
			status.Quota = m.xds.primer.state(&r)
		}
		h.Routes = append(h.Routes, status)
	}
	return h
}

func hotKeyStatus(k *owner.HotKey) api.HotKeyStatus {
	p := api.HotKeyStatus{
		Domain: k.Domain, Name: k.Name, OwnerString: k.Owner, Digest: digest(k.Key), Position: fmt.Sprintf("%016x", k.RingPos), Rate: round(k.Rate), OwnRate: round(k.OwnRate), Hot: k.Hot,
		Limit: k.Rule.Limit, Window: k.Rule.Window.String(), Used: k.Used, Lent: k.Lent, Splittable: k.Splittable,
	}
	if k.Hot && k.Since > 0 {
		since := time.Unix(0, k.Since)
		p.Since = &since
	}
	for _, l := range k.Holders {
		p.Holders = append(p.Holders, api.LeaseHolder{Member: string(l.Holder), Lent: l.Unspent, Demand: round(l.Demand), Asked: time.Unix(0, l.AskedAt)})
	}
	return p
}

func routeStatus(r *hotkey.Route) api.HotRoute {
	p := api.HotRoute{
		Domain: r.Domain, Name: r.Name, OwnerString: r.Owner, Mode: api.HotMode(r.Mode), Manual: r.Manual,
		By: string(r.Author), Since: time.Unix(0, r.Version),
	}
	for _, s := range r.Subs {
		p.SubKeys = append(p.SubKeys, api.RouteSubKey{Key: s.Key, Member: string(s.Member)})
	}
	return p
}

func (m *sidecar) heldLeases() api.HeldLeases {
	l := api.HeldLeases{Member: m.Flags.Node, Keys: []api.HeldLease{}}
	for _, h := range m.node.Held(time.Now().UnixNano()) {
		l.Keys = append(l.Keys, api.HeldLease{
			Domain: h.Domain, Name: h.Name, OwnerString: h.Owner, Digest: digest(h.Key), Owner: string(h.Member), Mechanism: h.Mechanism.String(),
			Left: h.Left, Have: h.Have, Demand: round(h.Demand), Denied: h.Denied, Expires: time.Unix(0, h.Expires),
		})
	}
	return l
}

// tap passes decisions of the service to see until stop is called.
func (m *sidecar) tap(q admin.TapQuery, see func(api.TapDecision)) (stop func()) {
	return m.service.Tap(rls.TapOptions{Domain: q.Domain, Text: q.Key, Over: q.Over, Rate: q.Rate}, func(s rls.DecisionSample) {
		see(m.decision(&s))
	})
}

func (m *sidecar) decision(s *rls.DecisionSample) api.TapDecision {
	d := api.TapDecision{
		Time: s.Time, Member: m.Flags.Node, Domain: s.Domain, Descriptor: s.Descriptor, Rule: s.Rule,
		Hits: int64(min(s.Hits, math.MaxInt64)), Code: "OK",
	}
	if s.Op == owner.Refund {
		d.Hits = -d.Hits
	}
	if s.Code == rls.OverLimit {
		d.Code = "OVER_LIMIT"
	}
	if s.Counted {
		d.Path, d.Authority, d.Owner = pathName(s.Path), admin.AuthorityName(s.Authority), string(m.ownerOf(s.Owner))
		d.Limit, d.Remaining = &s.Limit, &s.Remaining
	}
	return d
}

func pathName(p owner.Path) string {
	return [...]string{owner.Local: "local", owner.Forwarded: "forwarded", owner.Leased: "lease", owner.Fallback: "degraded"}[p]
}

func digest(k owner.Key) string { return fmt.Sprintf("%016x%016x", k[0], k[1]) }

// round rounds a rate to one decimal.
func round(rate float64) float64 { return math.Round(rate*10) / 10 }
