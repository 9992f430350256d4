package config

import "slices"

// OrderResult states whether entries without an order match a rule.
type OrderResult uint8

// The results of Rules.Order.
const (
	OrderNone      OrderResult = iota // no order of the entries matches a rule
	OrderFound                        // exactly one does
	OrderAmbiguous                    // several do, or it would take too long to find out
)

// maxOrderSteps bounds the descriptors that Order looks at.
const maxOrderSteps = 1000

// Order arranges entries that come in no order, such as those of a map, so that they match a rule of the domain. It
// returns OrderFound if exactly one order does, and has then arranged the entries in it.
func (r *Rules) Order(domain string, entries []Entry) OrderResult {
	d := r.domains[domain]
	if d == nil || len(entries) == 0 {
		return OrderNone
	}
	s := orderSearch{left: slices.Clone(entries), steps: maxOrderSteps}
	s.walk(&d.node)
	switch {
	case s.paths > 1 || s.steps < 0:
		return OrderAmbiguous
	case s.paths == 0:
		return OrderNone
	}
	copy(entries, s.found)
	return OrderFound
}

// orderSearch walks down the tree with the entries in all orders that it has descriptors for.
type orderSearch struct {
	taken, left []Entry // on the way to the current node, and the others
	found       []Entry // the order of the first path
	paths       int     // to rules, at most 2
	steps       int     // that remain; below 0: the search was given up
}

func (s *orderSearch) walk(n *node) {
	if len(s.left) == 0 {
		if n.rule != nil {
			s.paths++
			s.found = slices.Clone(s.taken)
		}
		return
	}
	for i := range s.left {
		e := s.left[i]
		if s.steps--; s.steps < 0 || s.paths > 1 {
			return
		}
		next := n.next(&e)
		if next == nil {
			continue
		}
		s.left = slices.Delete(s.left, i, i+1)
		s.taken = append(s.taken, e)
		s.walk(next)
		s.taken = s.taken[:len(s.taken)-1]
		s.left = slices.Insert(s.left, i, e)
	}
}
