package doctor

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/promtext"
)

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// healthy returns a cluster of three members and an Envoy without any fault.
func healthy() *Snapshot {
	f := &Snapshot{Now: now, NoRules: "00000000000000ff"}
	ids := []string{"pod-0", "pod-1", "pod-2"}
	var all []api.MemberStatus
	for i, id := range ids {
		m := api.MemberStatus{
			ID: id, State: "active", Role: "member", Weight: 1, Gossip: fmt.Sprintf("10.0.0.%d:7946", i), Peer: fmt.Sprintf("10.0.0.%d:7947", i),
			RLS: fmt.Sprintf("10.0.0.%d:8083", i), Ring: "00000000000000aa",
		}
		m.Rules.InForce = "00000000000000bb"
		all = append(all, m)
	}
	for i, id := range ids {
		c := api.ClusterStatus{
			Self: id, Label: "keyward", Version: "v1.0.0", Joined: true, Members: slices.Clone(all),
			Ring:  api.RingStatus{Fingerprint: "00000000000000aa", Members: ids},
			Rules: api.RulesStatus{InForce: "00000000000000bb"},
		}
		s := &api.Self{
			Node: id, Role: "member", Time: now.UnixNano(), GossipBy: []string{"0123abcd"}, Offsets: map[string]float64{},
			Flags:  map[string]string{"ring-capacity": "1024", "expect": "3", "decision-timeout": "12ms", "max-keys": "1000", "partition": "share", "data": "/data", "data-window": "1h0m0s", "data-size": "1GiB"},
			Data:   &api.SelfData{Dir: "/data", State: "up", Up: true, Bytes: 100 << 20, MaxBytes: 1 << 30},
			Addrs:  api.SelfAddresses{Gossip: all[i].Gossip, RLS: all[i].RLS},
			Cert:   &api.SelfCertificate{Names: []string{"spiffe://x/sidecar"}, PeerNames: []string{"spiffe://x/sidecar"}, CA: []string{"ca0"}, NotAfter: now.Add(90 * 24 * time.Hour), CANotAfter: now.Add(900 * 24 * time.Hour), Files: map[string]string{"cert": "tls.crt", "ca": "ca.crt"}},
			Memory: api.SelfMemory{GoLimit: 900 << 20, Limit: 1 << 30, Used: 100 << 20},
		}
		for j, other := range ids {
			if i != j {
				s.Offsets[other] = 0.001 * float64(i-j)
			}
		}
		f.Members = append(f.Members, MemberReport{Page: "http://" + id, Cluster: c, Self: s, Metrics: metricsOf(
			"keyward_peer_connected 2\nkeyward_reach 3\nkeyward_direct_total 1000\nkeyward_misrouted_total{cause=\"ring\"} 2\nkeyward_misrouted_total{cause=\"key\"} 3\nkeyward_keys{table=\"owned\"} 10\nkeyward_journal_up 1\nkeyward_journal_missing 0\nkeyward_journal_bad_blocks_total 0\n",
		)})
	}
	f.Envoys = []EnvoyPages{{
		Address: "envoy", ServerInfo: []byte(`{"version": "abc/1.38.3/Clean/RELEASE/BoringSSL"}`), Stats: []byte("cluster.a.ratelimit.ok: 10000\ncluster.a.ratelimit.error: 1\n"),
		ConfigDump: []byte(`{"configs": [{"listener": {"filters": [{"typed_config": {
			"@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit", "domain": "edge", "timeout": "0.100s", "failure_mode_deny": true,
			"rate_limit_service": {"grpc_service": {"envoy_grpc": {"cluster_name": "keyward"}, "initial_metadata": [{"key": "x-keyward-key", "value": "%REQ(x)%"}],
				"retry_policy": {"retry_on": "reset,connect-failure", "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.040s"}, "retry_host_predicate": [{"name": "p"}]}}}}}]}},
			{"cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "keyward", "lb_policy": "RING_HASH"}}]}`),
		Clusters: []byte(`{"cluster_statuses": [{"name": "keyward", "host_statuses": [
			{"address": {"socket_address": {"address": "10.0.0.0", "port_value": 8083}}, "locality": {"sub_zone": "pod-0"}},
			{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 8083}}, "locality": {"sub_zone": "pod-1"}},
			{"address": {"socket_address": {"address": "10.0.0.2", "port_value": 8083}}, "locality": {"sub_zone": "pod-2"}},
			{"address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}}, "locality": {"region": "void"}}]}]}`),
	}}
	f.Rules = &LocalRules{Path: "config", Hash: "00000000000000bb", Domains: []string{"edge"}}
	return f
}

