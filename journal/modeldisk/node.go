package modeldisk

import (
	"maps"
	"math/rand/v2"
	"path"
	"slices"
)

// node is a file or a directory.
type node struct {
	dir bool

	// of a directory
	children map[string]*node // as processes see it
	names    map[string]*node // as it is on disk
	pending  []change         // that are not durable, oldest first

	// of a file
	seen    []byte // as processes see it
	durable []byte
	dirty   map[int]bool // sectors of seen that are not durable
}

// change is a change of a directory.
type change struct {
	name string
	to   *node // nil: the name was removed
}

func newDir() *node {
	return &node{dir: true, children: map[string]*node{}, names: map[string]*node{}}
}

// link adds a name to a directory, durably.
func (n *node) link(name string, to *node) {
	n.children[name], n.names[name] = to, to
}

// change changes a name of a directory.
func (n *node) change(name string, to *node) {
	n.pending = append(n.pending, change{name, to})
	set(n.children, name, to)
}

// set changes a name in one of a directory's maps.
func set(names map[string]*node, name string, to *node) {
	if to == nil {
		delete(names, name)
	} else {
		names[name] = to
	}
}

// syncNames makes the changes of a directory durable.
func (n *node) syncNames() {
	for _, c := range n.pending {
		set(n.names, c.name, c.to)
	}
	n.pending = nil
}

// loseNames makes a random part of a directory's changes durable and forgets that the others are not. A change that
// survives implies the earlier ones of the same name.
func (n *node) loseNames(rng *rand.Rand, chance float64) {
	for _, c := range n.pending {
		if rng.Float64() < chance {
			set(n.names, c.name, c.to)
		}
	}
	n.pending = nil
}

// write changes a file's content from an offset, which may be behind its end.
func (n *node) write(p []byte, off int64) {
	n.seen = extended(n.seen, int(off)+len(p))
	copy(n.seen[off:], p)
	n.touch(off, off+int64(len(p)))
}

// extended returns b with zeros appended so that it has at least size bytes.
func extended(b []byte, size int) []byte {
	if size <= len(b) {
		return b
	}
	return append(b, make([]byte, size-len(b))...)
}

// touch marks the sectors of a range as not durable.
func (n *node) touch(from, to int64) {
	if n.dirty == nil {
		n.dirty = map[int]bool{}
	}
	for s := from / sector; s*sector < to; s++ {
		n.dirty[int(s)] = true
	}
}

// persist makes one sector durable, and the file at least that long.
func (n *node) persist(s int) {
	from, to := s*sector, min((s+1)*sector, len(n.seen))
	n.durable = extended(n.durable, to)
	copy(n.durable[from:to], n.seen[from:to])
}

// sync makes a file's content durable.
func (n *node) sync() {
	for s := range n.dirty {
		n.persist(s)
	}
	n.dirty = nil
	n.durable = extended(n.durable, len(n.seen))
}

// loseSectors makes a random part of a file's content durable and forgets that the rest is not.
func (n *node) loseSectors(rng *rand.Rand, chance float64) {
	for _, s := range slices.Sorted(maps.Keys(n.dirty)) {
		if rng.Float64() < chance {
			n.persist(s)
		}
	}
	if n.dirty = nil; rng.Float64() < chance {
		n.durable = extended(n.durable, len(n.seen))
	}
}

// losePower loses a random part of what is not durable in n and below it.
func (n *node) losePower(rng *rand.Rand, chance float64, done map[*node]bool) {
	if done[n] {
		return
	}
	done[n] = true
	if !n.dir {
		n.loseSectors(rng, chance)
		n.seen = slices.Clone(n.durable)
		return
	}
	n.loseNames(rng, chance)
	n.children = maps.Clone(n.names)
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		n.children[name].losePower(rng, chance, done)
	}
}

// used returns the bytes of the files in and below n.
func (n *node) used() int64 {
	total := int64(len(n.seen))
	for _, c := range n.children {
		total += c.used()
	}
	return total
}

// walk calls visit for every file in and below n.
func (n *node) walk(at string, visit func(path string, n *node)) {
	if !n.dir {
		visit(at, n)
	}
	for name, c := range n.children {
		c.walk(path.Join(at, name), visit)
	}
}
