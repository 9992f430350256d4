package ring

import (
	"math"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	long := ID(strings.Repeat("x", MaxID+1))
	for _, c := range []struct {
		name     string
		members  []Member
		capacity int
		want     []string
	}{
		{"no members", nil, 0, nil},
		{"as many as fit", fleet(seeded(1), DefaultCapacity-1, 1), 0, nil},
		{"longest name", []Member{{ID: long[1:]}}, 2, nil},
		{"one too many", fleet(seeded(1), DefaultCapacity, 1), 0, []string{
			"add up to 1024", "capacity 1024 holds at most 1023",
		}},
		{"all at once", []Member{
			{ID: "a"}, {}, {ID: "a", Weight: 3}, {ID: long}, {ID: "b", Weight: math.MaxUint32},
		}, 4, []string{
			"member 1: has no name", "129 bytes", `member "a": its name is used 2 times`, "holds at most 3",
		}},
		{"capacity too small", nil, 1, []string{"ring capacity 1"}},
		{"capacity negative", []Member{{ID: "a"}}, -5, []string{"ring capacity -5"}},
		{"capacity too large", nil, MaxCapacity + 1, []string{"ring capacity 8193"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := Validate(c.members, c.capacity)
			if (err != nil) != (c.want != nil) {
				t.Fatalf("error %v", err)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not contain %q", err, part)
				}
			}
		})
	}
}

func TestEnvoyCapacity(t *testing.T) {
	for in, want := range map[int]int{
		-1: 1024, 0: 1024, 1: 1, 2: 2, 3: 4, 1000: 1024, 1024: 1024, 1025: 2048, 8192: 8192, 9000: 8192,
	} {
		if got := EnvoyCapacity(in); got != want {
			t.Errorf("capacity %d: %d, want %d", in, got, want)
		}
	}
}
