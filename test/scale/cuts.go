package scale

import "fmt"

// cutSizes are those of which samples differ from all members.
var cutSizes = []int{30, 100, 300, 1000, 2000}

// cutResult is one size, with a third of the members cut off.
type cutResult struct {
	n, k                     int
	own, common              Excess // simulated, of not too many members
	exact, exactWide, halves Excess // calculated, of samples of each owner's own
}

// third is a cluster with a third of its members cut off.
func third(n, k int, w Way) Cut {
	if w == Own {
		k = min(k, n-1)
	}
	return Cut{N: n, Minority: n / minor, K: k, F: 1, Way: w}
}

// simulateCuts cuts clusters of every size, and those that can be cut quickly often, at random.
func simulateCuts() (out []cutResult) {
	for _, n := range cutSizes {
		k := SampleSize(n)
		half := third(n, k, Own)
		half.Minority = n / 2
		c := cutResult{n: n, k: k, exact: third(n, k, Own).Exact(), exactWide: third(n, wide, Own).Exact(), halves: half.Exact()}
		if n <= simulated {
			c.own = third(n, k, Own).Simulate(trials, 1)
			c.common = third(n, k, Common).Simulate(trials, 1)
		}
		out = append(out, c)
	}
	return out
}

func cutTable(cuts []cutResult) string {
	var rows [][]string
	for _, c := range cuts {
		own, common := percent(c.own.Tail), percent(c.common.Most)
		if c.n > simulated {
			own, common = "", ""
		}
		rows = append(rows, []string{
			fmt.Sprint(c.n), percent(1 / float64(c.n)), fmt.Sprint(c.k), percent(1 / float64(c.k)), common,
			percent(c.exact.Tail), own, percent(max(0, c.exactWide.Tail)), percent(c.exact.Both), percent(c.halves.Both), percent(c.exactWide.Both),
		})
	}
	return table([]string{
		"members", "mesh: L x f/N", "k", "witnesses: L x f/k", "seen",
		"own samples, 1 key in 1000: above", "seen", "with k = 64", "both parts a quorum, 1/3 cut off", "half cut off", "1/3, k = 64",
	}, rows)
}
