package rls

import (
	"testing"

	"github.com/keyward/keyward/owner"
)

// BenchmarkAdditions measures what each addition costs in one decided call.
func BenchmarkAdditions(b *testing.B) {
	names := Additions{
		Authority: func(owner.Authority) string { return "full" }, Path: func(owner.Path) string { return "local" },
	}
	for name, set := range map[string]func(*Additions){
		"none":     func(*Additions) {},
		"headers":  func(a *Additions) { a.DecisionHeaders = true },
		"metadata": func(a *Additions) { a.DecisionMetadata = true },
		"fields":   func(a *Additions) { a.RateLimitFields = true },
	} {
		b.Run(name, func(b *testing.B) {
			a := names
			set(&a)
			r := newRig(b, basic, func(o *Options, _ *Switches) { o.Additions = a })
			message, out := encodeRequest(b, request("basic", descriptor("key1", "foo"))), make([]byte, 0, 1000)
			b.ReportAllocs()
			for b.Loop() {
				out = r.serve(message, "foo", out)
			}
		})
	}
}
