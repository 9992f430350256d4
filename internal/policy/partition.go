package policy

import "fmt"

// Partition limits what one side of a partition may admit. Its text form is the value of --partition.
type Partition uint8

// The policies for partitions.
const (
	PartShare     Partition = iota // a side admits the limit times its members / N_ref
	PartAvailable                  // every side admits the complete limit
	PartQuorum                     // the side with more than half of N_ref admits the limit, the others nothing
)

var partitions = [...]string{PartShare: "share", PartAvailable: "available", PartQuorum: "quorum"}

// ParsePartition returns the policy with that text form.
func ParsePartition(s string) (p Partition, ok bool) {
	for i, text := range partitions {
		if text == s {
			return Partition(i), true
		}
	}
	return 0, false
}

// String returns the text form of p.
func (p Partition) String() string {
	if int(p) >= len(partitions) {
		return fmt.Sprintf("partition(%d)", uint8(p))
	}
	return partitions[p]
}

// MarshalText returns the text form of p.
func (p Partition) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText sets p to the policy with that text form.
func (p *Partition) UnmarshalText(text []byte) error {
	parsed, ok := ParsePartition(string(text))
	if !ok {
		return fmt.Errorf("unknown partition policy %q", text)
	}
	*p = parsed
	return nil
}

// PartitionChoice is a rule's policy for partitions: 0 for the members' own (--partition), or 1 + a Partition. The
// numbers are part of the peer protocol.
type PartitionChoice uint8

// Choose returns the choice of p.
func Choose(p Partition) PartitionChoice { return PartitionChoice(p) + 1 }

// Or returns the chosen policy, or member if the rule does not choose one.
func (c PartitionChoice) Or(member Partition) Partition {
	if c == 0 || int(c) > len(partitions) {
		return member
	}
	return Partition(c - 1)
}

// String returns the policy as it is written in a rules file, or "" if the rule does not choose one.
func (c PartitionChoice) String() string {
	if c == 0 {
		return ""
	}
	return Partition(c - 1).String()
}