func metricsOf(page string) promtext.Page {
	m, err := promtext.Parse([]byte(page))
	if err != nil {
		panic(err)
	}
	return m
}

// setMetrics adds metrics to a member.
func setMetrics(m *MemberReport, page string) {
	for name, samples := range metricsOf(page) {
		m.Metrics[name] = samples
	}
}

// module gives all members a socket for modules, and one of them a metric of modules.
func module(member int, metric string) func(f *Snapshot) {
	return func(f *Snapshot) {
		for i := range f.Members {
			f.Members[i].Self.Flags["module-socket"] = "/run/keyward/module.sock"
			f.Members[i].Self.Started = f.Now.Add(-time.Minute)
			setMetrics(&f.Members[i], "keyward_module_connections 1\n")
		}
		setMetrics(&f.Members[member], "keyward_module_"+metric+"\n")
	}
}

// TestModulesAreFine requires that doctor finds nothing wrong with modules that work, and only notes that there are none.
func TestModulesAreFine(t *testing.T) {
	text := func(f *Snapshot) (text string) {
		for _, x := range Examine(f) {
			if x.Severity != OK {
				t.Errorf("%+v", x)
			}
			if x.Check == "modules" {
				text += x.Text
			}
		}
		return text
	}
	f := healthy()
	if s := text(f); s != "no member has --module-socket: Envoys have no module" {
		t.Error(s)
	}
	module(1, "connections 2")(f)
	if s := text(f); s != "4 modules of Envoys connected to 3 members" {
		t.Error(s)
	}
	module(1, "connections 0")(f)
	if s := text(f); s != "2 modules of Envoys connected to 3 members" {
		t.Error(s)
	}
	f.Members[1].Self.Started = f.Now.Add(-time.Hour)
	if s := text(f); s != "note: no module is connected to pod-1, which started more than 10 minutes ago; does Envoy load the module, with the path of --module-socket?" {
		t.Error(s)
	}
}

// inRegion puts members into regions of a federation.
func inRegion(f *Snapshot, names ...string) {
	for i, name := range names {
		if name == "" {
			continue
		}
		m := &f.Members[i]
		for metric, labels := range map[string]map[string]string{
			"keyward_federation_epoch": {"federation": "shop", "region": name}, "keyward_federation_up": {"authority": "home"},
			"keyward_federation_clock_offset_seconds": {"authority": "home"},
		} {
			m.Metrics[metric] = []promtext.Series{{Labels: labels, Value: 1}}
		}
		m.Metrics["keyward_federation_clock_offset_seconds"][0].Value = 0.1
		m.Self.Flags["authority"] = "[home=keyward://home:7948]"
		m.Self.Cert.Names = append(slices.Clone(m.Self.Cert.Names), "spiffe://shop/keyward/region/"+name)
	}
}

// TestRegionsAreFine requires that doctor finds nothing wrong with a healthy region.
func TestRegionsAreFine(t *testing.T) {
	f := healthy()
	inRegion(f, "eu", "eu", "eu")
	for _, x := range Examine(f) {
		if x.Severity != OK || x.Check == "regions" && x.Text != "all members are in region eu of shop, epoch 1" {
			t.Errorf("%+v", x)
		}
	}
}

