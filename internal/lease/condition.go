package lease

// Condition is one of the five conditions that make leases safe; see the package comment.
type Condition uint8

// The conditions.
const (
	C1 Condition = 1
	C2 Condition = 2
	C3 Condition = 3
	C4 Condition = 4
	C5 Condition = 5
)

// Violations counts refused messages by the Condition that they violate. All counts stay 0 while both sides follow the
// protocol, no clock steps and no two members lend the same key. After a partition, a holder may report to one grantor
// what the other has lent; this counts under C4, and only the return is lost.
type Violations [6]uint64

// Add adds o to v.
func (v *Violations) Add(o Violations) {
	for i := range v {
		v[i] += o[i]
	}
}
