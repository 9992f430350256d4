package rls

import (
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/keyward/keyward/owner"
)

// maxName is the most bytes of each text of a name. Routes of hot keys have the same limit.
const maxName = 256

// reportName reports the name of the key of descriptor i, if a report is due.
func (s *Service) reportName(c *Call, v *view, i int, now time.Time) {
	l, req := &c.slots[i], &c.Request
	q := &c.requests[l.request]
	if s.name == nil || len(req.Domain) > maxName || !s.nameTimes.due(q.Key, now) {
		return
	}
	entries := req.Descriptors[i].Entries
	c.text = l.match.AppendName(c.text[:0], entries)
	end := len(c.text)
	c.text = v.rules.AppendOwnerString(c.text, req.Domain, entries, &l.match)
	text := string(c.text)
	name, place := text[:end], text[end:]
	if len(place) > maxName {
		place = ""
	}
	s.name(q.Key, owner.KeyName{Domain: strings.Clone(req.Domain), Name: shorten(name), Owner: place}, q.LeaseTerms)
}

// shorten cuts s to at most maxName bytes, between runes.
func shorten(s string) string {
	if len(s) <= maxName {
		return s
	}
	end := maxName
	for end > maxName-utf8.UTFMax && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end]
}

// nameTimes records which keys were reported recently: 32 bits of the key, and the time in ms, in a cell chosen by
// other bits of the key. Few keys are hot, so few share a cell. Keys that share one are each reported up to ten times
// per second.
type nameTimes [1024]atomic.Uint64

func (n *nameTimes) due(k owner.Key, now time.Time) bool {
	at, tag, ms := &n[k[0]%uint64(len(n))], k[1]>>32, uint32(now.UnixMilli())
	old := at.Load()
	since := ms - uint32(old) // also correct when the time wraps
	if since < 100 || since < 1000 && old>>32 == tag {
		return false
	}
	return at.CompareAndSwap(old, tag<<32|uint64(ms))
}
