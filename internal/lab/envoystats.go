package lab

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// StatSum returns the sum of Envoy's statistics whose names end with suffix, as in ".ratelimit.error", over clusters
// and listeners.
func (e *Envoy) StatSum(ctx context.Context, suffix string) (float64, error) {
	body, err := Get(ctx, "http://"+e.Admin+"/stats?filter="+strings.ReplaceAll(suffix, ".", "%5C."))
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(string(body)) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || !strings.HasSuffix(name, suffix) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("read Envoy's statistics: %q: %w", line, err)
		}
		sum += v
	}
	return sum, nil
}
