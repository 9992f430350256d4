package lease

// Condition is one of the five that a lease is safe by; see the package.
type Condition uint8

// The conditions.
const (
	C1 Condition = 1
	C2 Condition = 2
	C3 Condition = 3
	C4 Condition = 4
	C5 Condition = 5
)

// Violations counts what was refused because it would have broken a condition, by Condition. All stay 0 as long as both
// ends keep to the protocol, clocks do not step and no two grantors lend one key: after a cut has healed a holder may show
// one what the other lent it, which then counts under C4 and costs nothing but the return.
type Violations [6]uint64

// Add adds what another counted.
func (v *Violations) Add(o Violations) {
	for i := range v {
		v[i] += o[i]
	}
}
