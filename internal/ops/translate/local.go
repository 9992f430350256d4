package translate

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// localAlone is the reason why a local limit has no rule.
const localAlone = "each Envoy counts a local limit alone and asks no service; it stays as it is"

// local adds a finding about a local limit, and reports whether to translate it as a limit of all Envoys together. global
// is the field for such limits.
func (t *translation) local(f field, global string) bool {
	if t.options.Envoys == 0 {
		f.say(NoCounterpart, "for one limit of all Envoys together, move it to "+global+", and pass --envoys N to see its rule", localAlone)
		return false
	}
	f.say(Note, "Envoy sends its descriptor when it is in "+global+" instead", "translated as one limit of %d Envoys together", t.options.Envoys)
	return true
}

// together returns the limit of all Envoys, which is at most that of a rule.
func (t *translation) together(f field, each uint64) uint64 {
	high, n := bits.Mul64(each, uint64(t.options.Envoys))
	if high > 0 || n > math.MaxUint32 {
		f.say(NoCounterpart, "use a smaller one", "%d times %d is more than %d", t.options.Envoys, each, uint32(math.MaxUint32))
		return math.MaxUint32
	}
	return n
}

// bucket returns a token bucket.
func bucket(requests, burst uint64, window time.Duration) *limit {
	l := windowed(requests, window)
	l.extra = append([]pair{{"algorithm", "token_bucket"}, {"burst", fmt.Sprint(burst)}}, l.extra...)
	return l
}

// localLimit adds the rule of a local limit, with a descriptor that the policy has to name.
func (t *translation) localLimit(d *domain, where, name string, l *limit, shadow bool, at field) {
	path := []entry{{"local", name}}
	level := d.insert(path, at)
	if level == nil || level.limit != nil {
		return
	}
	level.limit, level.shadow = l, shadow
	d.source(at.rule)
	d.sends(rateLimit{where: where + ", to be added", actions: []action{genericKey("local", name)}})
}

// contourLocal translates a local rate limit policy of Contour.
func (t *translation) contourLocal(d *domain, where, name string, f field) {
	if !t.local(f, "rateLimitPolicy.global") {
		return
	}
	m := f.open().only("requests", "unit", "burst", "responseStatusCode", "responseHeadersToAdd")
	for _, key := range []string{"responseStatusCode", "responseHeadersToAdd"} {
		if r := m.get(key); r.exists() {
			r.say(NoCounterpart, "configure the responses in Envoy, or use the headers of docs/rules.md", "rules do not choose the response")
		}
	}
	requests, ok := m.get("requests").number(math.MaxUint32)
	unit := m.get("unit").oneOf("", "second", "minute", "hour")
	if !m.get("requests").required() || !m.get("unit").required() || !ok || unit == "" {
		return
	}
	burst, _ := m.get("burst").number(math.MaxUint32)
	window := map[string]time.Duration{"second": time.Second, "minute": time.Minute, "hour": time.Hour}[unit]
	t.localLimit(d, where, name, bucket(t.together(f, requests), t.together(f, requests+burst), window), false, f)
}

// kgatewayLocal translates a local rate limit policy of kgateway.
func (t *translation) kgatewayLocal(d *domain, o *object, f field) {
	m := f.open().only("tokenBucket", "percentEnabled", "percentEnforced")
	if len(m.keys) == 0 {
		f.say(Note, "", "it is empty, which switches local limits of less specific policies off")
		return
	}
	if !t.local(f, "rateLimit.global") {
		return
	}
	percent := func(key string) uint64 {
		p := m.get(key)
		n, ok := p.number(100)
		if ok && n != 100 && (key != "percentEnforced" || n != 0) {
			p.say(NoCounterpart, "use shadow_mode to try a limit", "a rule applies to all requests")
		}
		if !ok {
			return 100
		}
		return n
	}
	percent("percentEnabled")
	enforced := percent("percentEnforced")
	b := m.get("tokenBucket").open().only("maxTokens", "tokensPerFill", "fillInterval")
	most, ok1 := b.get("maxTokens").number(math.MaxInt32)
	fill, ok2 := b.get("tokensPerFill").number(math.MaxInt32)
	if !b.get("tokensPerFill").exists() {
		fill, ok2 = 1, true
	}
	interval := b.get("fillInterval")
	if !b.get("maxTokens").required() || !interval.required() || !ok1 || !ok2 {
		return
	}
	if fill == 0 || most == 0 {
		b.of.say(Invalid, "", "maxTokens and tokensPerFill are at least 1")
		return
	}
	window, err := time.ParseDuration(interval.text())
	if err != nil || window <= 0 || window > maxWindow {
		interval.say(Invalid, "", "%s is not a duration up to 8760h", quoted(interval.text()))
		return
	}
	t.localLimit(d, "the targets of TrafficPolicy "+o.id(), o.id(), bucket(t.together(f, fill), t.together(f, most), window), enforced == 0, f)
}
