package owner

import (
	"strings"

	"github.com/keyward/keyward/internal/lease"
)

const (
	maxNames = 256 // of one shard
	maxName  = 256 // bytes of each part
)

// name is what people call a key.
type name struct {
	domain, name, owner string
	knobs               lease.Terms
	usedAt              int64 // when it was last told
}

// Name tells what people call key k, what its rule says of leases, and the owner string that Envoy hashes. Only names of
// hot and leased keys are kept. It may run concurrently, and costs little when the name is known.
func (n *Node) Name(key Key, domain, text, ownerString string, knobs *lease.Terms) {
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.names[key]; x != nil {
		x.usedAt = s.now
		return
	}
	if e := s.counters.Owned.Find(hash, key); s.lent[key] == nil && s.held[key] == nil && (e == nil || e.Hotness()&heatTracked == 0) {
		return
	}
	x := name{domain: clip(domain), name: clip(text), owner: ownerString}
	if len(ownerString) > maxName {
		x.owner = "" // half of it is another key's
	}
	if knobs != nil {
		x.knobs = *knobs
	}
	s.keepName(key, x)
}

// keepName keeps x as k's name.
func (s *shard) keepName(key Key, x name) {
	if len(s.names) >= maxNames {
		return
	}
	if s.names == nil {
		s.names = map[Key]*name{}
	}
	x.usedAt = s.now
	s.names[key] = &x
}

// clip shortens text, of which the wire's separator is no part.
func clip(text string) string {
	return strings.ReplaceAll(text[:min(len(text), maxName)], "\x00", "?")
}

// wire is x as a Request carries it.
func (x *name) wire() string {
	if x == nil {
		return ""
	}
	return x.domain + "\x00" + x.name + "\x00" + x.owner
}

// learnName keeps the name that a Request carries.
func (s *shard) learnName(key Key, wire string, knobs *lease.Terms) {
	parts := strings.SplitN(wire, "\x00", 3)
	if len(parts) != 3 || s.names[key] != nil || len(parts[2]) > maxName {
		return
	}
	s.keepName(key, name{domain: clip(parts[0]), name: clip(parts[1]), owner: parts[2], knobs: *knobs})
}

// forgetNames drops the names of keys that nobody speaks of any more.
func (s *shard) forgetNames() {
	for key, x := range s.names {
		if s.lent[key] == nil && s.held[key] == nil && s.now-x.usedAt > nameLife {
			delete(s.names, key)
		}
	}
}

// nameLife is how long a name is kept for a key that is not leased, in nanoseconds.
const nameLife = int64(60e9)
