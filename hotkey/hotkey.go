// Package hotkey finds the few keys that take most hits, in fixed memory, and says where their sub-keys go.
//
// Owned keys have exact decayed rates, kept only for those that were asked for often within a second; keys that are
// merely forwarded are counted by a sketch. Nothing here reads a clock or locks.
package hotkey

import "github.com/keyward/keyward/ring"

// Digest is a counter's 128-bit digest.
type Digest [2]uint64

// Mode is what is done about a hot key. The numbers are part of the gossiped form.
type Mode uint8

// The modes, the steps of the ladder.
const (
	Auto      Mode = 0 // as the ladder says; by hand: what was said by hand is cleared
	Cap       Mode = 1 // Envoy refuses locally what is certainly over
	Dedicated Mode = 2 // all requests go to one overflow member
	Spread    Mode = 3 // requests go to sub-keys on several members
	Never     Mode = 4 // by hand: nothing is done about it
)

// Route tells every xDS server and every member what is done about one hot key's requests. Of two for the same Domain
// and Owner one said by hand counts before others, and then the one with the greater Ver. It is gossiped, refreshed while
// it holds, and forgotten 15 s after its last refresh.
type Route struct {
	Domain  string
	Name    string // the descriptor, for people: k=v,k2=v2
	Owner   string // owner string: the header's value that Envoy matches
	Mode    Mode
	Manual  bool     // said by hand
	Author  ring.ID  // who says it
	Version int64    // Unix nanoseconds since when By says it like this
	Limit   uint32   // of the rule, when Capped: in every mode
	Window  int64    // nanoseconds, when Capped
	Subs    []SubKey // Dedicated: one; Spread: several
}

// SubKey is an owner string that the ring puts on a certain member.
type SubKey struct {
	Key    string // Owner, '#' and a number
	Member ring.ID
}
