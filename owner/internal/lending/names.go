package lending

import (
	"strings"
	"time"

	"github.com/keyward/keyward/internal/lease"
)

const (
	maxNames = 256                // of one shard
	maxName  = 256                // bytes of each part
	nameLife = int64(time.Minute) // how long a name is stored for a key that is not leased
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

// Name stores the name of key, and what its rule sets for leases, if the key is hot or leased.
func (l *Leases) Name(now int64, key Key, text KeyName, terms *lease.Terms) {
	if x := l.names[key]; x != nil {
		x.usedAt = now
		return
	}
	if l.lent[key] == nil && l.held[key] == nil {
		if e := l.counters.Find(key); e == nil || e.Hotness()&heatTracked == 0 {
			return
		}
	}
	x := name{KeyName: KeyName{Domain: clip(text.Domain), Name: clip(text.Name), Owner: text.Owner}, usedAt: now}
	if len(text.Owner) > maxName {
		x.Owner = "" // a part of it is another key's owner string
	}
	if terms != nil {
		x.terms = *terms
	}
	l.keepName(key, &x)
}

// keepName stores x as the name of key, if there is room.
func (l *Leases) keepName(key Key, x *name) {
	if len(l.names) >= maxNames {
		return
	}
	if l.names == nil {
		l.names = map[Key]*name{}
	}
	l.names[key] = x
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
func (l *Leases) learnName(now int64, r *lease.GrantRequest) {
	parts := strings.SplitN(r.Name, "\x00", 3)
	if len(parts) != 3 || l.names[r.Key] != nil || len(parts[2]) > maxName {
		return
	}
	text := KeyName{clip(parts[0]), clip(parts[1]), parts[2]}
	l.keepName(r.Key, &name{KeyName: text, terms: r.Terms, usedAt: now})
}

// forgetNames drops the names of keys that are not leased and were not used recently.
func (l *Leases) forgetNames(now int64) {
	for key, x := range l.names {
		if l.lent[key] == nil && l.held[key] == nil && now-x.usedAt > nameLife {
			delete(l.names, key)
		}
	}
}
