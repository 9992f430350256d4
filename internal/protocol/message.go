// Package protocol declares the messages between members: their kinds, flags and contents. Package peer encodes them.
package protocol

import (
	"time"

	"github.com/keyward/keyward/internal/claim"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/ring"
)

// MessageKind is the purpose of a Message. The numbers are part of the peer protocol.
type MessageKind uint8

// The message kinds.
const (
	Ping             MessageKind = 1 // heartbeat: the sender's ring, and which of its adoptions it is
	Pong             MessageKind = 2 // reply to a Ping; with Confirmed it keeps the receiver's ownership valid
	Chunk            MessageKind = 3 // counters of a transfer, in order
	Ack              MessageKind = 4 // end of a transfer: all of the receiver's keys on Ring are released
	Replica          MessageKind = 5 // counters for the successor or another zone, or charges of a local share for the owner
	ReplicaAck       MessageKind = 6 // the receiver has stored a Replica batch
	OwnershipRequest MessageKind = 7 // requests the ownership of single keys
	OwnershipReply   MessageKind = 8 // reply to an OwnershipRequest, with one status for all its keys
)

// MessageFlags are the flags of a Message. The numbers are part of the peer protocol.
type MessageFlags uint8

// The flags.
const (
	Confirmed     MessageFlags = 1 << 0 // Pong: the receiver is on the ring, and the ring has its state
	NeedsAck      MessageFlags = 1 << 1 // Ping: the sender has no Ack for its ring from the receiver yet
	Prefetch      MessageFlags = 1 << 2 // Chunk, Ack: replicas for a joining member; ownership does not move
	NeverOwned    MessageFlags = 1 << 3 // Ping: the sender has not owned any key since it started
	SuccessorCopy MessageFlags = 1 << 4 // Chunk, Ack: replicas for a successor; ownership does not move
	NeedsCopies   MessageFlags = 1 << 5 // Ping: the sender has the Ack, but not all replicas that follow it
)

// ReplyStatus is the result of an OwnershipRequest. The numbers are part of the peer protocol.
type ReplyStatus uint8

// The statuses.
const (
	KeyGiven   ReplyStatus = 0 // the message transfers ownership; Counters is all that the sender has stored for the keys
	KeyKept    ReplyStatus = 1 // the sender still owns the keys by an older ring; forward requests to it
	KeyGone    ReplyStatus = 2 // the sender has transferred the keys to Member
	KeyUnknown ReplyStatus = 3 // the sender has no record of the owner
	KeyRefused ReplyStatus = 4 // the sender uses another ring and does not own the keys
)

// Message is one message between members. The comment of a field lists the kinds that use it.
type Message struct {
	Kind   MessageKind
	Flags  MessageFlags
	Status ReplyStatus // OwnershipReply
	Ring   uint64      // version of the sender's ring; Chunk, Ack, OwnershipReply: of the ring that they are for
	// Seq is, for a Ping, the sender's adoption number; for Pong, Chunk and Ack, the receiver's adoption number that
	// they answer; for Replica and ReplicaAck, the batch number; for OwnershipRequest and OwnershipReply, the adoption
	// number of the member that requests.
	Seq        uint64
	BaseRing   uint64 // Ack: version of a ring whose arcs the sender still owned completely until now; 0: none
	ChunkIndex uint32 // Chunk: its index in the transfer; Ack: the number of chunks before it
	// Sent is, for a Ping, the sender's clock in Unix nanoseconds; for a Pong, the same value echoed; for Chunk and
	// Ack, the start of the transfer, which distinguishes its attempts.
	Sent      int64
	Now       int64 // Ping, Pong: the sender's clock, to compare the two clocks
	SinceLost int64 // Ack: nanoseconds since the sender last confirmed a member that failed

	Member   ring.ID         // OwnershipReply with KeyGone
	Counters []CounterRecord // Chunk, Replica, OwnershipReply; OwnershipRequest: only Key, RingPos, Domain and Rule
	Sketch   *SketchPart     // Chunk: what the sender counted for keys without a place in its table
	Losses   []Loss          // Ack, OwnershipReply with KeyGiven: the lost state known to the sender; read-only
}

// CounterRecord is everything that a member has stored for one key.
type CounterRecord struct {
	Key       [2]uint64
	RingPos   uint64 // ring position of the key
	Domain    uint64 // hash of the domain, for quotas
	Rule      limit.Rule
	Volatile  bool  // the rule keeps the counter out of journals (durability: memory)
	ExpiresAt int64 // when the state stops to have an effect, in Unix nanoseconds by the owner's clock
	State     limit.State
	// Claims are some of the key's claims: those that have changed, or a part of all of them. A record may have no more
	// than claims: then its Rule is not set.
	Claims []claim.Claim
}

// The limits of one message. Receivers refuse more counters; bytes are approximate.
const (
	MaxCounters = 512
	MaxBytes    = 96 << 10
	// MaxClaims is the most claims of one record, about 22 KB.
	MaxClaims = 400
)

// Size returns the approximate size of c in a message, in bytes.
func (c *CounterRecord) Size() int { return 96 + 40*len(c.State.Slots) + 64*len(c.Claims) }

// SketchPart is a piece of a sketch: the cells of one part that are not 0, for windows of one length. It counts the
// hits of many keys, among them keys of the receiver.
type SketchPart struct {
	Index   uint8
	Phase   int8
	Window  time.Duration // window length; 0: all lengths
	End     int64         // when all counted windows have ended, in Unix nanoseconds by the sender's clock
	Domains [16]uint64    // domains with counted hits, one bit for each domain slot
	Cells   []Cell        // in ascending order of At
}

// Cell is one cell of a sketch.
type Cell struct {
	At   uint16
	Hits uint32
}

// Outbound is a message to send to a member.
type Outbound struct {
	To  ring.ID
	Msg Message
}

// Loss describes lost state: the counters of all keys whose owner and successor on a ring have both failed. It is
// transferred together with ownership, because a new owner without a counter cannot know whether the key was ever
// charged.
type Loss struct {
	FoundAt    int64 // when it was detected, in Unix nanoseconds by the clock of the member that detected it
	Parameters ring.Parameters
	Members    []ring.Member
	Dead       []ring.ID
}
