package owner

import (
	"strings"

	"github.com/keyward/keyward/internal/lease"
)

const (
	maxNames = 256         // of one shard
	maxName  = 256         // bytes of each part
	nameLife = int64(60e9) // how long a name is stored for a key that is not leased, in nanoseconds
)

// KeyName is the readable name of a key. Its fields are empty if they are not known.
type KeyName struct {
	Domain string
	Name   string
	Owner  string // the string that Envoy hashes to a ring position
}

// name is the name of a hot or leased key.
type name struct {
	KeyName
	terms  lease.Terms
	usedAt int64 // when Name was last called for the key
}

// Name stores the name of key, and what its rule sets for leases, if the key is hot or leased. It may be called
// concurrently with anything else, and costs little if the name is stored already.
func (n *Node) Name(key Key, text KeyName, terms *lease.Terms) {
	s, hash := n.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.names[key]; x != nil {
		x.usedAt = s.now
		return
	}
	if s.lent[key] == nil && s.held[key] == nil {
		if e := s.counters.Owned.Find(hash, key); e == nil || e.Hotness()&heatTracked == 0 {
			return
		}
	}
	x := name{KeyName: KeyName{Domain: clip(text.Domain), Name: clip(text.Name), Owner: text.Owner}}
	if len(text.Owner) > maxName {
		x.Owner = "" // a part of it is another key's owner string
	}
	if terms != nil {
		x.terms = *terms
	}
	s.keepName(key, x)
}

// keepName stores x as the name of key, if there is room.
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

// clip shortens text and replaces the separator of names on the wire.
func clip(text string) string {
	return strings.ReplaceAll(text[:min(len(text), maxName)], "\x00", "?")
}

// wire returns x in the form of a request for a lease.
func (x *name) wire() string {
	if x == nil {
		return ""
	}
	return x.Domain + "\x00" + x.Name + "\x00" + x.Owner
}

// learnName stores the name in a request for a lease.
func (s *shard) learnName(key Key, wire string, terms *lease.Terms) {
	parts := strings.SplitN(wire, "\x00", 3)
	if len(parts) != 3 || s.names[key] != nil || len(parts[2]) > maxName {
		return
	}
	s.keepName(key, name{KeyName: KeyName{clip(parts[0]), clip(parts[1]), parts[2]}, terms: *terms})
}

// forgetNames drops the names of keys that are not leased and were not used recently.
func (s *shard) forgetNames() {
	for key, x := range s.names {
		if s.lent[key] == nil && s.held[key] == nil && s.now-x.usedAt > nameLife {
			delete(s.names, key)
		}
	}
}
