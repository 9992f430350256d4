package sim

import (
	"math/rand/v2"

	"github.com/keyward/keyward/internal/policy"
)

// expandChoices returns the options of a seed whose rules choose how they are decided: their policies for partitions
// differ from the members', and partitions are frequent. Every other seed has leases.
func expandChoices(seed uint64) options {
	expand := expandBase
	if seed%2 == 0 {
		expand = expandLeases
	}
	o := expand(seed)
	r := rand.New(rand.NewPCG(seed, 0xc401ce))
	o.Choices = true
	o.Policy = policy.Partition(r.IntN(3))
	if !o.Leases.Calm && !o.Leases.Wide && r.IntN(2) == 0 {
		o.Partitions = 1 + r.IntN(2)
	}
	return o
}

// choose makes the choices of r, which later versions of the rule keep.
func (w *world) choose(r *rule) {
	if !w.o.Choices {
		return
	}
	r.partition = policy.PartitionChoice(w.rnd.IntN(4))
	r.knobs.Partition = r.partition
}

// policyOf returns the policy for partitions of a's rule.
func (o *oracle) policyOf(a *account) policy.Partition { return a.partition.Or(o.w.o.Policy) }

// mayContinueAlone reports whether a part of the cluster may admit complete limits without a majority.
func (o *options) mayContinueAlone() bool { return o.Policy == policy.PartAvailable || o.Choices }
