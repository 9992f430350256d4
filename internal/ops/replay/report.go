package replay

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/keyward/keyward/envoy/rls"
	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// RunReport is the result of a replay. Fields are only ever added.
type RunReport struct {
	Lines         int       `json:"lines"`
	Skipped       int       `json:"skipped"`
	SkippedWhy    string    `json:"skipped_why,omitempty"`
	Requests      int       `json:"requests"`
	First         time.Time `json:"first"`
	Last          time.Time `json:"last"`
	RefusedByLog  int       `json:"refused_by_log"` // denied according to the log
	New           Outcome   `json:"new"`
	Old           *Outcome  `json:"old,omitempty"`
	OnlyNew       int       `json:"refused_by_new_only"`
	OnlyOld       int       `json:"refused_by_old_only"`
	BucketSeconds int64     `json:"bucket_seconds"` // length of a Bucket: 60, or more if there would be too many
	Buckets       []Bucket  `json:"buckets"`
}

// Outcome is the result for one set of rules.
type Outcome struct {
	Rules    string       `json:"rules"`
	Refused  int          `json:"refused"` // denied requests
	PerRule  []RuleResult `json:"per_rule"`
	TopKeys  []KeyResult  `json:"top_keys"` // the keys that were denied most
	Warnings []string     `json:"warnings,omitempty"`
}

// RuleResult is the result for one rule.
type RuleResult struct {
	Rule     string `json:"rule"`
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Limit    uint32 `json:"limit"`
	Window   string `json:"window"`
	Asked    int    `json:"asked"`         // descriptors that it limits
	Hits     uint64 `json:"hits"`          // their hits
	Over     int    `json:"over"`          // descriptors over it
	Shadow   bool   `json:"shadow"`        // it is not enforced
	Keys     int    `json:"keys_over"`     // keys that were over the limit
	Peak     int    `json:"peak_over"`     // over in the worst minute
	PeakTime string `json:"peak,omitzero"` // start of that minute
}

// KeyResult is the result for one key that was over its limit.
type KeyResult struct {
	Rule  string `json:"rule"`
	Key   string `json:"key"`
	Asked int    `json:"asked"`
	Over  int    `json:"over"`
}

// Bucket is the result for an interval.
type Bucket struct {
	Time     time.Time `json:"time"`
	Requests int       `json:"requests"`
	New      int       `json:"refused_by_new"`
	Old      int       `json:"refused_by_old"`
}

type ruleCount struct {
	asked, over, keys int
	hits              uint64
	minute            int64 // the current minute
	now, peak         int   // over in the current and in the worst minute
	worst             int64
}

type keyCount struct {
	rule        *config.RuleSpec
	name        string // set once it was over
	asked, over int
}

const minute = int64(time.Minute)

// count records the result of each descriptor. The service drops rules that another rule replaces, so the results of
// the last call correspond to the statuses with a limit, in order.
func (r *run) count(c *rls.Call, q *logged) {
	next := 0
	for i := range c.Response.Statuses {
		st := &c.Response.Statuses[i]
		if !st.HasLimit {
			continue
		}
		over := r.counters.over[next]
		next++
		entries := c.Request.Descriptors[i].Entries
		r.Rules.Match(c.Request.Domain, entries, nil, &r.match)
		k := r.keys[owner.Key(r.match.Digest)]
		if k == nil {
			k = &keyCount{rule: r.match.Rule}
			r.keys[owner.Key(r.match.Digest)] = k
		}
		rc := r.rules[r.match.Rule]
		if rc == nil {
			rc = &ruleCount{}
			r.rules[r.match.Rule] = rc
		}
		k.asked, rc.asked, rc.hits = k.asked+1, rc.asked+1, rc.hits+uint64(q.hits)
		if !over {
			continue
		}
		if k.over++; k.over == 1 {
			k.name = string(r.match.AppendName(nil, entries))
			rc.keys++
		}
		rc.refuse(q.at)
	}
}

func (rc *ruleCount) refuse(at int64) {
	rc.over++
	if m := at / minute; m != rc.minute {
		rc.minute, rc.now = m, 0
	}
	if rc.now++; rc.now > rc.peak {
		rc.peak, rc.worst = rc.now, rc.minute
	}
}

