package app

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes as the value of a flag: a number, alone or with KiB, MiB, GiB or TiB.
type byteSize int64

// byteUnits are the units of a byteSize, the largest first.
var byteUnits = []struct {
	name string
	size int64
}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}

// String implements pflag.Value.
func (b *byteSize) String() string {
	for _, u := range byteUnits {
		if n := int64(*b); n >= u.size && n%u.size == 0 {
			return strconv.FormatInt(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

// Set implements pflag.Value.
func (b *byteSize) Set(text string) error {
	for _, u := range byteUnits {
		digits, ok := strings.CutSuffix(text, u.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.size {
			break
		}
		*b = byteSize(n * u.size)
		return nil
	}
	return fmt.Errorf("%q is not a number of bytes, like 512MiB or 1GiB", text)
}

// Type implements pflag.Value.
func (b *byteSize) Type() string { return "bytes" }
