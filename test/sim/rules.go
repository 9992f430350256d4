package sim

import (
	"fmt"
	"time"

	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/policy"
	"github.com/keyward/keyward/owner"
	"github.com/keyward/keyward/ring"
)

// key identifies a client that is limited. Its rule may change.
type key struct {
	name   string
	alike  bool // its digest differs from others' in a few bits only
	weight int  // of the requests
}

// rule is a key's rule in one version of the rules.
type rule struct {
	limit  limit.Rule
	shard  int // value of shard_by
	strict bool
	closed bool // it fails closed
	memory bool // it is not in journals
	digest owner.Key
	owner  uint64
	by     policy.Mechanism
	knobs  lease.Terms

	partition policy.PartitionChoice
}

// makeKeys creates the keys and their first rules.
func (w *world) makeKeys() {
	rules := make([]rule, w.o.Keys)
	for i := range w.o.Keys {
		w.keys = append(w.keys, &key{name: w.keyName(i), alike: w.o.Alike, weight: 1 + w.rnd.IntN(4)})
		if i == 0 && w.o.Leases.HotRate > 0 {
			w.keys[i].weight = 60
		}
		r := &rules[i]
		r.limit.Algorithm = w.o.Algorithms[w.rnd.IntN(len(w.o.Algorithms))]
		r.limit.Window = w.window()
		r.limit.Limit = w.amountIn(r.limit.Window)
		r.strict = w.chance(w.o.Strict)
		r.closed = w.o.Closed > 0 && w.chance(w.o.Closed)
		r.memory = !r.strict && w.chance(w.o.Durable.Memory)
		if r.limit.Algorithm.Bucket() && w.chance(0.5) {
			r.limit.Burst = 1 + w.rnd.Uint32N(2*r.limit.Limit)
		}
		w.limitLogSize(r)
		w.shrinkBurst(r)
		w.chooseMechanism(r)
		w.choose(r)
		r.name(w.keys[i])
	}
	w.rules = append(w.rules, rules)
}

func (w *world) window() time.Duration {
	if w.o.Durable.On {
		return w.durableWindow()
	}
	if w.o.Holds.On && w.rnd.IntN(2) == 0 {
		return time.Hour // so that the count at the end is that of all holds
	}
	return []time.Duration{2, 4, 5, 10, 30, 60}[w.rnd.IntN(6)] * time.Second
}

func (w *world) amount() uint32 {
	if w.o.Durable.On {
		return w.durableAmount()
	}
	n := []uint32{1, 4, 10, 30, 60, 150, 300, 1000}[w.rnd.IntN(8)]
	if w.o.Addends {
		n *= 8
	}
	return n
}

// keyName returns the name of a key. If all keys are to have one owner, it tries names until one has.
func (w *world) keyName(i int) string {
	name := fmt.Sprintf("k%d", i)
	if !w.o.OneOwner {
		return name
	}
	boots := make([]int, w.o.Slots)
	for j := range w.o.Members {
		boots[j] = 1
	}
	r := w.ringOf(boots)
	for n := 0; ; n++ {
		name := fmt.Sprintf("k%d.%d", i, n)
		if r.At(r.Owner(ring.Hash((&rule{}).place(name)))).ID == slotID(0) {
			return name
		}
	}
}

// name sets the rule's key. Another algorithm, window or shard_by makes another key.
func (r *rule) name(k *key) {
	h := ring.Hash(fmt.Sprintf("%s|%v|%v|%d", k.name, r.limit.Algorithm, r.limit.Window, r.shard))
	r.digest = owner.Key{h, h * 0x9E3779B97F4A7C15}
	if k.alike {
		r.digest[0] = h << 48
		r.digest[1] = h >> 16 & 0xffff
	}
	r.owner = ring.Hash(r.place(k.name))
}

// place returns the string that determines the key's place on the ring.
func (r *rule) place(key string) string { return fmt.Sprintf("%s-%d", key, r.shard) }

// changeRules creates a version of the rules, which members adopt one by one.
func (w *world) changeRules() {
	next := append([]rule(nil), w.rules[len(w.rules)-1]...)
	i := w.rnd.IntN(len(next))
	r := &next[i]
	kind := w.rnd.IntN(w.ruleChangeKinds())
	if kind == 0 && r.limit.Algorithm.Bucket() {
		kind = 1 // a level in hits has another meaning at another rate
	}
	switch kind {
	case 0:
		r.limit.Limit, r.limit.Burst = w.amountIn(r.limit.Window), 0
	case 1:
		r.limit.Window = w.window()
	case 2:
		r.limit.Algorithm = w.o.Algorithms[w.rnd.IntN(len(w.o.Algorithms))]
		r.limit.Burst = 0
	case 3:
		r.shard++
	case 4:
		w.chooseMechanism(r)
	}
	w.limitLogSize(r)
	r.name(w.keys[i])
	w.stats.count("rules: " + []string{"amount", "window", "algorithm", "shard_by", "mechanism"}[kind] + " changed")
	w.rules = append(w.rules, next)
	version := len(w.rules) - 1
	w.trace("rules %d: %s is now %+v", version, w.keys[i].name, *r)
	for _, m := range w.running() {
		w.after(w.randomBelow(500*time.Millisecond), m, func() { m.version = max(m.version, version) })
	}
}
