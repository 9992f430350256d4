package durable

import "github.com/keyward/keyward/journal"

// StateKind is what has happened to a journal.
type StateKind uint8

// The kinds of a State.
const (
	Loaded  StateKind = iota // former journals were loaded
	Up                       // a generation was begun, or the disk answers again
	Down                     // nothing can be written; it is tried again
	Stalled                  // the disk does not answer, and no request waits for it
)

// State is a change of a Keeper's journal, for Options.OnState.
type State struct {
	Kind     StateKind
	Err      error    // Down: why
	Recovery Recovery // Loaded: what this call of Load has found
}

// changed reports a change to Options.OnState.
func (k *Keeper) changed(s State) {
	if k.o.OnState != nil {
		k.o.OnState(s)
	}
}

// Status returns the state of the files. It is safe for concurrent use.
func (k *Keeper) Status() journal.Status { return k.journal.Status() }
