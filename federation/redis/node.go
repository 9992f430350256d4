package redis

import (
	"context"
	"sync"
)

// maxAlone is the number of connections to a server if each call needs its own.
const maxAlone = 16

// node is a server and the connections to it: one that all calls share, or one for each call if the server blocks it until
// replicas have confirmed a write.
type node struct {
	address string
	server  *server
	ctx     context.Context // ends with the node
	close   context.CancelFunc
	slots   chan struct{} // holds a value for each link that was taken

	mu    sync.Mutex
	links []*link // that were not taken; guarded by mu
}

func newNode(ctx context.Context, s *server, address string) *node {
	most := 1
	if s.wait > 0 {
		most = maxAlone
	}
	n := &node{address: address, server: s, slots: make(chan struct{}, most)}
	n.ctx, n.close = context.WithCancel(ctx)
	return n
}

// do sends commands in one write and returns their replies, of which those of type redigo.Error are the server's errors.
// It connects if necessary.
func (n *node) do(ctx context.Context, commands ...command) ([]any, error) {
	l, err := n.take(ctx)
	if err != nil {
		return nil, err
	}
	if n.server.wait > 0 {
		defer n.give(l)
	} else {
		n.give(l)
	}
	return l.do(ctx, commands)
}

// take returns the connection that was used last, or a new one. One that is not ready before ctx ends is for later calls.
func (n *node) take(ctx context.Context) (*link, error) {
	select {
	case n.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if l := n.pop(); l != nil {
		return l, nil
	}
	type result struct {
		link *link
		err  error
	}
	dialed := make(chan result)
	go func() {
		l, err := n.server.dial(n.ctx, n.address)
		if err != nil {
			<-n.slots
		}
		select {
		case dialed <- result{l, err}:
		case <-ctx.Done():
			if err == nil {
				n.give(l)
			}
		}
	}()
	select {
	case r := <-dialed:
		return r.link, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *node) pop() *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.links) > 0 {
		last := len(n.links) - 1
		l := n.links[last]
		if n.links = n.links[:last]; l.usable() {
			return l
		}
	}
	return nil
}

func (n *node) give(l *link) {
	n.mu.Lock()
	n.links = append(n.links, l)
	n.mu.Unlock()
	<-n.slots
}
