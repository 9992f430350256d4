package config

import (
	"bytes"
	"slices"
	"strings"
)

// pattern is a glued text split at its asterisks. Each * matches any bytes, or none.
type pattern [][]byte

func newPattern(text string) pattern {
	if !strings.Contains(text, "*") {
		return nil
	}
	return bytes.Split([]byte(text), []byte("*"))
}

// match reports whether text begins with the first literal, ends with the last, and contains the others in between, in
// order and without overlap. Matching each middle literal where it first occurs leaves the most text for the next ones.
func (p pattern) match(text []byte) bool {
	first, last := p[0], p[len(p)-1]
	if len(text) < len(first)+len(last) || !bytes.HasPrefix(text, first) || !bytes.HasSuffix(text, last) {
		return false
	}
	text = text[len(first) : len(text)-len(last)]
	for _, middle := range p[1 : len(p)-1] {
		i := bytes.Index(text, middle)
		if i < 0 {
			return false
		}
		text = text[i+len(middle):]
	}
	return true
}

// covers reports whether p matches everything that the pattern written as text matches. No literal of p contains an
// asterisk, so only a * of p can match one.
func (p pattern) covers(text string) bool { return p != nil && p.match([]byte(text)) }

// wildcards finds the first pattern of a level, in the order of the file, that matches a text. Patterns are indexed by
// the literal before their first *, so that only patterns with the right prefix are tried.
type wildcards struct {
	lengths  []int // distinct lengths of the prefixes, ascending
	byPrefix map[string][]candidate
	count    int
}

// candidate is the node of a pattern with its position in the file.
type candidate struct {
	node  *node
	order int
}

func (w *wildcards) add(n *node) {
	prefix := string(n.pattern[0])
	if w.byPrefix == nil {
		w.byPrefix = map[string][]candidate{}
	}
	if i, found := slices.BinarySearch(w.lengths, len(prefix)); !found {
		w.lengths = slices.Insert(w.lengths, i, len(prefix))
	}
	w.byPrefix[prefix] = append(w.byPrefix[prefix], candidate{n, w.count})
	w.count++
}

func (w *wildcards) find(text []byte) *node {
	best := candidate{order: w.count}
	for _, length := range w.lengths {
		if length > len(text) {
			break
		}
		for _, c := range w.byPrefix[string(text[:length])] {
			if c.order >= best.order {
				break
			}
			if c.node.pattern.match(text) {
				best = c
				break
			}
		}
	}
	return best.node
}
