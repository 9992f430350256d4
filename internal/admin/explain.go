package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// NewExplanation explains a descriptor by the rules alone, and returns the match. It leaves Owner, Successor, Counter
// and Headers empty; SetDecision sets them except Successor.
func NewExplanation(rules *config.Rules, domain string, entries []config.Entry) (api.Explanation, config.Match) {
	t := rules.Trace(domain, entries)
	e := api.Explanation{Domain: domain, Why: t.Why, Verdict: api.VerdictNoRule}
	for _, x := range entries {
		e.Descriptor.Entries = append(e.Descriptor.Entries, api.KeyValue(x))
	}
	for _, s := range t.Steps {
		step := api.ExplainStep{Entry: api.KeyValue(s.Entry), More: s.More}
		if s.Taken != nil {
			tried := triedOf(*s.Taken)
			step.Taken = &tried
		}
		for _, p := range s.Passed {
			step.Passed = append(step.Passed, triedOf(p))
		}
		e.Steps = append(e.Steps, step)
	}
	switch t.Match.Kind {
	case config.Unlimited:
		e.Verdict = api.VerdictUnlimited
	case config.Limited:
		e.Verdict = api.VerdictLimited
		e.OwnerString = string(rules.AppendOwnerString(nil, domain, entries, &t.Match))
		e.Position = fmt.Sprintf("%016x", t.Match.Owner)
		e.Digest = fmt.Sprintf("%016x%016x", t.Match.Digest[0], t.Match.Digest[1])
	default:
		return e, t.Match
	}
	e.Matched, e.Rule = true, explainRule(t.Match.Rule)
	return e, t.Match
}

func triedOf(t config.Candidate) api.ExplainTried {
	return api.ExplainTried{Descriptor: t.String(), File: t.File, Line: t.Line, Why: t.Why, Rule: t.Rule}
}

func explainRule(r *config.RuleSpec) *api.ExplainRule {
	e := &api.ExplainRule{
		Path: []string{r.Domain}, Name: r.Name, Shadow: r.Shadow, Quota: r.Quota, Unlimited: r.Unlimited, File: r.File, Line: r.Line,
	}
	for _, l := range r.Levels {
		e.Path = append(e.Path, config.Candidate{Key: l.Key, Value: l.Value}.String())
	}
	if r.Unlimited {
		return e
	}
	e.Limit, e.Unit, e.Window = r.Limit.Limit, r.Unit.String(), r.Limit.Window.String()
	e.Partition = r.Extension.Partition.String()
	e.Algorithm, e.Mechanism, e.Degraded = r.Limit.Algorithm.String(), r.Extension.Mechanism.String(), r.Extension.Degraded.String()
	if f := r.Extension.Fair; f != nil {
		e.Fair = f.String()
	}
	e.Holds = r.Extension.HoldSettings()
	e.Burst = r.Limit.Burst
	return e
}

// KeyDecision is an owner's decision about the next hit on a key.
type KeyDecision struct {
	Counter api.CounterStatus
	Over    bool // the hit is over the limit
	// FairShare reports whether the limit has room for the hit, but leaves it to other tenants.
	FairShare bool
	Lenient   bool // SHADOW_MODE or QUOTA_MODE is set
}

// SetDecision adds the owner's decision to e. m is the match of its descriptor.
func SetDecision(e *api.Explanation, m *config.Match, d KeyDecision) {
	c := d.Counter
	e.Counter, e.Owner = &c, c.Owner
	so := fmt.Sprintf("%d of %d hits are counted in the current window", c.Count, c.Limit)
	if m.Limit.Algorithm.Bucket() {
		so = fmt.Sprintf("the bucket's level is %d, and %d more hits are within the limit now", c.Count, c.Remaining)
	}
	switch c.Authority {
	case "full":
	case "static":
		so = fmt.Sprintf("this member has counted %d hits and may admit %d more, and the others count their own (mechanism static)",
			c.Count, c.Remaining)
	default:
		so += fmt.Sprintf(" (authority %q: the owner did not decide with the complete limit)", c.Authority)
	}
	if d.FairShare {
		so += ", and the rest is left to other tenants (fair): this tenant has its share of what they all want"
	}
	switch {
	case !d.Over:
		e.Verdict = api.VerdictOK
		e.Why += fmt.Sprintf(" The next hit is admitted: %s.", so)
	case m.Rule.Shadow || m.Rule.Quota || d.Lenient:
		e.Verdict = api.VerdictShadow
		e.Why += fmt.Sprintf(" The next hit is over the limit, and is admitted because of shadow or quota mode: %s.", so)
	default:
		e.Verdict = api.VerdictOver
		e.Why += fmt.Sprintf(" The next hit is refused: %s; the limit admits one again in %.0f s.", so, c.Reset)
	}
	e.Headers = headers(m, c, e.Verdict == api.VerdictOver)
}

// headers returns the headers of Envoy's response to the next hit: x-ratelimit-* with enable_x_ratelimit_headers,
// retry-after with enable_retry_after_header.
func headers(m *config.Match, c api.CounterStatus, over bool) map[string]string {
	amount := strconv.FormatUint(c.Limit, 10)
	h := map[string]string{"x-ratelimit-limit": amount, "x-ratelimit-reset": fmt.Sprintf("%.0f", c.Reset)}
	if window := int64(m.Unit.Window()/time.Second) * int64(m.Times); window > 0 {
		h["x-ratelimit-limit"] += fmt.Sprintf(", %s;w=%d", amount, window)
		if m.Rule.Name != "" {
			h["x-ratelimit-limit"] += fmt.Sprintf(";name=%q", m.Rule.Name)
		}
	}
	left := c.Remaining
	if left > 0 {
		left-- // the hit itself
	}
	h["x-ratelimit-remaining"] = strconv.FormatUint(left, 10)
	if over {
		h["retry-after"], h["x-envoy-ratelimited"] = h["x-ratelimit-reset"], "true"
	}
	return h
}

// explain serves GET /v1/explain. It takes the parameters of /v1/counters and charges nothing.
func explain(decide func(domain string, entries []config.Entry) (api.Explanation, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		domain, entries, err := parseDescriptor(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e, err := decide(domain, entries)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeLive(w, e)
	}
}

// writeLive writes v as a document that must not be cached.
func writeLive(w http.ResponseWriter, v any) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, v)
}
