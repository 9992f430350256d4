package module

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/keyward/keyward/internal/lab"
)

// TestDescriptorsAreThoseOfTheRateLimitFilter compares the descriptors that the module asks for with those that the
// filter sends, for each action and for headers that are absent, empty, repeated, not in ASCII or not in UTF-8.
func TestDescriptorsAreThoseOfTheRateLimitFilter(t *testing.T) {
	values := [][]string{
		{}, {"x-a", ""}, {"x-a", "v"}, {"x-a", "v", "x-a", "w"}, {"x-a", "Bot/1.0"}, {"x-a", "", "x-a", ""}, {"x-a", "a,b"},
		{"x-a", "ü€"}, {"x-a", "\xff"}, {"x-a", strings.Repeat("long", 3000)}, {"x-a", "v", "x-b", "b"}, {"x-b", ""}, {"x-b", "b"},
		{"x-forwarded-for", "10.20.30.40"}, {"x-forwarded-for", "2001:db8:1:2:3:4:5:6"}, {"x-forwarded-for", "::ffff:1.2.3.4"}, {"x-forwarded-for", "::1.2.3.4"},
	}
	paths := []string{"/", "/?a=1&b=2", "/?a=", "/?a", "/?A=1", "/?a=1&a=2", "/?a=%41%20+x", "/?a=%4", "/?a=%zz&%61=y", "/?b=1;a=2", "/?&&a==", "/?=a", "/?%61=enc", "/?a=ü", "/?a=%ff"}
	actions := []string{
		`{"request_headers":{"header_name":"x-a","descriptor_key":"k"}}`,
		`{"request_headers":{"header_name":"X-A","descriptor_key":"k","skip_if_absent":true}}`,
		`{"request_headers":{"header_name":"x-a","descriptor_key":"k","skip_if_absent":true}},{"request_headers":{"header_name":"x-b","descriptor_key":"l"}}`,
		`{"request_headers":{"header_name":"x-a","descriptor_key":"k"}},{"generic_key":{"descriptor_value":"g"}},{"request_headers":{"header_name":"x-b","descriptor_key":"l","skip_if_absent":true}}`,
		`{"request_headers":{"header_name":":path","descriptor_key":"p"}}`,
		`{"request_headers":{"header_name":":authority","descriptor_key":"h"}},{"generic_key":{"descriptor_key":"x","descriptor_value":"v w"}}`,
		`{"remote_address":{}}`,
		`{"masked_remote_address":{"v4_prefix_mask_len":12}}`,
		`{"masked_remote_address":{}}`,
		`{"masked_remote_address":{"v4_prefix_mask_len":0,"v6_prefix_mask_len":47}}`,
		`{"query_parameters":{"query_parameter_name":"a","descriptor_key":"q"}}`,
		`{"query_parameters":{"query_parameter_name":"a","descriptor_key":"q","skip_if_absent":true}},{"generic_key":{"descriptor_value":"g"}}`,
	}
	for _, m := range []string{
		`{"name":"x-a","present_match":true}`, `{"name":"x-a","present_match":false}`, `{"name":"x-a","present_match":true,"invert_match":true}`, `{"name":"x-a"}`,
		`{"name":"x-a","string_match":{"exact":"v"}}`, `{"name":"x-a","string_match":{"exact":"v"},"invert_match":true}`,
		`{"name":"x-a","string_match":{"exact":"v,w"}}`, `{"name":"x-a","string_match":{"exact":""}}`,
		`{"name":"x-a","string_match":{"prefix":"bot","ignore_case":true}}`, `{"name":"x-a","string_match":{"suffix":"w"}}`,
		`{"name":"x-a","string_match":{"contains":"O","ignore_case":true}},{"name":"x-b","string_match":{"exact":"b"}}`,
	} {
		for _, expect := range []string{"", `,"expect_match":false`} {
			actions = append(actions, fmt.Sprintf(`{"header_value_match":{"descriptor_value":"m","headers":[%s]%s}}`, m, expect))
		}
	}
	each(t, func(t *testing.T, r release) {
		if r.version == "1.39.3" && !long() {
			t.Skip("the same file as in 1.38.3")
		}
		for _, a := range actions {
			if r.matcher && strings.Contains(a, "remote_address") {
				continue // a matcher has no addresses
			}
			p := listen(t, ordinary(64))
			s := start(t, r, setup{socket: p.path, limits: fmt.Sprintf(`[{"actions":[%s,{"request_headers":{"header_name":"x-id","descriptor_key":"id"}}]}]`, a)})
			l := p.link(0)
			if strings.Contains(a, "query") || strings.Contains(a, ":path") {
				s.compare(p, l, a, [][]string{{}}, paths)
			} else {
				s.compare(p, l, a, values, []string{"/"})
			}
			if t.Failed() {
				return
			}
		}
	})
}

// compare sends requests and compares what the service and the peer have seen. Each request has an id of its own.
func (s *site) compare(p *peer, l *link, action string, headers [][]string, paths []string) {
	s.Helper()
	var want []string
	may := s.awaitInterest(p, action, headers, paths)
	id := 0
	for _, h := range headers {
		for _, path := range paths {
			id++
			s.twice(path, append(slices.Clone(h), "x-id", strconv.Itoa(id))...)
			for _, call := range s.service.take() {
				for _, d := range descriptors(call) {
					if abstains(action, h, path, d) {
						may = append(may, d)
					} else {
						want = append(want, d)
					}
				}
			}
		}
	}
	for _, d := range want {
		p.asked(l, d)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range l.interest {
		if !slices.Contains(want, m.entries) && !slices.Contains(may, m.entries) {
			s.Errorf("%s: the module asks for %q, which the filter does not send", action, m.entries)
		}
	}
}

// awaitInterest sends requests until the module asks for a lease: it asks for none before it has the memory, although it has
// connected. It returns what the service was asked.
func (s *site) awaitInterest(p *peer, action string, headers [][]string, paths []string) (sent []string) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute)
	defer cancel()
	if err := lab.Await(ctx, "the module to ask for a lease", func(context.Context) error {
		called := false
		for _, h := range headers {
			s.twice(paths[0], append(slices.Clone(h), "x-id", "first")...)
			for _, call := range s.service.take() {
				for _, d := range descriptors(call) {
					sent, called = append(sent, d), called || !abstains(action, h, paths[0], d)
				}
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if called && len(p.conns[0].interest) == 0 {
			return errors.New("it has not")
		}
		return nil
	}); err != nil {
		s.Fatal(err)
	}
	return sent
}

// abstains reports whether the module leaves a request with that descriptor to the filter.
func abstains(action string, headers []string, path, descriptor string) bool {
	text := strings.Contains(action, "string_match") && slices.Index(headers, "x-a") != lastIndex(headers, "x-a")
	mixed := strings.Contains(action, "masked") && len(headers) > 0 && strings.HasPrefix(headers[1], "::") // ends with an IPv4 address
	odd := strings.Contains(strings.Join(headers, "")+path, "\xff") || strings.Contains(path, "%ff")
	return odd || text || mixed || len(descriptor) > 16<<10-64
}

func lastIndex(all []string, text string) int {
	last := -1
	for i, s := range all {
		if s == text {
			last = i
		}
	}
	return last
}
