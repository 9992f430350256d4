package rlqs

import (
	"testing"

	"github.com/keyward/keyward/test/rlqs/model"
)

var ended = shared(listener{name: "ended", assign: denies})

// When the server ends the stream, leases go on. The next report of all ids opens another stream and has all hits of known ids; the
// first hit of an id that was new meanwhile is lost.
func TestStreamEnds(t *testing.T) {
	ended.each(t, func(s *site) {
		c := s.dial(1)
		var as []model.Action
		for _, id := range []string{"a", "b", "c"} {
			s.introduce(c[0], id)
			as = append(as, model.Pair(id, 1000, minute)...)
		}
		s.fenced(c, as...)
		s.tick()
		s.want("before", s.hits(c, "a", 10), 10)
		st := s.server.stream(s, s.domainName())
		close(st.end)
		s.await("the end of the stream", func([]report) bool {
			s.server.mu.Lock()
			defer s.server.mu.Unlock()
			return s.server.streams[s.domainName()] != st
		})
		s.want("after the end", s.hits(c, "a", 7), 7)
		s.want("a new id", c[0].get("new"), 429)
		s.server.mu.Lock()
		lost := s.server.streams[s.domainName()] == nil
		s.server.mu.Unlock()
		all := s.await("the next stream", func(all []report) bool { return all[len(all)-1].stream != st.id })
		last := all[len(all)-1]
		for _, id := range []string{"a", "b", "c", "new"} {
			if _, ok := last.find(id); !ok {
				s.Errorf("the first message of the next stream lacks %s: %+v", id, last.usages)
			}
		}
		s.want("reported of 17", int(total(all, "a").Allowed), 17)
		if lost {
			s.want("reported of the new id", int(total(all, "new").Denied), 0)
		}
		s.fenced(c, model.Pair("a", 5, minute)...)
		s.want("a lease on the next stream", s.hits(c, "a", 50), 5)
	})
}

var refused = shared(listener{name: "refused", assign: denies, server: "refuser"})

// While the server refuses connections, leases go on, and what is spent is never reported.
func TestRefusedStreamsLoseUsage(t *testing.T) {
	refused.each(t, func(s *site) {
		c := s.dial(1)
		s.introduce(c[0], "a")
		s.fenced(c, model.Pair("a", 1000, minute)...)
		s.tick()
		failed := func() float64 {
			n, err := s.envoy.Stat(s.Context(), "cluster.refuser.upstream_cx_connect_fail")
			if err != nil {
				s.Fatal(err)
			}
			return n
		}
		s.refuser.grpc.Stop()
		for range 2 {
			s.want("while the server refuses", s.hits(c, "a", 20), 20)
			before := failed()
			s.until("two refused streams", func() bool { return failed() >= before+2 })
		}
		again, err := startServer(s.refuser.addr)
		if err != nil {
			s.Fatal(err)
		}
		defer again.grpc.Stop()
		s.server = again
		s.want("the server is back", s.hits(c, "a", 3), 3)
		s.await("the hits", func(all []report) bool { return total(all, "a").Allowed >= 3 })
		all := s.tick()
		s.want("reported of 43", int(total(all, "a").Allowed), 3)
		s.fenced(c, model.Pair("a", 5, minute)...)
		s.want("a lease on the next stream", s.hits(c, "a", 50), 5)
	})
}
