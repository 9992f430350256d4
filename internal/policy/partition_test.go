package policy

import "testing"

// TestPartitionChoice checks that a rule's choice replaces the members' policy, and that its text is the policy's.
func TestPartitionChoice(t *testing.T) {
	for p := PartShare; p <= PartQuorum; p++ {
		if c := Choose(p); c.Or(PartShare) != p || c.Or(PartQuorum) != p || c.String() != p.String() || c == 0 {
			t.Errorf("%s: %d, %s", p, c, c)
		}
		var none PartitionChoice
		if none.Or(p) != p || none.String() != "" {
			t.Errorf("no choice: %s instead of %s, %q", none.Or(p), p, none)
		}
		if later := PartitionChoice(len(partitions) + 1); later.Or(p) != p {
			t.Errorf("a policy of a later version: %s instead of %s", later.Or(p), p)
		}
	}
}
