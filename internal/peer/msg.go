package peer

import (
	"errors"
	"fmt"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
)

// frameMsg + a protocol.MessageKind is the type of a frame with a protocol.Message, since version 2.
const frameMsg = 32

const (
	maxCounters = 512 // in one message
	msgHead     = 57  // bytes of the head with an empty Member
)

var errCounters = errors.New("too many counters")

// msgKind returns the kind of message in a frame of type typ, or false if the frame has none.
func msgKind(typ byte) (k protocol.MessageKind, ok bool) {
	k = protocol.MessageKind(typ - frameMsg)
	return k, typ >= frameMsg && k >= protocol.Ping && k <= protocol.OwnershipReply
}

// appendMsg appends m as one frame. On an error it returns b unchanged. writers is scratch memory.
func appendMsg(b []byte, m *protocol.Message, writers *counterwire.Writers) ([]byte, error) {
	if len(m.Counters) > maxCounters {
		return b, errCounters
	}
	*writers = writers.Of(m.Counters)
	w, at := beginFrame(b, frameMsg+byte(m.Kind))
	w = appendMsgHead(w, m)
	w = writers.Append(w)
	for i := range m.Counters {
		if len(m.Counters[i].State.Slots) > counterwire.MaxSlots {
			return b, counterwire.ErrSlots
		}
		w = counterwire.Append(w, &m.Counters[i], *writers)
	}
	switch m.Kind {
	case protocol.Ack, protocol.OwnershipReply:
		w = appendLosses(w, m.Losses, at+4+maxFrame)
	case protocol.Chunk:
		w = appendOverflow(w, m.Sketch)
	}
	if n := len(w) - at - 4; n > maxFrame {
		return b, fmt.Errorf("%w: %d bytes", errTooLong, n)
	}
	w.EndLen32(at)
	return w, nil
}

func appendMsgHead(w wire.Writer, m *protocol.Message) wire.Writer {
	w = w.U16(uint16(msgHead + min(len(m.Member), maxID)))
	w = w.U8(byte(m.Flags)).U8(byte(m.Status)).U16(uint16(len(m.Counters))).U32(m.ChunkIndex)
	w = w.U64(m.Ring).U64(m.Seq).U64(m.BaseRing).I64(m.Sent).I64(m.Now).I64(m.SinceLost)
	return appendID(w, m.Member)
}

// msgReader parses messages into its own memory, which the next message overwrites.
type msgReader struct {
	counterwire.Decoder
	msg protocol.Message
}

// parse reads the payload of a frame that carries a message of kind k. The result is valid until the next call.
func (r *msgReader) parse(k protocol.MessageKind, b []byte) (*protocol.Message, error) {
	r.Reset()
	in := wire.NewReader(b)
	count, err := r.parseHead(k, in.Record(int(in.U16())))
	if err != nil {
		return nil, err
	}
	r.Writers(&in)
	if err := counterwire.Records(&in, count, r.Counter); err != nil {
		return nil, err
	}
	switch k {
	case protocol.Ack, protocol.OwnershipReply:
		r.msg.Losses, err = parseLosses(in)
	case protocol.Chunk:
		r.msg.Sketch, err = parseOverflow(in)
	}
	if err == nil {
		err = in.Err()
	}
	if err != nil {
		return nil, err
	}
	r.msg.Counters = r.Counters
	return &r.msg, nil
}

// parseHead returns the number of counters.
func (r *msgReader) parseHead(k protocol.MessageKind, h wire.Reader) (count int, err error) {
	m := &r.msg
	*m = protocol.Message{Kind: k, Flags: protocol.MessageFlags(h.U8()), Status: protocol.ReplyStatus(h.U8())}
	count = int(h.U16())
	m.ChunkIndex = h.U32()
	m.Ring, m.Seq, m.BaseRing = h.U64(), h.U64(), h.U64()
	m.Sent, m.Now, m.SinceLost = h.I64(), h.I64(), h.I64()
	m.Member = readID(&h)
	switch err := h.Err(); {
	case err != nil:
		return 0, err
	case count > maxCounters:
		return 0, errCounters
	}
	return count, nil
}
