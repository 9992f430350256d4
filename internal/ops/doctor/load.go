package doctor

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"

	"github.com/keyward/keyward/internal/api"
)

// direct checks that Envoys call owners directly.
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
		r.fail("set --rls-advertise on every member (in a pod: its address and port 8083); without it, xDS leaves the "+
			"member out, the rings of Envoys and members differ, and requests take an additional hop",
			"Envoys of other pods cannot call %s: --rls-advertise is not set", strings.Join(hidden, ", "))
	case len(hidden) > 0:
		r.warn("to let Envoys call owners directly, set --rls-advertise on all members; for plain RLS there is nothing to do",
			"no member has --rls-advertise: each Envoy calls its own sidecar, which forwards requests")
	}
	directRatio(f, r)
}

// directRatio checks how many requests Envoys send directly to the owner.
func directRatio(f *Snapshot, r *report) {
	hits, ring, key := 0.0, 0.0, 0.0
	for _, m := range f.counters() {
		hits += m.Metrics.Sum("keyward_direct_total")
		ring += m.Metrics.Sum("keyward_misrouted_total", "cause", "ring")
		key += m.Metrics.Sum("keyward_misrouted_total", "cause", "key")
	}
	calls := hits + ring + key
	if calls < enough {
		r.quiet("too few requests with a key for a ratio (%.0f)", calls)
		return
	}
	ratio := hits / calls
	switch {
	case ratio >= 0.95:
		r.ok("%.1f %% of %.0f requests with a key went directly to their owner", 100*ratio, calls)
	case ring > key:
		r.warn("compare Envoy's endpoints, weights and lb_policy with the members (--envoy), or let the members adopt "+
			"Envoy's ring (--ring envoy); shortly after a membership change this is normal",
			"%.1f %% of %.0f requests went directly to their owner; for %.0f Envoy's ring differs", 100*ratio, calls, ring)
	default:
		r.warn("send the value of the entry that determines the owner: `keyward envoy-config` writes x-keyward-key, and "+
			"`keyward explain` shows the owner string",
			"%.1f %% of %.0f requests went directly to their owner; %.0f had the key of another entry", 100*ratio, calls, key)
	}
}

// enough is how many requests a ratio needs.
const enough = 100

// xdsStatus holds the part of the xDS status in /cluster that is checked.
type xdsStatus struct {
	Versions map[string]string `json:"versions"`
	Clients  []struct {
		Node  string   `json:"node"`
		Hot   []string `json:"hot"`
		Types map[string]struct {
			Accepted, Sent, Refused, Why string
		} `json:"types"`
	} `json:"clients"`
}

// served checks that Envoys accept what xDS servers send, and that all servers send the same.
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
			if name == "TypedExtensionConfig" {
				continue // a server without rules does not serve the filters of all domains
			}
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
					r.fail("Envoy keeps its previous configuration: fix the reported error, often a port in use, or a "+
						"--route-cluster that Envoy does not have",
						"%s rejects the %s of %s: %s", c.Node, name, m.Name(), t.Why)
				}
			}
		}
	}
	for name, by := range versions {
		if len(by) > 1 {
			r.warn("check one cluster, and use the same --route-* and --ring-capacity on all servers: then they serve the same",
				"xDS servers serve different %s: %s", name, formatGroups(by))
		}
	}
	if servers == 0 {
		r.ok("no xDS server found")
		return
	}
	r.quiet("%s, %s; no client rejects a resource", number(servers, "xDS server"), number(clients, "client"))
}

func xdsOf(c *api.ClusterStatus) (s xdsStatus, ok bool) {
	if c.XDS == nil {
		return s, false
	}
	text, err := json.Marshal(c.XDS)
	return s, err == nil && json.Unmarshal(text, &s) == nil
}

// full is the fraction of the table above which there is a warning.
const full = 0.8

func memory(f *Snapshot, r *report) {
	for _, m := range f.counters() {
		if n := m.Metrics.Sum("keyward_overflow_keys_total"); n > 0 {
			r.warn("raise --max-keys (about 100 bytes per key), or find the clients that create keys: keyward top, keyward tap",
				"%s had no room for %.0f keys; it counts them in a sketch that may deny requests too early", m.Name(), n)
		}
		keys := m.Metrics.Sum("keyward_keys", "table", "owned") + m.Metrics.Sum("keyward_keys", "table", "replica")
		if most, err := strconv.ParseFloat(m.flag("max-keys"), 64); err == nil && keys > full*most {
			r.warn("raise --max-keys (about 100 bytes per key) before the table is full",
				"%s has %.0f keys, %.0f %% of --max-keys", m.Name(), keys, 100*keys/most)
		}
	}
	for i := range f.Members {
		m := &f.Members[i]
		if m.Self == nil {
			continue
		}
		switch x := m.Self.Memory; {
		case x.Limit > 0 && x.GoLimit == 0:
			r.warn("set GOMEMLIMIT to 90 % of the container's limit, so that Go collects garbage before the kernel kills the "+
				"process",
				"%s has a memory limit of %d MiB, and GOMEMLIMIT is not set", m.Name(), x.Limit>>20)
		case x.Limit > 0 && float64(x.GoLimit) > 0.95*float64(x.Limit):
			r.warn("set GOMEMLIMIT to 90 % of the container's limit", "%s has GOMEMLIMIT %d MiB in a container of %d MiB",
				m.Name(), x.GoLimit>>20, x.Limit>>20)
		case x.Limit > 0 && float64(x.Used) > 0.9*float64(x.Limit):
			r.warn("raise the container's limit, or lower --max-keys", "%s uses %d of %d MiB", m.Name(), x.Used>>20, x.Limit>>20)
		}
	}
	r.quiet("tables and memory are below their limits")
}

// authority checks that owners decide, and reports what may have been admitted when they could not.
func authority(f *Snapshot, r *report) {
	over, members := 0.0, []string{}
	for _, m := range f.counters() {
		if n := m.Metrics.Sum("keyward_overadmission_bound"); n > 0 {
			over += n
			members = append(members, m.Name())
		}
		size, reach := len(m.Cluster.Ring.Members), int(m.Metrics.Sum("keyward_reach"))
		if me := m.sees(m.Name()); me != nil && me.State == "active" && size > 1 && reach < size {
			r.fail("members send each other heartbeats over 7947/TCP: check ports and certificates",
				"%s is confirmed by %d of %s on the ring", m.Name(), reach, number(size, "member"))
		}
	}
	if over > 0 {
		slices.Sort(members)
		r.warn("this is the effect of faults in the current windows: keyward_overadmission_bound_by_cause shows the cause, "+
			"docs/bounds.md explains it",
			"up to %.0f hits above limits may have been admitted, by %s", over, strings.Join(members, ", "))
	}
	r.quiet("every decision is made by the key's owner")
}
