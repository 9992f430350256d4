package counter

import "sync/atomic"

// ledger limits the number of keys in all shards' tables of one kind, and in each domain of them.
type ledger struct {
	keys    atomic.Int64
	max     int64
	quota   int64
	domains *[domainSlots]atomic.Int64 // nil without quotas
}

// reserve takes room for a key of a domain. It returns false, and changes nothing, if there is none.
func (l *ledger) reserve(domain uint16) bool {
	if l.keys.Add(1) > l.max {
		l.keys.Add(-1)
		return false
	}
	if l.domains != nil && l.domains[domain].Add(1) > l.quota {
		l.domains[domain].Add(-1)
		l.keys.Add(-1)
		return false
	}
	return true
}

func (l *ledger) release(domain uint16) {
	l.keys.Add(-1)
	if l.domains != nil {
		l.domains[domain].Add(-1)
	}
}

// pool limits the records of all shards.
type pool struct {
	pages   atomic.Int64              // left
	reserve int64                     // of these, for Unreplicated alone: without one a charge is refused, in any domain
	journal atomic.Int64              // records for Unwritten that are left
	quota   int64                     // the most slots of one domain
	domains [domainSlots]atomic.Int64 // slots by domain
}

func (p *pool) init(c Config) {
	base := int64(3 * c.MaxKeys)
	p.reserve = base / pageRecords / 4
	if c.Journal {
		p.journal.Store(2 * int64(c.MaxKeys))
		base += p.journal.Load()
	}
	p.pages.Store(base / pageRecords)
	p.quota = int64(3*c.DomainQuota + Shards*pageRecords/2)
}

// allow charges n slots to a domain. It returns false, and changes nothing, if that is more than the domain's quota.
func (p *pool) allow(domain uint16, n int) bool {
	if p.domains[domain].Add(int64(n)) > p.quota {
		p.domains[domain].Add(-int64(n))
		return false
	}
	return true
}

func (p *pool) release(domain uint16, n int) { p.domains[domain].Add(-int64(n)) }
