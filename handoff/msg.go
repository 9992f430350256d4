// Package handoff moves counters to new owners: nothing lost, nothing counted twice.
//
// The right to decide a key is a token that one member holds. It moves when its holder and its next owner go by the
// same ring: the holder stops deciding, sends what it knows of the key, and says so (Ack for whole arcs, Sealed for one
// key). Until then the holder goes on, whatever its own ring says, so no key is ever without somebody who may decide.
// Machine keeps the tokens and the heartbeats that keep them valid; View is what a decision needs of them.
package handoff

import (
	"time"

	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// MessageKind says what a message is for. The numbers are part of the peer protocol.
type MessageKind uint8

// The kinds of messages.
const (
	Ping             MessageKind = 1 // heartbeat: by which ring the sender goes, and since which of its adoptions
	Pong             MessageKind = 2 // its answer; with Confirmed it keeps the other's tokens valid
	Chunk            MessageKind = 3 // counters of a transfer, in order
	Ack              MessageKind = 4 // the end of a transfer: all that is the receiver's on Ring has been sent and released; with Extra, all copies have been sent
	Replica          MessageKind = 5 // counters for the receiver to hold, or charges made under SHARE for the owner to know
	ReplicaAck       MessageKind = 6 // a Replica batch is in the receiver's memory
	OwnershipRequest MessageKind = 7 // asks for the tokens of single keys
	OwnershipReply   MessageKind = 8 // answers a OwnershipRequest, one status for all its keys
)

// MessageFlags of a message. The numbers are part of the peer protocol.
type MessageFlags uint8

// The flags.
const (
	Confirmed     MessageFlags = 1 << 0 // Pong: the receiver is on the sender's ring, which knows all it should of the receiver's keys
	NeedsAck      MessageFlags = 1 << 1 // Ping: the sender has no Ack for its ring from the receiver yet
	Prefetch      MessageFlags = 1 << 2 // Chunk, Ack: a copy ahead of a joiner's place on the ring; no token moves
	NeverOwned    MessageFlags = 1 << 3 // Ping: the sender has held no token since it started
	SuccessorCopy MessageFlags = 1 << 4 // Chunk, Ack: copies for an heir, after the Ack; no token moves
	needsCopies   MessageFlags = 1 << 5 // Ping: the sender has the receiver's Ack for its ring, but not all copies that follow it
)

// ReplyStatus answers a OwnershipRequest. The numbers are part of the peer protocol.
type ReplyStatus uint8

// The statuses.
const (
	KeyGiven   ReplyStatus = 0 // the tokens move with this message; Counters is what is known of the keys
	KeyKept    ReplyStatus = 1 // the sender decides them still, by an older ring: ask it
	KeyGone    ReplyStatus = 2 // the sender gave them to Member
	keyUnknown ReplyStatus = 3 // the sender does not know who holds them
	keyRefused ReplyStatus = 4 // the sender goes by another ring and holds nothing
)

// Message is one message between members. Which fields count is said with each.
type Message struct {
	Kind   MessageKind
	Flags  MessageFlags
	Status ReplyStatus // Sealed
	Ring   uint64      // fingerprint of the ring that the sender goes by; Chunk, Ack, Sealed: for which they are meant
	// Seq is: Ping, the sender's adoption number; Pong, Chunk, Ack: the receiver's adoption number that they answer;
	// Replica, Got: the batch; OwnershipRequest, Sealed: the sender's and the receiver's adoption number.
	Seq        uint64
	BaseRing   uint64 // Ack: the ring whose arcs the sender held whole until now; 0: none
	ChunkIndex uint32 // Chunk: its number in the transfer; Ack: the number of chunks before it
	// Sent is: Ping, the sender's clock, Unix nanoseconds; Pong, the same, echoed; Chunk, Ack: when the transfer began, which
	// tells one attempt from the next.
	Sent      int64
	Now       int64 // Ping, Pong: the sender's clock, for the offset between the two
	SinceLost int64 // Ack: nanoseconds since the sender last confirmed a member that is lost on Ring

	Member   ring.ID         // Sealed with Gone
	Counters []CounterRecord // Chunk, Replica, Sealed; OwnershipRequest: Key, Owner, Domain and Rule
	Sketch   *SketchPart     // Chunk: what the sender has counted of keys that found no place in its table
	Losses   []Loss          // Ack, and Sealed with Given: what the sender knows to be lost; not to be changed
}

// CounterRecord is all that a member knows of one key.
type CounterRecord struct {
	Key       [2]uint64
	RingPos   uint64 // ring position
	Domain    uint64 // hash of the domain, for memory quotas
	Rule      limit.Rule
	ExpiresAt int64 // when the state has no more effect, Unix nanoseconds by the deciding owner's clock
	State     limit.State
}

// SketchPart is a piece of a sketch: the cells that are not 0 of one part of it, for windows of one length. It counts the hits of many keys, of
// which the receiver's are some.
type SketchPart struct {
	Index   uint8
	Phase   int8
	Window  time.Duration // 0: of all lengths
	End     int64         // when all that it counts has passed, Unix nanoseconds by the sender's clock
	Domains [16]uint64    // whose hits it has counted, a bit for each slot of domains
	Cells   []Cell        // in the order of At
}

// Cell is one cell of a sketch.
type Cell struct {
	At   uint16
	Hits uint32
}

// Outbound is a message to send.
type Outbound struct {
	To  ring.ID
	Msg Message
}

// PeerState is where another member stands in its life.
type PeerState uint8

// The states.
const (
	Joining PeerState = iota // not on the ring yet
	Active                   // on the ring
	Leaving                  // off the ring, handing over
)

// LivePeer is another live member.
type LivePeer struct {
	ID        ring.ID
	BootID    uint64
	State     PeerState
	Weight    uint32 // on the ring
	NoHandoff bool   // speaks a version of the protocol without hand-over
}

// PartitionPolicy says what a part of a divided cluster may admit.
type PartitionPolicy uint8

// The policies.
const (
	PolicyShare     PartitionPolicy = iota // share: limit * reach / N_ref
	PolicyAvailable                        // available: the limit, in every part
	PolicyQuorum                           // quorum: the limit in a part of more than half of N_ref, else nothing
)

// Membership is what membership says beside the ring.
type Membership struct {
	NRef    int  // N_ref: the members that may be admitting, the lost ones included until their death is sure
	Joined  bool // this member has joined its cluster, or stands alone on purpose
	Leaving bool // this member leaves
	Peers   []LivePeer
	Left    []ring.ID // members that went gracefully a short while ago, having handed over
}

// Options are a Machine's settings. Self and Inst are required.
type Options struct {
	Self   ring.ID
	BootID uint64 // this boot; odd
	// OwnershipTTL (T_own) is how long a confirmation keeps tokens valid; default 1.5 s.
	OwnershipTTL time.Duration
	// TakeoverDelay (T_take) is how long after its last confirmation a lost member's tokens are made anew; default 2 s. It must
	// exceed Own by the drift of two clocks over that time.
	TakeoverDelay time.Duration
	Policy        PartitionPolicy
}
