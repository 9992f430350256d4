package app

import (
	"fmt"
	"sync"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/audit"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/owner"
)

const (
	// budgetsShown is the most keys of /v1/budgets.
	budgetsShown = 200
	// maxNamedKeys is the number of keys whose names namedKeys remembers, and namedFor for how long.
	maxNamedKeys = 2048
	namedFor     = 10 * time.Minute
	// budgetLogsPerSecond is the most log lines about budgets in a second.
	budgetLogsPerSecond = 10
)

// namedKeys remembers the names of keys that this member has received requests for lately. The zero value is empty. It is
// safe for concurrent use.
type namedKeys struct {
	mu   sync.Mutex
	keys map[owner.Key]namedKey
}

// namedKey is the name of a key, and when it was last reported.
type namedKey struct {
	api.BudgetName
	at time.Time
}

// add stores the name of key. If there is no room, it drops names at random.
func (n *namedKeys) add(key owner.Key, name api.BudgetName, now time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys == nil {
		n.keys = map[owner.Key]namedKey{}
	}
	if _, known := n.keys[key]; !known && len(n.keys) >= maxNamedKeys {
		for k := range n.keys {
			delete(n.keys, k)
			break
		}
	}
	n.keys[key] = namedKey{name, now}
}

// get returns the name of key; empty if it is not known.
func (n *namedKeys) get(key owner.Key) api.BudgetName {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.keys[key].BudgetName
}

// all returns the names that were reported lately, by digest.
func (n *namedKeys) all(now time.Time) map[string]api.BudgetName {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := make(map[string]api.BudgetName, len(n.keys))
	for k, x := range n.keys {
		if now.Sub(x.at) > namedFor {
			delete(n.keys, k)
			continue
		}
		out[digest(k)] = x.BudgetName
	}
	return out
}

// nameKey stores the name of a key that is hot or has holds.
func (m *sidecar) nameKey(key owner.Key, name owner.KeyName, terms *lease.Terms) {
	m.named.add(key, api.BudgetName{Domain: name.Domain, Name: name.Name}, time.Now())
	m.node.Name(key, name, terms)
}

// budgets returns the document of /v1/budgets.
func (m *sidecar) budgets() api.Budgets {
	now := time.Now()
	list, total := m.node.Budgets(now.UnixNano(), budgetsShown)
	b := api.Budgets{Member: m.Flags.Node, Keys: []api.BudgetStatus{}, Total: total, Names: m.named.all(now)}
	for i := range list {
		b.Keys = append(b.Keys, m.budgetStatus(&list[i]))
	}
	return b
}

func (m *sidecar) budgetStatus(b *owner.KeyBudget) api.BudgetStatus {
	name := m.named.get(b.Key)
	return api.BudgetStatus{
		Domain: name.Domain, Name: name.Name, Digest: digest(b.Key), Algorithm: b.Rule.Algorithm.String(), Limit: b.Rule.Depth(),
		Window: b.Rule.Window.String(), Spent: b.Spent(), Held: b.Held, Left: leftOf(uint64(b.Rule.Depth()), b.Used), Open: b.Open,
		Oldest: timeAt(b.Oldest), Reset: b.Reset.Seconds(),
	}
}

// leftOf returns how many hits fit.
func leftOf(limit, used uint64) uint64 { return limit - min(limit, used) }

// heldHits returns the parts of count, about which the owner of k has answered a, or nil if k's rule has no holds.
func heldHits(k *limitedKey, count uint64, a *owner.Result) *api.HeldHits {
	terms, _, _ := k.match.Holds()
	if terms == nil {
		return nil
	}
	return &api.HeldHits{
		Spent: leftOf(count, a.Held), Held: a.Held, Left: leftOf(uint64(k.match.Limit.Depth()), count), Open: uint64(a.Holds),
	}
}

// onBudgets reports that budgets have reached a part of their limits: as audit records of rules with audit logs, and
// otherwise as log lines, of which it drops those above budgetLogsPerSecond. Log lines have no value that a client sent.
func (m *sidecar) onBudgets(events []owner.BudgetEvent) {
	for i := range events {
		e := &events[i]
		name := m.named.get(e.Key)
		if e.Audit {
			m.audit.Add(audit.Record{
				Time: time.Unix(0, e.At), Kind: fmt.Sprintf("budget_%d", e.Percent), Domain: name.Domain, Key: name.Name,
				Digest: digestText(e.Key), Used: e.Used, Limit: e.Limit,
			})
			continue
		}
		if dropped, ok := m.budgetLogs.take(time.Now()); ok {
			m.Log.Info("budget used", "percent", e.Percent, "domain", name.Domain, "digest", digestText(e.Key), "used", e.Used,
				"limit", e.Limit, "dropped", dropped)
		}
	}
}

// logBudget bounds log lines. The zero value is ready. It is safe for concurrent use.
type logBudget struct {
	mu      sync.Mutex
	second  int64
	n       int
	dropped uint64 // since the last line
}

// take reports whether a line may be logged at time now, and how many were dropped before it.
func (l *logBudget) take(now time.Time) (dropped uint64, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := now.Unix(); at != l.second {
		l.second, l.n = at, 0
	}
	if l.n++; l.n > budgetLogsPerSecond {
		l.dropped++
		return 0, false
	}
	dropped, l.dropped = l.dropped, 0
	return dropped, true
}
