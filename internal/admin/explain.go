package admin

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/keyward/keyward/internal/config"
)

// The verdicts of an Explain: what becomes of one more hit now.
const (
	VerdictOK        = "ok"         // it fits
	VerdictOver      = "over_limit" // it is refused
	VerdictShadow    = "shadow"     // it is over, and let through: shadow or quota mode
	VerdictUnlimited = "unlimited"  // a rule says that nothing limits it
	VerdictNoRule    = "no_rule"    // no rule is about it
	VerdictLimited   = "limited"    // a rule limits it, and no member was asked how it stands
)

// Explanation is what becomes of one descriptor, and why.
type Explanation struct {
	Domain      string            `json:"domain"`
	Descriptor  KeyDescriptor     `json:"descriptor"`
	Matched     bool              `json:"matched"`      // a rule is about it, if only to say that it is unlimited
	Rule        *ExplainRule      `json:"rule"`         // null: none
	OwnerString string            `json:"owner_string"` // the key's x-keyward-key
	Position    string            `json:"owner_position,omitempty"`
	Owner       string            `json:"owner"` // who counts it; empty without a rule or a ring
	Heir        string            `json:"heir"`  // who would if the owner died; empty with one member
	Counter     *CounterStatus    `json:"counter"`
	Verdict     string            `json:"verdict"`
	Why         string            `json:"why"`
	Headers     map[string]string `json:"headers,omitempty"` // that Envoy adds, where its filter is told to
	Steps       []ExplainStep     `json:"steps,omitempty"`   // the walk through the rules
}

// ExplainRule is the rule that a descriptor matched.
type ExplainRule struct {
	Path      []string `json:"path"` // domain, then one descriptor a level as the file has them
	Name      string   `json:"name,omitempty"`
	Limit     uint32   `json:"limit"`
	Unit      string   `json:"unit,omitempty"`
	Window    string   `json:"window,omitempty"` // of the count, as a Go duration
	Algorithm string   `json:"algorithm,omitempty"`
	Mechanism string   `json:"mechanism,omitempty"`
	Degraded  string   `json:"degraded,omitempty"`
	Burst     uint32   `json:"burst,omitempty"`
	Shadow    bool     `json:"shadow"`
	Quota     bool     `json:"quota"`
	Unlimited bool     `json:"unlimited"`
	File      string   `json:"file"`
	Line      int      `json:"line"`
}

// ExplainStep is what became of one entry of the descriptor.
type ExplainStep struct {
	Entry  KeyValue       `json:"entry"`
	Taken  *ExplainTried  `json:"taken"` // null: the walk ends here
	Passed []ExplainTried `json:"passed,omitempty"`
	More   int            `json:"more,omitempty"` // descriptors beside it that are not listed
}

// ExplainTried is a descriptor of the files, and why it took the entry or did not.
type ExplainTried struct {
	Descriptor string `json:"descriptor"`
	File       string `json:"file"`
	Line       int    `json:"line"`
	Why        string `json:"why"`
	Rule       bool   `json:"rule"` // it has a rate_limit
}

// NewExplanation is what rules alone say of a descriptor: all but Owner, Heir, Counter and Headers.
func NewExplanation(rules *config.Rules, domain string, entries []config.Entry) (Explanation, config.Match) {
	t := rules.Trace(domain, entries)
	e := Explanation{Domain: domain, Why: t.Why, Verdict: VerdictNoRule}
	for _, x := range entries {
		e.Descriptor.Entries = append(e.Descriptor.Entries, KeyValue(x))
	}
	for _, s := range t.Steps {
		step := ExplainStep{Entry: KeyValue(s.Entry), More: s.More}
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
		e.Verdict = VerdictUnlimited
	case config.Limited:
		e.Verdict = VerdictLimited
		e.OwnerString = string(rules.AppendOwnerString(nil, domain, entries, &t.Match))
		e.Position = fmt.Sprintf("%016x", t.Match.Owner)
	default:
		return e, t.Match
	}
	e.Matched, e.Rule = true, explainRule(t.Match.Rule)
	return e, t.Match
}

func triedOf(t config.Candidate) ExplainTried {
	return ExplainTried{Descriptor: t.String(), File: t.File, Line: t.Line, Why: t.Why, Rule: t.Rule}
}

func explainRule(r *config.RuleSpec) *ExplainRule {
	e := &ExplainRule{
		Path: []string{r.Domain}, Name: r.Name, Shadow: r.Shadow, Quota: r.Quota, Unlimited: r.Unlimited, File: r.File, Line: r.Line,
	}
	for _, l := range r.Levels {
		e.Path = append(e.Path, config.Candidate{Key: l.Key, Value: l.Value}.String())
	}
	if r.Unlimited {
		return e
	}
	e.Limit, e.Unit, e.Window = r.Limit.Limit, r.Unit.String(), r.Limit.Window.String()
	e.Algorithm, e.Mechanism, e.Degraded = r.Limit.Algorithm.String(), r.Extension.Mechanism.String(), r.Extension.Degraded.String()
	e.Burst = r.Limit.Burst
	return e
}

// SetDecision fills in what the owner says of the count: c, and whether one more hit is over. lenient is SHADOW_MODE or QUOTA_MODE.
func (e *Explanation) SetDecision(m *config.Match, c CounterStatus, over, lenient bool) {
	e.Counter, e.Owner = &c, c.Owner
	so := fmt.Sprintf("%d of %d hits are counted in the present window", c.Count, c.Limit)
	if m.Limit.Algorithm.Bucket() {
		so = fmt.Sprintf("the bucket's level is %d, and %d fit now", c.Count, c.Remaining)
	}
	if c.Authority != "full" {
		so += fmt.Sprintf(" (by authority %q: the owner did not answer for the whole limit)", c.Authority)
	}
	switch {
	case !over:
		e.Verdict = VerdictOK
		e.Why += fmt.Sprintf(" One more hit fits: %s.", so)
	case m.Rule.Shadow || m.Rule.Quota || lenient:
		e.Verdict = VerdictShadow
		e.Why += fmt.Sprintf(" One more hit is over the limit and passes all the same, for shadow or quota mode refuses nobody: %s.", so)
	default:
		e.Verdict = VerdictOver
		e.Why += fmt.Sprintf(" One more hit is refused: %s; the next one fits in %.0f s.", so, c.Reset)
	}
	e.Headers = headers(m, c, e.Verdict == VerdictOver)
}

// headers are those of Envoy's answer to one more hit: x-ratelimit-* with enable_x_ratelimit_headers, retry-after with
// enable_retry_after_header.
func headers(m *config.Match, c CounterStatus, over bool) map[string]string {
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

// explain answers GET /v1/explain, which names a descriptor as /v1/counters does and charges nothing either.
func explain(look func(domain string, entries []config.Entry) (Explanation, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		domain, entries, err := parseDescriptor(r.URL.Query())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		e, err := look(domain, entries)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		writeLive(w, e)
	}
}

// writeLive writes what is another thing a moment later.
func writeLive(w http.ResponseWriter, v any) {
	w.Header().Set("Cache-Control", "no-store")
	writeJSON(w, v)
}
