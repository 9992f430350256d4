package rls

import "testing"

// The cost of taps for a request: nothing without a tap.
func BenchmarkTap(b *testing.B) {
	for name, rate := range map[string]float64{"none": 0, "10 a second": 10, "rare": -1} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, tapped)
			switch {
			case rate > 0:
				defer r.Tap(TapOptions{Rate: rate}, func(DecisionSample) {})()
			case rate < 0: // a filter that nothing passes looks at every request
				defer r.Tap(TapOptions{Text: "no match"}, func(DecisionSample) {})()
			}
			message := encodeRequest(b, request("d", descriptor("k", "al")))
			for b.Loop() {
				c := r.NewCall()
				_ = r.Decode(c, message)
				r.Decide(c, Caller{})
				r.Release(c)
			}
		})
	}
}
