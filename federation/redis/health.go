package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// Init declares that the server's dataset is complete, although it is new: requests that follow may lend whole windows,
// including those that began before. It is for the deliberate start with an empty Redis. After the loss of a dataset it
// would lend again what had been lent.
func (c *Coordinator) Init(ctx context.Context) error { return c.setSince(ctx, 0) }

// setSince sets the time of the first write of the dataset, in microseconds.
func (c *Coordinator) setSince(ctx context.Context, since int64) error {
	client, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("initialize redis %s: %w", c.server.address, err)
	}
	var commands []rueidis.Completed
	for n := range 256 {
		commands = append(commands, client.B().Set().Key(tag(byte(n))+sinceName).Value(strconv.FormatInt(since, 10)).Build())
	}
	for _, reply := range client.DoMulti(ctx, commands...) {
		if err := reply.Error(); err != nil {
			return fmt.Errorf("initialize redis %s: %w", c.server.address, err)
		}
	}
	return nil
}

// Healthy implements federation.Coordinator. It returns an error if a server cannot be reached, is a replica, may evict
// records before they expire, or has fewer replicas than have to confirm each grant.
func (c *Coordinator) Healthy(ctx context.Context) error {
	client, err := c.connect(ctx)
	if err != nil {
		return fmt.Errorf("redis %s: %w", c.server.address, err)
	}
	if client.Mode() != rueidis.ClientModeCluster {
		if err := c.healthy(ctx, client, false); err != nil {
			return fmt.Errorf("redis %s: %w", c.server.address, err)
		}
		return nil
	}
	var errs []error
	for address, node := range client.Nodes() {
		if err := c.healthy(ctx, node, true); err != nil {
			errs = append(errs, fmt.Errorf("redis %s: %w", address, err))
		}
	}
	return errors.Join(errs...)
}

// healthy checks one server, which may be a replica if it is a node of a Redis Cluster.
func (c *Coordinator) healthy(ctx context.Context, client rueidis.Client, node bool) error {
	info, replicas := map[string]string{}, int64(0)
	for _, section := range []string{"replication", "memory"} {
		text, err := client.Do(ctx, client.B().Info().Section(section).Build()).ToString()
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
	case info["role"] != "master" && !node:
		return errors.New("this is a replica; use the address of the primary")
	case info["maxmemory"] != "0" && policy != "noeviction":
		return fmt.Errorf("maxmemory-policy is %s, so counts may be evicted; set it to noeviction", policy)
	case replicas < c.server.wait:
		return fmt.Errorf("%d of %d replicas are connected; add replicas or lower wait in the URL", replicas, c.server.wait)
	}
	return nil
}