func TestNothingIsWrong(t *testing.T) {
	seen := map[string]bool{}
	for _, x := range Examine(healthy()) {
		if x.Severity != OK {
			t.Errorf("%+v", x)
		}
		seen[x.Check] = true
	}
	if len(seen) != 22 {
		t.Errorf("%d checks: %v", len(seen), seen)
	}
	for _, x := range Examine(&Snapshot{Now: now}) {
		if x.Severity == OK && x.Check == "one cluster" {
			t.Errorf("no member counts: %+v", x)
		}
	}
}

// TestEveryMistake makes one mistake at a time. Its check alone must report it, with advice.
func TestEveryMistake(t *testing.T) {
	envoy := func(from, to string) func(f *Snapshot) {
		return func(f *Snapshot) {
			e := &f.Envoys[0]
			before := string(e.ConfigDump) + string(e.Clusters)
			e.ConfigDump = []byte(strings.Replace(string(e.ConfigDump), from, to, 1))
			e.Clusters = []byte(strings.Replace(string(e.Clusters), from, to, 1))
			if before == string(e.ConfigDump)+string(e.Clusters) {
				panic(from)
			}
		}
	}
	for _, row := range []struct {
		check string
		level Severity
		text  string
		plant func(f *Snapshot)
	}{
		{"members", Warn, "pod-9 (10.0.0.9:9090) does not respond: refused", func(f *Snapshot) {
			f.Unreachable = []UnreachablePage{{"10.0.0.9:9090", "pod-9", errors.New("refused")}}
		}},
		{"regions", Fail, "members have different places in a federation: region eu of shop, epoch 1: pod-0, pod-1; region eu of shop, epoch 2: pod-2", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu")
			f.Members[2].Metrics["keyward_federation_epoch"][0].Value = 2
		}},
		{"regions", Fail, "epoch 1: pod-0, pod-1; region eu of shop, epoch 2: pod-2", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu") // all use epoch 1 so far, and one has not read the layout that follows
			f.Members[2].Metrics["keyward_federation_newest_epoch"] = []promtext.Series{{Labels: map[string]string{"federation": "shop", "region": "eu"}, Value: 2}}
		}},
		{"regions", Fail, "pod-1 does not use its file of layouts", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu")
			f.Members[1].Metrics["keyward_federation_layout_refused"] = []promtext.Series{{Value: 1}}
		}},
		{"regions", Fail, "none: pod-1; region eu of shop, epoch 1: pod-0, pod-2", func(f *Snapshot) {
			inRegion(f, "eu", "", "eu")
		}},
		{"regions", Fail, "pod-1 does not reach the coordinator home", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu")
			f.Members[1].Metrics["keyward_federation_up"][0].Value = 0
		}},
		{"regions", Fail, "the clock of the coordinator home is -300ms ahead of the clock of pod-0", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu")
			f.Members[0].Metrics["keyward_federation_clock_offset_seconds"][0].Value = -0.3
		}},
		{"regions", Fail, "the certificate of pod-2 does not prove that it is in region eu, and the coordinator refuses it", func(f *Snapshot) {
			inRegion(f, "eu", "eu", "eu")
			c := f.Members[2].Self.Cert
			c.Names = c.Names[:len(c.Names)-1]
		}},
		{"ports", Fail, "pod-1 is not reachable at 10.0.0.1:7946 (gossip/udp): connection refused", func(f *Snapshot) {
			f.Probes = []Probe{{"pod-1", "gossip/udp", "10.0.0.1:7946", errors.New("connection refused")}}
		}},
		{"ports", Fail, "pod-0 and pod-2 cannot reach each other, so the degraded policy decides requests for their keys: EOF", func(f *Snapshot) {
			f.Members[0].Cluster.Unreachable = []api.Unreachable{{Member: "pod-2", Reason: "EOF"}}
			f.Members[2].Cluster.Unreachable = []api.Unreachable{{Member: "pod-0", Reason: "EOF"}}
		}},
		{"ports", Fail, "pod-0, pod-1 and pod-2 cannot reach each other, so the degraded policy decides requests for their keys: EOF", func(f *Snapshot) {
			f.Members[0].Cluster.Unreachable = []api.Unreachable{{Member: "pod-2", Reason: "EOF"}}
			f.Members[1].Cluster.Unreachable = f.Members[0].Cluster.Unreachable
		}},
		{"off the ring", Fail, "pod-2 stays off the ring and is not ready: met no other member: lookup typo: no such host", func(f *Snapshot) {
			m := &f.Members[2].Cluster
			m.Problem, m.Cause, m.Joined, m.Ring = "met no other member: lookup typo: no such host", "lookup", false, api.RingStatus{}
			m.Members = m.Members[2:]
			m.Members[0].State = "joining"
			for i := range 2 {
				c := &f.Members[i].Cluster
				c.Members, c.Unreachable = c.Members[:2], []api.Unreachable{{Member: "pod-2", Reason: "EOF"}}
			}
			f.Members[0].Self.Flags["expect"], f.Members[1].Self.Flags["expect"], f.Members[2].Self.Flags["expect"] = "2", "2", "2"
			f.Envoys = nil
		}},
		{"gossip keys", Warn, "gossip was refused from 10.0.0.4 (key) by pod-0, pod-1", func(f *Snapshot) {
			for i := range 2 {
				f.Members[i].Self.GossipRefused = []api.SelfRefusal{{From: "10.0.0.4", Reason: "key", At: now.Add(-time.Minute)}}
			}
			f.Members[2].Self.GossipRefused = []api.SelfRefusal{{From: "10.0.0.5", Reason: "key", At: now.Add(-time.Hour)}}
		}},
		{"ports", Warn, "pod-0 is slow to answer gossip (score 5)", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_gossip_health_score 5\n") }},
		{"ports", Warn, "knows 2 addresses that should be members", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_cluster_missing 2\n") }},
		{"one cluster", Fail, "pod-0 does not see pod-2", func(f *Snapshot) { f.Members[0].Cluster.Members = f.Members[0].Cluster.Members[:2] }},
		{"gossip keys", Fail, "pod-0 and pod-2 cannot read each other's gossip: pod-0, pod-1: 0123abcd; pod-2: ffff0000", func(f *Snapshot) { f.Members[2].Self.GossipBy = []string{"ffff0000"} }},
		{"gossip keys", Warn, "the gossip key files differ", func(f *Snapshot) { f.Members[2].Self.GossipBy = []string{"0123abcd", "ffff0000"} }},
		{"gossip keys", Fail, "gossip between machines is not encrypted", func(f *Snapshot) {
			for i := range f.Members {
				f.Members[i].Self.GossipBy = nil
			}
		}},
		{"certificates", Fail, "pod-1: its certificate (tls.crt) expired", func(f *Snapshot) { f.Members[1].Self.Cert.NotAfter = now.Add(-time.Hour) }},
		{"certificates", Warn, "pod-1: a CA of ca.crt expires in 48h0m0s", func(f *Snapshot) { f.Members[1].Self.Cert.CANotAfter = now.Add(48 * time.Hour) }},
		{"certificates", Fail, "members trust different CAs: pod-0: ca0; pod-1: ca1", func(f *Snapshot) { f.Members[1].Self.Cert.CA = []string{"ca1"}; f.Members = f.Members[:2] }},
		{"certificates", Fail, "pod-1, whose certificate has the name spiffe://y, is refused by pod-0, pod-2", func(f *Snapshot) { f.Members[1].Self.Cert.Names = []string{"spiffe://y"} }},
		{"certificates", Fail, "pod-1: its certificate is not valid for its CA: unknown authority", func(f *Snapshot) { f.Members[1].Self.Cert.Problem = "unknown authority" }},
		{"certificates", Fail, "no certificate: pod-1", func(f *Snapshot) { f.Members[1].Self.Cert = nil }},
		{"clocks", Warn, "the clock of pod-1 is 300ms ahead of the clock of pod-0", func(f *Snapshot) { f.Members[0].Self.Offsets["pod-1"] = 0.3 }},
		{"clocks", Fail, "the clock of pod-1 is 3s ahead of the clock of pod-0", func(f *Snapshot) { f.Members[0].Self.Offsets["pod-1"] = 3 }},
		{"clocks", Fail, "the clock of pod-2 is 5s ahead of the clock of pod-0", func(f *Snapshot) { // without a stream between them
			delete(f.Members[0].Self.Offsets, "pod-2")
			delete(f.Members[2].Self.Offsets, "pod-0")
			f.Members[2].Ahead, f.Members[2].Within = 5*time.Second, 10*time.Millisecond
		}},
		{"ring", Fail, "members use different rings: pod-0, pod-1: 00000000000000aa; pod-2: 00000000000000cc", func(f *Snapshot) { f.Members[2].Cluster.Ring.Fingerprint = "00000000000000cc" }},
		{"ring", Warn, "pod-2 is not on the ring yet", func(f *Snapshot) { f.Members[2].Cluster.Members[2].State = "joining" }},
		{"capacity", Fail, "the members' weights sum to 1026, and a ring with --ring-capacity 1024 has room for 1023", func(f *Snapshot) {
			for i := range f.Members {
				for j := range f.Members[i].Cluster.Members {
					f.Members[i].Cluster.Members[j].Weight = 342
				}
			}
		}},
		{"capacity", Fail, "--ring-capacity differs", func(f *Snapshot) { f.Members[2].Self.Flags["ring-capacity"] = "2048" }},
		{"expected", Warn, "pod-1: --expect is 5, but there are 3 members", func(f *Snapshot) { f.Members[1].Self.Flags["expect"] = "5" }},
		{"expected", Warn, "pod-1: --expect is not set in a cluster of 3", func(f *Snapshot) { f.Members[1].Self.Flags["expect"] = "0" }},
		{"settings", Warn, "--decision-timeout differs: pod-0, pod-2: 12ms; pod-1: 1s", func(f *Snapshot) { f.Members[1].Self.Flags["decision-timeout"] = "1s"; f.Envoys = nil }},
		{"settings", Warn, "pod-0, pod-1: --insecure", func(f *Snapshot) {
			f.Members[1].Self.Warnings, f.Members[0].Self.Warnings = []string{"--insecure: x"}, []string{"--insecure: x"}
		}},
		{"rules", Fail, "members use different rules", func(f *Snapshot) { f.Members[2].Cluster.Rules.InForce = "00000000000000cc"; f.Rules = nil }},
		{"rules", Fail, "pod-2 cannot load its rules: bad", func(f *Snapshot) { f.Members[2].Cluster.Rules.LastError = "bad" }},
		{"rules", Fail, "pod-0 has no rules in force", func(f *Snapshot) { f.Members, f.Envoys, f.NoRules = f.Members[:1], nil, "00000000000000bb" }},
		{"rules", Warn, "the rules in config are version 00000000000000dd", func(f *Snapshot) { f.Rules.Hash = "00000000000000dd" }},
		{"direct", Fail, "Envoys of other pods cannot call pod-2: --rls-advertise is not set", func(f *Snapshot) {
			for i := range f.Members {
				f.Members[i].Cluster.Members[2].RLS = ""
			}
			f.Envoys = nil
		}},
		{"direct", Warn, "62.1 % of 3227 requests went directly to their owner; for 1218 Envoy's ring differs", func(f *Snapshot) {
			for i := range f.Members {
				setMetrics(&f.Members[i], "keyward_direct_total 668\nkeyward_misrouted_total{cause=\"ring\"} 406\nkeyward_misrouted_total{cause=\"other\"} 0\n")
			}
			setMetrics(&f.Members[0], "keyward_misrouted_total{cause=\"key\"} 5\nkeyward_misrouted_total{cause=\"ring\"} 406\n")
		}},
		{"xds", Fail, "e1 rejects the Listener of pod-0: address in use", func(f *Snapshot) {
			f.Members[0].Cluster.XDS = parsed(`{"clients": [{"node": "e1", "types": {"Listener": {"accepted": "1", "sent": "2", "refused": "2", "why": "address in use"}}}]}`)
		}},
		{"xds", Warn, "xDS servers serve different Cluster: pod-0: 1; pod-1: 2", func(f *Snapshot) {
			f.Members[0].Cluster.XDS, f.Members[1].Cluster.XDS = parsed(`{"versions": {"Cluster": "1"}}`), parsed(`{"versions": {"Cluster": "2"}}`)
		}},
		{"memory", Warn, "GOMEMLIMIT is not set", func(f *Snapshot) { f.Members[0].Self.Memory.GoLimit = 0 }},
		{"memory", Warn, "pod-0 has 900 keys, 90 % of --max-keys", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_keys{table=\"owned\"} 900\n") }},
		{"memory", Warn, "pod-0 had no room for 7 keys", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_overflow_keys_total 7\n") }},
		{"journal", Warn, "pod-1: --data is not set, but pod-0, pod-2 have it", func(f *Snapshot) {
			f.Members[1].Self.Flags["data"], f.Members[1].Self.Data = "", nil
		}},
		{"journal", Warn, "--data-window differs: pod-0, pod-2: 1h0m0s; pod-1: 2h0m0s", func(f *Snapshot) { f.Members[1].Self.Flags["data-window"] = "2h0m0s" }},
		{"journal", Warn, "--data-size differs", func(f *Snapshot) { f.Members[1].Self.Flags["data-size"] = "2GiB" }},
		{"journal", Fail, "pod-1 cannot write its journal in /data: no space left on device", func(f *Snapshot) {
			setMetrics(&f.Members[1], "keyward_journal_up 0\n")
			f.Members[1].Self.Data.Problem = "no space left on device"
		}},
		{"journal", Fail, "pod-1 cannot write its journal in /data: its disk is full, read-only, failing or stalled", func(f *Snapshot) {
			setMetrics(&f.Members[1], "keyward_journal_up 0\n")
		}},
		{"journal", Warn, "pod-2 has a journal of 900 MiB, 88 % of --data-size", func(f *Snapshot) { f.Members[2].Self.Data.Bytes = 900 << 20 }},
		{"journal", Warn, "pod-0 has skipped 3 blocks of former journals in /data", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_journal_bad_blocks_total 3\n") }},
		{"journal", Warn, "no member has loaded 1 journal of the last ring, according to pod-0, pod-2", func(f *Snapshot) {
			setMetrics(&f.Members[0], "keyward_journal_missing 1\n")
			setMetrics(&f.Members[2], "keyward_journal_missing 1\n")
		}},
		{"authority", Fail, "pod-0 is confirmed by 1 of 3 members on the ring", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_reach 1\n") }},
		{"authority", Warn, "up to 7 hits above limits may have been admitted, by pod-0", func(f *Snapshot) { setMetrics(&f.Members[0], "keyward_overadmission_bound 7\n") }},
		{"versions", Warn, "versions differ", func(f *Snapshot) { f.Members[0].Cluster.Version = "v2.0.0" }},

		{"envoy", Fail, "envoy does not respond", func(f *Snapshot) { f.Envoys[0].Err = errors.New("refused") }},
		{"envoy", Fail, "has no rate-limit filter", envoy("ratelimit.v3.RateLimit", "other.v3.Other")},
		{"envoy", Fail, "its timeout of 10ms expires before a member applies the degraded policy after 12ms", envoy(`"0.100s"`, `"0.010s"`)},
		{"envoy", Fail, "calls for its keys fail", envoy(`"retry_policy"`, `"other"`)},
		{"envoy", Fail, "the time of one attempt, is 100ms with a timeout of 100ms", envoy(`"0.040s"`, `"0.100s"`)},
		{"envoy", Fail, "it retries on connect-failure only", envoy(`reset,connect-failure`, `connect-failure`)},
		{"envoy", Warn, "does not retry on connect-failure", envoy(`reset,connect-failure`, `reset`)},
		{"envoy", Warn, "no previous_hosts predicate", envoy(`"retry_host_predicate"`, `"other"`)},
		{"envoy", Warn, "its policy is ROUND_ROBIN", envoy(`"lb_policy": "RING_HASH"`, `"lb_policy": "ROUND_ROBIN"`)},
		{"envoy", Warn, "it ejects hosts on its own", envoy(`"lb_policy"`, `"outlier_detection": {}, "lb_policy"`)},
		{"envoy", Warn, "checks the health of hosts on its own", envoy(`"lb_policy"`, `"health_checks": [{}], "lb_policy"`)},
		{"envoy", Fail, "its endpoint 10.0.0.9:8083 is not a member", envoy(`{"address": {"socket_address": {"address": "127.0.0.1"`,
			`{"address": {"socket_address": {"address": "10.0.0.9", "port_value": 8083}}}, {"address": {"socket_address": {"address": "127.0.0.1"`)},
		{"envoy", Fail, "pod-1 at 10.0.0.1:8083 is not an endpoint", envoy(`{"address": {"socket_address": {"address": "10.0.0.1", "port_value": 8083}}, "locality": {"sub_zone": "pod-1"}},`, ``)},
		{"envoy", Fail, "has no cluster keyward", envoy(`"cluster_statuses": [{"name": "keyward"`, `"cluster_statuses": [{"name": "other"`)},
		{"hot keys", Warn, "pod-1 decides 900 of 1000 requests per second for edge ip=10.0.0.1 itself; no lease (5 %), no split (5 %), cap by 1 Envoy", func(f *Snapshot) {
			f.Members[2].Cluster.XDS = parsed(`{"clients": [{"node": "e", "hot": ["keyward-caps/edge"]}, {"node": "f", "hot": ["keyward-direct"]}, {"node": "g"}]}`)
			f.Members[1].HotKeys = &api.HotKeys{Keys: []api.HotKeyStatus{{Hot: false, Rate: 9, OwnRate: 9}, {Hot: true, Rate: 10, OwnRate: 1},
				{Domain: "edge", Name: "ip=10.0.0.1", Hot: true, Rate: 1000, OwnRate: 900, Relief: []api.HotRelief{
					{Kind: "lease", Why: "5 %"}, {Kind: "split", Why: "5 %"}, {Kind: "cap", With: "hot-filters"}}}}}
		}},
		{"hot keys", Warn, "lease possible, split by 2 Envoys, cap by 1 Envoy", func(f *Snapshot) {
			f.Members[2].Cluster.XDS = parsed(`{"clients": [{"node": "e", "hot": ["keyward-spread-header"]}, {"node": "f", "hot": ["keyward-direct"]}, {"node": "g", "hot": ["keyward-caps/other"]}]}`)
			f.Members[1].HotKeys = &api.HotKeys{Keys: []api.HotKeyStatus{{Domain: "edge", Hot: true, Rate: 10, OwnRate: 10,
				Relief: []api.HotRelief{{Kind: "lease"}, {Kind: "split"}, {Kind: "cap"}}}}}
		}},
		{"hot keys", Warn, "its name is not known yet", func(f *Snapshot) {
			f.Members[1].HotKeys = &api.HotKeys{Keys: []api.HotKeyStatus{{Hot: true, Rate: 10, OwnRate: 10}}}
		}},
		{"modules", Warn, "pod-1 has refused 2 connections of modules since it started: their messages are malformed", module(1, `refused_total{reason="malformed"} 2`)},
		{"modules", Warn, "pod-1 has refused 1 connection of modules since it started: they sent no greeting", module(1, `refused_total{reason="silent"} 1`)},
		{"modules", Warn, "pod-0 has refused 3 connections of modules since it started: there were more than 64", module(0, `refused_total{reason="excess"} 3`)},
		{"modules", Warn, "pod-2 had no room in an Envoy's memory for 7 leases", module(2, `full_total 7`)},
		{"modules", Fail, "the memory that pod-1 shares with an Envoy was corrupt: 1 connection closed", module(1, `refused_total{reason="corrupt"} 1`)},
		{"modules", Fail, "the memory that pod-1 shares with an Envoy was corrupt: 40 hits lost", module(1, `lost_hits_total 40`)},
		{"modules", Fail, "corrupt: 9 requests for which the module found a corrupt lease", module(1, `missed_total{cause="corrupt"} 9`)},
		{"envoy", Warn, "600 of 10600 calls failed", func(f *Snapshot) { f.Envoys[0].Stats = []byte("a.ratelimit.ok: 10000\na.ratelimit.error: 600\n") }},
	} {
		f := healthy()
		row.plant(f)
		found := false
		for _, x := range Examine(f) {
			switch {
			case x.Check == row.check && x.Severity == row.level && strings.Contains(x.Text, row.text):
				found = true
				if x.Advice == "" && row.text != "pod-0, pod-1: --insecure" {
					t.Errorf("no advice: %+v", x)
				}
			case x.Severity != OK && !(row.check == x.Check):
				t.Errorf("%s: also %+v", row.text, x)
			}
		}
		if !found {
			t.Errorf("%s %q is not found in %+v", row.check, row.text, Examine(f))
		}
	}
}

// TestNoJournal checks that nothing is wrong without --data, and while members load.
func TestNoJournal(t *testing.T) {
	none, loading := healthy(), healthy()
	for i := range none.Members {
		none.Members[i].Self.Flags["data"], none.Members[i].Self.Data = "", nil
		setMetrics(&loading.Members[i], "keyward_journal_up 0\n")
		loading.Members[i].Self.Data.State = "loading"
	}
	for want, f := range map[string]*Snapshot{"no member has --data: all counts are in memory": none, "the journals of 3 members can be written": loading} {
		found := Examine(f)
		if Worst(found) != OK || !slices.ContainsFunc(found, func(x Finding) bool { return x.Check == "journal" && x.Text == want }) {
			t.Errorf("%q is not said in %+v", want, found)
		}
	}
}

// parsed returns the xDS status in /cluster as the doctor receives it.
func parsed(text string) (v any) {
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		panic(err)
	}
	return v
}

// TestNewEnvoySendsItsTimeout checks that a short timeout is accepted if Envoy sends it to members.
func TestNewEnvoySendsItsTimeout(t *testing.T) {
	f := healthy()
	f.Envoys[0].ConfigDump = []byte(strings.Replace(string(f.Envoys[0].ConfigDump), `"0.100s"`, `"0.012s"`, 1))
	f.Envoys[0].ConfigDump = []byte(strings.Replace(string(f.Envoys[0].ConfigDump), `"0.040s"`, `"0.004s"`, 1))
	for version, want := range map[string]Severity{"1.38.3": Fail, "1.40.0": Warn, "2.0.1": Warn} {
		f.Envoys[0].ServerInfo = []byte(`{"version": "abc/` + version + `/Clean"}`)
		if got := Worst(Examine(f)); got != want {
			t.Errorf("%s: %s, want %s", version, got, want)
		}
	}
}
