//go:build !race

package claim

import "fmt"

// check requires the laws of a state.
func (x *model) check(s *modelState) {
	refunded, knows := [2]uint8{}, false
	for i := range s.m {
		m := &s.m[i]
		if !m.alive {
			continue
		}
		for w := range refunded {
			refunded[w] = max(refunded[w], m.refunded[w])
		}
		knows = knows || m.claim != Open && m.claim != unknown
		if n := m.count(); n < others {
			x.failure = fmt.Sprintf("member %d counts %d hits, and %d are of others: %+v", i, n, others, *s)
		} else if m.owns && s.confirmed && !s.lapsed && x.op == 1 && n < others+1 { // Keep does not wait for the charge
			x.failure = fmt.Sprintf("member %d counts %d hits after %d were confirmed: %+v", i, n, x.op, *s)
		}
	}
	if back := refunded[0] + refunded[1]; back > reserved {
		x.failure = fmt.Sprintf("%d hits of a hold of %d are given back: %+v", back, reserved, *s)
	} else if x.op == 1 && !s.lapsed && back > reserved-1 && !x.orphaned(s) {
		x.failure = fmt.Sprintf("%d hits are given back, and 1 of %d was used: %+v", back, reserved, *s)
	}
	if s.confirmed && x.op < reserved && !knows && (s.m[0].alive || s.m[1].alive) {
		x.failure = fmt.Sprintf("no member knows a settlement that was confirmed: %+v", *s)
	}
}

// orphaned reports whether a member has charged the used hits again, in addition to the hold.
func (x *model) orphaned(s *modelState) bool {
	return s.m[0].charged[0]+s.m[0].charged[1] > others+reserved || s.m[1].charged[0]+s.m[1].charged[1] > others+reserved
}
