package durable

import "github.com/keyward/keyward/journal"

// ChangeKind names what has happened to a journal.
type ChangeKind uint8

// The kinds of a Change.
const (
	Loaded  ChangeKind = iota // former journals were loaded
	Up                        // a generation was begun, or the disk answers again
	Down                      // nothing can be written; it is tried again
	Stalled                   // the disk does not answer, and no request waits for it
)

// Change is a change in the state of a Keeper's journal, for Options.OnChange.
type Change struct {
	Kind     ChangeKind
	Err      error    // Down: why
	Recovery Recovery // Loaded: what this call of Load has found
}

// changed passes a change to Options.OnChange.
func (k *Keeper) changed(c Change) {
	if k.o.OnChange != nil {
		k.o.OnChange(c)
	}
}

// Status returns the state of the files. It is safe for concurrent use.
func (k *Keeper) Status() journal.Status { return k.journal.Status() }
