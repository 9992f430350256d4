package peer

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/ring"
)

// Link is the state of the streams between this member and another one.
type Link struct {
	Member  ring.ID
	Live    bool      // this member can forward requests to Member
	Since   time.Time // when Live last changed
	Inbound bool      // Member can forward requests to this member
	Version uint16    // protocol version of the live stream
	Error   string    // why there is no live stream
	Pending int       // groups without a reply
}

// Links returns the state of all links, sorted by name.
func (p *Peer) Links() []Link {
	links := slices.Collect(maps.Values(*p.links.Load()))
	slices.SortFunc(links, func(a, b *link) int { return strings.Compare(string(a.to), string(b.to)) })
	out := make([]Link, 0, len(links))
	for _, l := range links {
		s := l.state()
		s.Inbound = p.requestStreams.has(l.to)
		out = append(out, s)
	}
	return out
}

// linksLoop calls OnLinksChanged. It has its own goroutine, so OnLinksChanged may call methods of p.
func (p *Peer) linksLoop() {
	for {
		select {
		case <-p.linksChanged:
		case <-p.ctx.Done():
			return
		}
		if p.o.OnLinksChanged != nil {
			p.o.OnLinksChanged()
		}
	}
}

// streamCounts counts the inbound streams of each member.
type streamCounts struct {
	mu sync.Mutex
	n  map[ring.ID]int // guarded by mu
}

// add adds n to the count of id and returns the result.
func (a *streamCounts) add(id ring.ID, n int) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.n == nil {
		a.n = map[ring.ID]int{}
	}
	sum := a.n[id] + n
	if a.n[id] = sum; sum == 0 {
		delete(a.n, id)
	}
	return sum
}

func (a *streamCounts) has(id ring.ID) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.n[id] > 0
}
