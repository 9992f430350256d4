package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	redigo "github.com/gomodule/redigo/redis"
)

// Init declares that the server's dataset is complete, although it is new: requests that follow may lend whole windows,
// including those that began before. It is for the deliberate start with an empty Redis. After the loss of a dataset it
// would lend again what had been lent.
func (c *Coordinator) Init(ctx context.Context) error { return c.setSince(ctx, 0) }

// setSince sets the time of the first write of the dataset, in microseconds.
func (c *Coordinator) setSince(ctx context.Context, since int64) error {
	var tasks []*task
	for n := range tags {
		tasks = append(tasks, &task{tag: byte(n), args: []any{tag(byte(n)) + sinceName, since}})
	}
	replies, err := c.run(ctx, tasks)
	for i := 0; i < len(replies) && err == nil; i++ {
		if e, failed := replies[i].(redigo.Error); failed {
			err = e
		}
	}
	if err != nil {
		return fmt.Errorf("initialize redis %s: %w", c.server.address, err)
	}
	return nil
}

// Healthy implements federation.Coordinator. It returns an error if a server cannot be reached, is a replica, may evict
// records before they expire, or has fewer replicas than have to confirm each grant.
func (c *Coordinator) Healthy(ctx context.Context) error {
	t, err := c.locate(ctx)
	if err != nil {
		return fmt.Errorf("redis %s: %w", c.server.address, err)
	}
	var errs []error
	for _, address := range t.nodes {
		if err := c.healthy(ctx, c.node(address), t.cluster); err != nil {
			errs = append(errs, fmt.Errorf("redis %s: %w", address, err))
			c.forget(t)
		}
	}
	return errors.Join(errs...)
}

// healthy checks one server, which may be a replica if it is in a Redis Cluster.
func (c *Coordinator) healthy(ctx context.Context, n *node, cluster bool) error {
	replies, err := n.do(ctx, command{"INFO", []any{"replication"}}, command{"INFO", []any{"memory"}})
	if err != nil {
		return err
	}
	info, replicas := map[string]string{}, int64(0)
	for _, reply := range replies {
		text, err := redigo.String(reply, nil)
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			info[name] = value
			if strings.HasPrefix(name, "slave") && strings.Contains(value, "state=online") {
				replicas++
			}
		}
	}
	switch policy := info["maxmemory_policy"]; {
	case info["role"] != "master" && !cluster:
		return errors.New("this is a replica; use the address of the primary")
	case info["maxmemory"] != "0" && policy != "noeviction":
		return fmt.Errorf("maxmemory-policy is %s, so counts may be evicted; set it to noeviction", policy)
	case replicas < c.server.wait:
		return fmt.Errorf("%d of %d replicas are connected; add replicas or lower wait in the URL", replicas, c.server.wait)
	}
	return nil
}
