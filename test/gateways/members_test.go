package gateways

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lab"
	"github.com/keyward/keyward/internal/promtext"
)

// cluster is the members of Keyward behind a gateway, in pods as a Deployment makes them. Its methods are for one goroutine.
type cluster struct {
	workload
	service string            // by whose name the gateway finds ready members
	volumes map[string]string // folders by the names of volumes
	extra   []string          // variables of all members in addition to those of the gateway
	members []*member
	started int

	programs string // folder of the programs of members that are added
}

// member is a pod of Keyward.
type member struct {
	*pod
	ip        string
	readiness string
	inside    *http.Client // connects as the pod's own programs do
}

// newCluster starts n members, which are the first.
func newCluster(ctx context.Context, w workload, service string, volumes map[string]string, n int, extra ...string) (*cluster, error) {
	c := &cluster{workload: w, service: service, volumes: volumes, extra: extra, programs: programs}
	for range n {
		if _, err := c.add(); err != nil {
			return nil, err
		}
	}
	return c, c.awaitReady(ctx)
}

// add starts one more member.
func (c *cluster) add() (*member, error) {
	c.started++
	return c.addNamed(fmt.Sprintf("%s-%d", c.service, c.started-1))
}

// addNamed starts a member with a name that no running one has.
func (c *cluster) addNamed(name string) (*member, error) { return c.addTo(name, name) }

// addTo starts a member with the network of a host, on which other containers of its pod may run.
func (c *cluster) addTo(name, host string) (*member, error) {
	ip, err := addHost(host)
	if err != nil {
		return nil, err
	}
	p := &pod{Name: name, Host: host, Command: c.command, User: c.user, Mounts: map[string]string{c.command[0]: filepath.Join(c.programs, "sidecar")}}
	if len(c.preStop) > 0 {
		p.Mounts[c.preStop[0]] = filepath.Join(c.programs, "keyward")
	}
	for path, volume := range c.mounts {
		p.Mounts[path] = c.volumes[volume]
	}
	p.Env = append(p.Env, "PATH=/bin")
	for _, v := range c.env {
		line, err := v.resolve(name, ip)
		if err != nil {
			return nil, err
		}
		p.Env = append(p.Env, line)
	}
	p.Env = append(p.Env, c.extra...)
	m := &member{pod: p, ip: ip, readiness: c.readiness, inside: &http.Client{Transport: &http.Transport{DialContext: dialerIn(host)}}}
	c.members = append(c.members, m)
	return m, errors.Join(c.publish(), p.start())
}

// publish makes the name server list the members: all of them for gossip, and the ready ones for the gateway.
func (c *cluster) publish() error {
	var all, ready []string
	for _, m := range c.members {
		all = append(all, m.ip)
		if m.ready(context.Background()) == nil {
			ready = append(ready, m.ip)
		}
	}
	names.set(cmp.Or(c.gossip, "keyward-gossip"), all...)
	names.set(c.service, ready...)
	if c.found == nil {
		return nil
	}
	return c.found(ready)
}

// ready asks as the readiness probe of the gateway's Deployment.
func (m *member) ready(ctx context.Context) error {
	if m.process == nil {
		return errors.New("not started")
	}
	if !m.process.Running() {
		return fmt.Errorf("%s has ended: %s", m.Name, m.process.Tail(2000))
	}
	_, err := lab.Get(ctx, "http://"+m.ip+m.readiness)
	return err
}

// awaitReady waits until all members are ready and use one ring, and publishes them.
func (c *cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := lab.Await(ctx, "ready members", func(ctx context.Context) error {
		for _, m := range c.members {
			if err := m.ready(ctx); err != nil {
				return err
			}
			v, err := lab.Cluster(ctx, m.ip+c.metrics)
			if err != nil {
				return err
			}
			if len(v.Ring.Members) != len(c.members) || v.Ring.Disagreement > 0 || v.Rules.Disagreement > 0 {
				return fmt.Errorf("%s: ring of %v, %d members disagree on it, %d on the rules", m.Name, v.Ring.Members, v.Ring.Disagreement, v.Rules.Disagreement)
			}
		}
		return nil
	})
	return errors.Join(err, c.publish())
}

// remove ends a member as Kubernetes ends a pod: the gateway no longer finds it, its preStop hook runs, and its process gets
// SIGTERM.
func (c *cluster) remove(m *member) error {
	c.members = slices.DeleteFunc(c.members, func(o *member) bool { return o == m })
	err := c.publish()
	if len(c.preStop) > 0 {
		err = errors.Join(err, m.run(c.preStop))
	}
	return errors.Join(err, m.stop(40*time.Second))
}

// replace replaces all members, one after the other. As a Deployment does, it adds one, waits until it is ready, and removes one;
// as a StatefulSet does, it removes the newest, adds one with its name, and waits until it is ready.
func (c *cluster) replace(ctx context.Context) error {
	if c.stateful {
		return c.replaceInPlace(ctx)
	}
	for _, m := range slices.Clone(c.members) {
		if _, err := c.add(); err != nil {
			return err
		}
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
		if err := c.remove(m); err != nil {
			return err
		}
	}
	return nil
}

func (c *cluster) replaceInPlace(ctx context.Context) error {
	for _, m := range slices.Backward(slices.Clone(c.members)) {
		if err := c.remove(m); err != nil {
			return err
		}
		if _, err := c.addNamed(m.Name); err != nil {
			return err
		}
		if err := c.awaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// stop ends all members at the same time.
func (c *cluster) stop() error {
	names.set(c.service)
	ends := make(chan error, len(c.members))
	for _, m := range c.members {
		go func() { ends <- m.stop(40 * time.Second) }()
	}
	var errs []error
	for range c.members {
		errs = append(errs, <-ends)
	}
	return errors.Join(errs...)
}

// sum returns the sum of a metric over all members and labels.
func (c *cluster) sum(ctx context.Context, metric string) (sum float64, err error) {
	for _, m := range c.members {
		page, err := lab.Get(ctx, "http://"+m.ip+c.metrics+"/metrics")
		if err != nil {
			return 0, err
		}
		samples, err := promtext.Parse(page)
		if err != nil {
			return 0, err
		}
		sum += samples.Sum(metric)
	}
	return sum, nil
}

// rules returns the rules that each member has in force, as its debug port lists them.
func (c *cluster) rules(ctx context.Context) (map[string]string, error) {
	all := map[string]string{}
	for _, m := range c.members {
		page, err := m.rules(ctx)
		if err != nil {
			return nil, err
		}
		all[m.Name] = page
	}
	return all, nil
}

// rules reads the member's rules from its debug port, which a sidecar opens for its pod alone.
func (m *member) rules(ctx context.Context) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:6070/rlconfig", nil)
	if err != nil {
		return "", err
	}
	res, err := m.inside.Do(req)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	page, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: rules: %s: %s", m.Name, res.Status, page)
	}
	return string(page), err
}

// behind returns the members whose rules lack a text.
func (c *cluster) behind(ctx context.Context, text string) (lines []string, err error) {
	rules, err := c.rules(ctx)
	for _, name := range slices.Sorted(maps.Keys(rules)) {
		if !strings.Contains(rules[name], text) {
			lines = append(lines, name)
		}
	}
	return lines, err
}

// agree returns an error unless all members have the same rules in force.
func (c *cluster) agree(ctx context.Context) error {
	rules, err := c.rules(ctx)
	if err != nil {
		return err
	}
	for name, text := range rules {
		if first := c.members[0].Name; text != rules[first] {
			return fmt.Errorf("%s and %s have different rules", first, name)
		}
	}
	return nil
}
