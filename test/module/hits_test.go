package module

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

// hitsOf returns the hits of a call's only descriptor.
func hitsOf(r *ratelimit.RateLimitRequest) uint64 {
	if n := r.Descriptors[0].HitsAddend; n != nil {
		return n.Value
	}
	return uint64(max(1, r.HitsAddend))
}

// TestHitsAreThoseOfTheRateLimitFilter compares the hits that the module takes or asks for with those that the filter sends,
// for numbers and for a header that is absent, repeated, or no number. When the module is not sure, it leaves the request
// alone.
func TestHitsAreThoseOfTheRateLimitFilter(t *testing.T) {
	values := [][]string{{}, {""}, {"0"}, {"1"}, {"2"}, {"10"}, {"010"}, {"-1"}, {"+1"}, {"1.9"}, {"1e1"}, {"0x10"}, {"1,1"}, {"x"}, {"1 1"}, {"١"},
		{"99"}, {"1000"}, {"1000000000"}, {"1000000001"}, {"4294967297"}, {"18446744073709551617"}, {"inf"}, {"nan"}, {"2", "3"}, {"", "3"}}
	each(t, func(t *testing.T, r release) {
		for _, addend := range []string{`{"format":"%REQ(X-Cost)%"}`, `{"number":1}`, `{"number":3}`} {
			p := listen(t, ordinary(64))
			limits := fmt.Sprintf(`[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}],"hits_addend":%s}]`, addend)
			s := start(t, r, setup{socket: p.path, limits: limits})
			l := p.link(0)
			s.awaitLease(l)
			taken := 0
			for _, value := range values {
				headers := []string{"x-key", "k"}
				for _, v := range value {
					headers = append(headers, "x-cost", v)
				}
				l.segment.lend(0, 0, time.Minute, "app", "api_key=k")
				s.get("/", headers...)
				var want uint64 // that the filter sends; 0: nothing
				for _, call := range s.service.take() {
					want = hitsOf(call)
				}
				lease := l.segment.lend(0, 100, time.Minute, "app", "api_key=k")
				s.get("/", headers...)
				calls := len(s.service.take())
				switch left := uint64(lease.left()); {
				case left == 100 && want == 0 && calls <= 1: // the filter sends no hits, or no descriptor
				case left == 100-want && want <= 100 && calls == 0:
					taken++
				case left == 100 && calls == 1 && (want > 100 || !slices.Equal(value, []string{fmt.Sprint(want)})):
				default:
					t.Errorf("%s, %q: the filter sends %d hits; the module leaves %d of 100, and %d calls", addend, value, want, left, calls)
				}
			}
			want := len(values)
			if strings.Contains(addend, "format") {
				want = 5 // 1, 2, 10, 010 and 99
			}
			s.want(addend+": requests with a lease", taken, want)
		}
	})
}

// awaitLease waits until the module spends a lease: it has connected before it has the memory.
func (s *site) awaitLease(l *link) {
	s.Helper()
	s.service.allow(1 << 30)
	awaitTrue(s.T, "a request with a lease", func() bool {
		lease := l.segment.lend(0, 3, time.Minute, "app", "api_key=k")
		s.get("/", "x-key", "k", "x-cost", "1")
		return lease.left() < 3
	})
	s.service.take()
}

// TestHitsOfAnInterest checks that the module asks for as many hits as the requests had, and that a request which needs more
// than its lease has takes none.
func TestHitsOfAnInterest(t *testing.T) {
	each(t, func(t *testing.T, r release) {
		p := listen(t, ordinary(64))
		s := start(t, r, setup{socket: p.path, limits: `[{"actions":[{"request_headers":{"header_name":"x-key","descriptor_key":"api_key"}}],"hits_addend":{"format":"%REQ(x-cost)%"}}]`})
		l := p.link(0)
		s.awaitLease(l)
		l.segment.lend(0, 0, time.Minute, "app", "api_key=k")
		s.twice("/", "x-key", "k", "x-cost", "7")
		if m := p.asked(l, "api_key=k"); m.hits != 14 {
			t.Errorf("INTEREST for %d hits after two requests with 7", m.hits)
		}
		s.service.take()
		before := l.segment.counters()[3]
		lease := l.segment.lend(0, 20, time.Minute, "app", "api_key=k")
		for _, want := range []int{13, 6, 6} {
			s.get("/", "x-key", "k", "x-cost", "7")
			s.want("left", int(lease.left()), want)
		}
		calls := s.service.take()
		s.want("calls", len(calls), 1)
		s.want("hits of the call", int(hitsOf(calls[0])), 7)
		s.want("hits that the module counts", int(l.segment.counters()[3]-before), 14)
	})
}