// outcome returns the result of a side.
func (r *run) outcome(top int) Outcome {
	o := Outcome{Rules: r.Name, PerRule: []RuleResult{}, TopKeys: []KeyResult{}}
	for _, refused := range r.refused {
		if refused {
			o.Refused++
		}
	}
	for _, rule := range r.Rules.Rules() {
		rc := r.rules[rule]
		if rc == nil {
			rc = &ruleCount{} // no request reached it, which the result shows
		}
		if rule.Unlimited {
			continue
		}
		res := RuleResult{
			Rule: rule.FullKey, File: rule.File, Line: rule.Line,
			Limit: rule.Limit.Limit, Window: rule.Limit.Window.String(), Shadow: rule.Shadow,
			Asked: rc.asked, Hits: rc.hits, Over: rc.over, Keys: rc.keys, Peak: rc.peak,
		}
		if rc.peak > 0 {
			res.PeakTime = time.Unix(0, rc.worst*minute).UTC().Format(time.RFC3339)
		}
		o.PerRule = append(o.PerRule, res)
	}
	over := slices.DeleteFunc(slices.Collect(maps.Values(r.keys)), func(k *keyCount) bool { return k.over == 0 })
	slices.SortFunc(over, func(a, b *keyCount) int {
		return cmp.Or(b.over-a.over, a.rule.Index-b.rule.Index, cmp.Compare(a.name, b.name))
	})
	for _, k := range over[:min(top, len(over))] {
		o.TopKeys = append(o.TopKeys, KeyResult{k.rule.FullKey, k.name, k.asked, k.over})
	}
	return o
}

// maxBuckets is the maximum number of buckets in a report.
const maxBuckets = 1500

// Options configure a replay.
type Options struct {
	New      Side
	Old      *Side               // nil: only the new rules
	Top      int                 // maximum number of keys in each Outcome
	Progress func(done, all int) // called with the number of requests done; may be nil
}

// Run replays a log with the new rules, and with the old ones if there are any.
func Run(log *Log, o Options) *RunReport {
	sides := []Side{o.New}
	if o.Old != nil {
		sides = append(sides, *o.Old)
	}
	runs := make([]*run, len(sides))
	all := len(sides) * len(log.requests)
	for i, side := range sides {
		runs[i] = newRun(log, side)
		var progress func(int)
		if o.Progress != nil {
			progress = func(done int) { o.Progress(i*len(log.requests)+done, all) }
		}
		runs[i].replay(progress)
	}
	rep := &RunReport{
		Lines: log.Lines, Skipped: log.Skipped, Requests: len(log.requests), RefusedByLog: log.Refused,
		New: runs[0].outcome(o.Top),
	}
	if log.Why != nil {
		rep.SkippedWhy = log.Why.Error()
	}
	rep.First, rep.Last = log.Span()
	var old []bool
	if o.Old != nil {
		outcome := runs[1].outcome(o.Top)
		rep.Old, old = &outcome, runs[1].refused
	}
	rep.buckets(log, runs[0].refused, old)
	return rep
}

// buckets divides the time of the log into buckets, without those that have no request.
func (rep *RunReport) buckets(log *Log, refused, old []bool) {
	width := minute
	if span := log.requests[len(log.requests)-1].at - log.requests[0].at; span/width >= maxBuckets {
		width = (span/maxBuckets/minute + 1) * minute
	}
	rep.BucketSeconds = width / int64(time.Second)
	for i := range log.requests {
		at := time.Unix(0, log.requests[i].at/width*width).UTC()
		if n := len(rep.Buckets); n == 0 || rep.Buckets[n-1].Time != at {
			rep.Buckets = append(rep.Buckets, Bucket{Time: at})
		}
		b := &rep.Buckets[len(rep.Buckets)-1]
		b.Requests++
		if refused[i] {
			b.New++
		}
		if old == nil {
			continue
		}
		if old[i] {
			b.Old++
		}
		switch {
		case refused[i] && !old[i]:
			rep.OnlyNew++
		case old[i] && !refused[i]:
			rep.OnlyOld++
		}
	}
}
