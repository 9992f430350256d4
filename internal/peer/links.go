package peer

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/keyward/keyward/ring"
)

// Link is the state of the streams with one member.
type Link struct {
	Member  ring.ID
	Addr    Addr
	Live    bool      // this member can ask it
	Since   time.Time // of Live
	Inbound bool      // it can ask this member
	Version uint16    // of the protocol, when live
	Error   string    // why it is not live
	Pending int       // groups without an answer
}

// Links lists the members that are dialled, in the order of their names.
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

// linksLoop tells OnLinksChanged. It has a goroutine of its own, so that OnLinksChanged may call back.
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

// streamCounts counts the streams that each member has to this one, of one kind.
type streamCounts struct {
	mu sync.Mutex
	n  map[ring.ID]int // guarded by mu
}

// add returns how many there are now.
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
