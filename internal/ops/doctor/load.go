package doctor

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/keyward/keyward/internal/api"
)

// direct holds that Envoys ask owners, not just anyone.
func direct(f *Snapshot, r *report) {
	var hidden []string
	reached, routed := 0, false
	for _, m := range f.counters() {
		me := m.sees(m.Name())
		switch {
		case me == nil || m.Cluster.Standalone:
		case me.RLS != "":
			reached++
		default:
			hidden = append(hidden, m.Name())
		}
		routed = routed || me != nil && me.Route != ""
	}
	switch {
	case reached == 0 && routed: // Envoys route requests themselves
	case len(hidden) > 0 && reached > 0:
		r.fail("give every member --rls-advertise (in a pod: its own address and port 8083); until then xDS leaves it out, Envoys' rings differ from the members', and questions take a hop more",
			"no Envoy of another pod can ask %s: no --rls-advertise", strings.Join(hidden, ", "))
	case len(hidden) > 0:
		r.warn("for owner-direct give all members --rls-advertise; in the shape plain nothing is to be done", "no member has --rls-advertise: Envoys ask their own sidecar, which forwards")
	}
	hits, ring, key := 0.0, 0.0, 0.0
	for _, m := range f.counters() {
		hits += m.Metrics.Sum("keyward_direct_total")
		ring += m.Metrics.Sum("keyward_misrouted_total", "cause", "ring")
		key += m.Metrics.Sum("keyward_misrouted_total", "cause", "key")
	}
	asked := hits + ring + key
	if asked < enough {
		r.quiet("too few questions with a key to judge by (%.0f)", asked)
		return
	}
	ratio := hits / asked
	switch {
	case ratio >= 0.95:
		r.ok("%.1f %% of %.0f questions with a key went straight to their owner", 100*ratio, asked)
	case ring > key:
		r.warn("compare Envoy's endpoints with the members (--envoy): a ring of other hosts, weights or an own lb_policy; shortly after a change of members it passes",
			"%.1f %% of %.0f questions went straight to their owner; Envoy's ring differs for %.0f", 100*ratio, asked, ring)
	default:
		r.warn("send the value of the entry that places the rule: `keyward envoy-config` writes x-keyward-key, `keyward explain` shows the owner string",
			"%.1f %% of %.0f questions went straight to their owner; %.0f had the key of another entry", 100*ratio, asked, key)
	}
}

// enough questions make a ratio.
const enough = 100

// xdsStatus is what /cluster says of xDS, as far as a finding is made of it.
type xdsStatus struct {
	Versions map[string]string `json:"versions"`
	Clients  []struct {
		Node  string `json:"node"`
		Types map[string]struct {
			Accepted, Sent, Refused, Why string
		} `json:"types"`
	} `json:"clients"`
}

// served holds that Envoys take what xDS servers send, and that these send the same.
func served(f *Snapshot, r *report) {
	servers, clients := 0, 0
	versions := map[string]map[string][]string{}
	for i := range f.Members {
		m := &f.Members[i]
		s, ok := xdsOf(&m.Cluster)
		if !ok {
			continue
		}
		servers++
		for name, v := range s.Versions {
			if versions[name] == nil {
				versions[name] = map[string][]string{}
			}
			if v != "" {
				versions[name][v] = append(versions[name][v], m.Name())
			}
		}
		for _, c := range s.Clients {
			clients++
			for name, t := range c.Types {
				if t.Refused != "" && t.Refused == t.Sent {
					r.fail("the Envoy goes on with what it had: mend what it names, often a port in use, or a cluster of --route-cluster that it does not have",
						"%s refuses the %s of %s: %s", c.Node, name, m.Name(), t.Why)
				}
			}
		}
	}
	for name, by := range versions {
		if len(by) > 1 {
			r.warn("servers that see the same members serve the same; see one cluster, and that all have the same --route-* and --ring-capacity", "xDS servers serve different %s: %s", name, formatGroups(by))
		}
	}
	if servers == 0 {
		r.ok("nobody serves xDS")
		return
	}
	r.quiet("%s, %s, none refuses anything", number(servers, "xDS server"), number(clients, "client"))
}

func xdsOf(c *api.ClusterStatus) (s xdsStatus, ok bool) {
	if c.XDS == nil {
		return s, false
	}
	text, err := json.Marshal(c.XDS)
	return s, err == nil && json.Unmarshal(text, &s) == nil
}

// full is how much of a table or of memory may be used before somebody is told.
const full = 0.8

func memory(f *Snapshot, r *report) {
	for _, m := range f.counters() {
		if n := m.Metrics.Sum("keyward_overflow_keys_total"); n > 0 {
			r.warn("raise --max-keys (about 100 bytes each), or find who invents keys: keyward top, keyward tap", "%s had no room for %.0f keys, and counts them by a sketch that may refuse too early", m.Name(), n)
		}
		keys := m.Metrics.Sum("keyward_keys", "table", "owned") + m.Metrics.Sum("keyward_keys", "table", "replica")
		if most, err := strconv.ParseFloat(m.flag("max-keys"), 64); err == nil && keys > full*most {
			r.warn("raise --max-keys (about 100 bytes each) before the table is full", "%s keeps %.0f keys, %.0f %% of --max-keys", m.Name(), keys, 100*keys/most)
		}
	}
	for i := range f.Members {
		m := &f.Members[i]
		if m.Self == nil {
			continue
		}
		switch x := m.Self.Memory; {
		case x.Limit > 0 && x.GoLimit == 0:
			r.warn("set GOMEMLIMIT to 90 % of the container's limit: Go then collects before the kernel kills", "%s has a limit of %d MiB, and GOMEMLIMIT is not set", m.Name(), x.Limit>>20)
		case x.Limit > 0 && float64(x.GoLimit) > 0.95*float64(x.Limit):
			r.warn("set GOMEMLIMIT to 90 % of the container's limit", "%s has GOMEMLIMIT %d MiB in a container of %d MiB", m.Name(), x.GoLimit>>20, x.Limit>>20)
		case x.Limit > 0 && float64(x.Used) > 0.9*float64(x.Limit):
			r.warn("raise the container's limit, or lower --max-keys", "%s uses %d of %d MiB", m.Name(), x.Used>>20, x.Limit>>20)
		}
	}
	r.quiet("there is room in tables and memory")
}

// authority holds that owners decide, and says what was let through when they could not.
func authority(f *Snapshot, r *report) {
	over, members := 0.0, []string{}
	for _, m := range f.counters() {
		if n := m.Metrics.Sum("keyward_overadmission_bound"); n > 0 {
			over += n
			members = append(members, m.Name())
		}
		size, reach := len(m.Cluster.Ring.Members), int(m.Metrics.Sum("keyward_reach"))
		if me := m.sees(m.Name()); me != nil && me.State == "active" && size > 1 && reach < size {
			r.fail("members confirm each other over 7947/TCP: see ports and certificates", "%s is confirmed by %d of %s on the ring", m.Name(), reach, number(size, "member"))
		}
	}
	if over > 0 {
		slices.Sort(members)
		r.warn("it says what faults have cost in the present windows: keyward_overadmission_bound_by_cause has the cause, docs/bounds.md the meaning",
			"up to %.0f hits above limits may have been admitted, by %s", over, strings.Join(members, ", "))
	}
	r.quiet("every key is decided by its one owner")
}
