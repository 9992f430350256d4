package modules

import (
	"cmp"
	"slices"
	"time"

	"github.com/keyward/keyward/envoy/module"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/internal/sublease"
	"github.com/keyward/keyward/owner"
)

// ModuleState describes one Envoy whose module is connected.
type ModuleState struct {
	Hello       module.Hello
	Since       time.Time            // of the connection
	Counters    module.SpendCounters // as the module counts; they can have any value
	Slots, Used int                  // of the memory: leases that can be in it, and those that are
	Keys        []LeasedState        // those with the highest rates
	Total       int                  // of all keys
}

// LeasedState describes the lease of one key that an Envoy has, or had within the last seconds.
type LeasedState struct {
	sublease.LeaseView
	Domain  string
	Entries []config.Entry
	Match   config.Match
	Request owner.Request
}

// States describes the Envoys that have been connected for the longest, most of them at most, each with the mostKeys keys of
// the highest rates. It returns the number of all Envoys.
func (l *Lessor) States(most, mostKeys int) (states []ModuleState, total int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]*connection, 0, len(l.byID))
	for _, x := range l.byID {
		all = append(all, x)
	}
	slices.SortFunc(all, func(x, y *connection) int { return cmp.Compare(x.id, y.id) })
	for _, x := range all[:min(len(all), most)] {
		s := ModuleState{Hello: x.conn.Hello, Since: x.since, Counters: x.conn.Segment.Counters()}
		s.Slots, s.Used = x.conn.Segment.Slots()
		s.Keys, s.Total = l.keysOf(x.id, mostKeys)
		states = append(states, s)
	}
	return states, len(all)
}

// keysOf returns the keys of a connection with the highest rates, and the number of all. l.mu is locked.
func (l *Lessor) keysOf(conn uint64, most int) (states []LeasedState, total int) {
	var lines []sublease.LeaseView
	l.book.Lines(conn, func(v sublease.LeaseView) { lines = append(lines, v) })
	slices.SortFunc(lines, func(x, y sublease.LeaseView) int {
		return cmp.Or(cmp.Compare(y.Rate, x.Rate), cmp.Compare(x.Key, y.Key))
	})
	for _, v := range lines[:min(len(lines), most)] {
		if k := l.keys[v.Key]; k != nil {
			states = append(states, LeasedState{LeaseView: v, Domain: k.domain, Entries: k.entries, Match: k.match.Match, Request: k.match.Request})
		}
	}
	return states, len(lines)
}
