package h2

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// dialogue generates the input of a client that mostly follows the protocol: it opens streams in order, sends their
// messages in parts, gives some up, changes its settings, and sometimes makes a mistake.
type dialogue struct {
	*rand.Rand
	out   bytes.Buffer
	fr    *http2.Framer
	block bytes.Buffer
	enc   *hpack.Encoder
	next  uint32   // the stream to open next
	open  []uint32 // whose messages have not ended
	old   []uint32 // the others
	wrong int      // one in so many frames is wrong
}

func newDialogue(seed uint64) *dialogue {
	d := &dialogue{Rand: rand.New(rand.NewPCG(seed, 1)), next: 1}
	d.fr = http2.NewFramer(&d.out, nil)
	d.fr.AllowIllegalWrites = true
	d.enc = hpack.NewEncoder(&d.block)
	d.wrong = []int{10, 40, 1000}[d.IntN(3)]
	_ = d.fr.WriteSettings()
	return d
}

// say generates a dialogue with the given number of frames.
func (d *dialogue) say(frames int) []byte {
	for range frames {
		if d.IntN(d.wrong) == 0 {
			d.mistake()
		} else {
			d.step()
		}
	}
	return d.out.Bytes()
}

func (d *dialogue) step() {
	switch n := d.IntN(20); {
	case n < 7 || len(d.open) == 0:
		d.begin()
	case n < 13:
		d.part()
	case n == 13:
		d.trailers()
	case n == 14:
		_ = d.fr.WriteRSTStream(d.any(), http2.ErrCode(d.IntN(14)))
	case n == 15:
		_ = d.fr.WritePing(d.IntN(4) == 0, [8]byte{byte(d.Uint32())})
	case n == 16:
		d.setting()
	case n == 17:
		_ = d.fr.WriteWindowUpdate([]uint32{0, d.any()}[d.IntN(2)], 1+d.Uint32N(200))
	case n == 18:
		_ = d.fr.WritePriority(d.any(), http2.PriorityParam{StreamDep: d.any() + 2, Weight: byte(d.Uint32())})
	default:
		_ = d.fr.WriteRawFrame(http2.FrameType(0x20+d.IntN(200)), http2.Flags(d.Uint32()), d.any(), make([]byte, d.IntN(30)))
	}
}

// any returns a stream that was opened, or the next one.
func (d *dialogue) any() uint32 {
	all := append(append([]uint32{}, d.open...), d.old...)
	if len(all) == 0 {
		d.begin()
		return d.next - 2
	}
	return all[d.IntN(len(all))]
}

var dialoguePaths = []string{echo, echo, echo, both, both, late, count, gives, fails, huge, size, "/none", "/test.Test/None"}

// begin opens a stream.
func (d *dialogue) begin() {
	list := append(append(fields{}, good[:2]...), [2]string{":path", dialoguePaths[d.IntN(len(dialoguePaths))]})
	list = append(list, good[3:]...)
	if d.IntN(4) == 0 {
		list = append(list, [2]string{"x-a", string(byte('a' + d.IntN(26)))})
	}
	if d.IntN(8) == 0 {
		list = append(list, [2]string{"content-length", "7"})
	}
	if d.IntN(4) == 0 {
		list = append(list, [2]string{"grpc-encoding", []string{"gzip", "gzip", "gzip", "identity", "zip"}[d.IntN(5)]})
	}
	d.headers(d.next, list, d.IntN(12) == 0)
	d.next += 2 + 2*uint32(d.IntN(8)/7)
}

// headers sends a header block, perhaps in parts, padded or with a priority.
func (d *dialogue) headers(id uint32, list fields, ends bool) {
	if ends {
		d.old = append(d.old, id)
	} else {
		d.open = append(d.open, id)
	}
	d.block.Reset()
	for _, f := range list {
		_ = d.enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	b := d.block.Bytes()
	p := http2.HeadersFrameParam{StreamID: id, EndStream: ends, BlockFragment: b, EndHeaders: true}
	if d.IntN(6) == 0 {
		p.PadLength = byte(d.Uint32())
	}
	if d.IntN(6) == 0 {
		p.Priority = http2.PriorityParam{StreamDep: id + 2, Weight: 7}
	}
	at := len(b)
	if d.IntN(4) == 0 {
		at = d.IntN(len(b) + 1)
		p.BlockFragment, p.EndHeaders = b[:at], false
	}
	_ = d.fr.WriteHeaders(p)
	for !p.EndHeaders {
		more := min(len(b)-at, 1+d.IntN(40))
		p.EndHeaders = at+more == len(b)
		_ = d.fr.WriteContinuation(id, p.EndHeaders, b[at:at+more])
		at += more
	}
}

// part sends a part of an open stream's message, usually all of it.
func (d *dialogue) part() {
	i := d.IntN(len(d.open))
	id := d.open[i]
	whole := []byte("\x00\x00\x00\x00\x0299")
	switch d.IntN(14) {
	case 12, 13:
		whole = compressedFrame(gzipped([]byte("99")))
	case 0:
		whole = whole[:d.IntN(len(whole))]
	case 1:
		whole[0] = byte(d.IntN(3))
	case 2:
		whole[d.IntN(len(whole))] = byte(d.Uint32())
	case 3:
		whole = append(whole, whole...)
	case 4:
		whole = append(binary.BigEndian.AppendUint32([]byte{0}, 9000), make([]byte, 9000)...)
	}
	ends := d.IntN(3) > 0
	if ends {
		d.end(i)
	}
	if d.IntN(5) == 0 {
		_ = d.fr.WriteDataPadded(id, ends, whole, make([]byte, d.IntN(256)))
		return
	}
	_ = d.fr.WriteData(id, ends, whole)
}

func (d *dialogue) end(i int) {
	d.old = append(d.old, d.open[i])
	d.open = append(d.open[:i], d.open[i+1:]...)
}

func (d *dialogue) trailers() {
	i := d.IntN(len(d.open))
	id := d.open[i]
	d.end(i)
	d.old = d.old[:len(d.old)-1]
	d.headers(id, fields{{"x-t", "1"}}, true)
}

func (d *dialogue) setting() {
	all := []http2.Setting{
		{ID: http2.SettingHeaderTableSize, Val: d.Uint32N(8192)}, {ID: http2.SettingEnablePush, Val: d.Uint32N(2)}, {ID: http2.SettingMaxConcurrentStreams, Val: d.Uint32N(9)},
		{ID: http2.SettingInitialWindowSize, Val: d.Uint32N(70000)}, {ID: http2.SettingInitialWindowSize, Val: d.Uint32N(100)}, {ID: http2.SettingMaxFrameSize, Val: 1<<14 + d.Uint32N(1000)},
		{ID: http2.SettingMaxHeaderListSize, Val: 1<<14 + d.Uint32N(1000)}, {ID: 0x99, Val: d.Uint32()},
	}
	_ = d.fr.WriteSettings(all[d.IntN(len(all))])
}

// mistake violates the protocol.
func (d *dialogue) mistake() {
	zero := make([]byte, d.IntN(20))
	switch d.IntN(16) {
	case 0:
		_ = d.fr.WriteRSTStream([]uint32{0, 2, d.next}[d.IntN(3)], 8)
	case 1:
		_ = d.fr.WriteData([]uint32{0, 2, d.next}[d.IntN(3)], false, zero)
	case 2:
		_ = d.fr.WriteData(d.any(), d.IntN(2) == 0, zero)
	case 3:
		d.headers([]uint32{0, 2, d.any()}[d.IntN(3)], good, false)
	case 4:
		_ = d.fr.WriteWindowUpdate([]uint32{0, d.next, d.any()}[d.IntN(3)], 1<<31-1)
	case 5:
		_ = d.fr.WriteWindowUpdate([]uint32{0, d.next, d.any()}[d.IntN(3)], 0)
	case 6:
		_ = d.fr.WriteRawFrame(http2.FrameType(d.IntN(10)), http2.Flags(d.Uint32()), []uint32{0, d.next, d.any()}[d.IntN(3)], zero)
	case 7:
		_ = d.fr.WriteSettings([]http2.Setting{{ID: 2, Val: 2}, {ID: 4, Val: 1 << 31}, {ID: 5, Val: 1}, {ID: 5, Val: 1 << 24}}[d.IntN(4)])
	case 8:
		d.headers(d.any(), fields{{"x-t", "1"}}, d.IntN(2) == 0)
	case 9:
		id := d.any()
		_ = d.fr.WritePriority(id, http2.PriorityParam{StreamDep: id})
	case 10:
		list := append(fields{}, good...)
		list = append(list[:d.IntN(6)], list[d.IntN(6):]...)
		d.headers(d.next, list, d.IntN(2) == 0)
		d.next += 2
	case 11:
		_ = d.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: d.next, BlockFragment: zero, EndHeaders: true})
		d.next += 2
	case 12:
		_ = d.fr.WriteHeaders(http2.HeadersFrameParam{StreamID: d.next, BlockFragment: []byte{0x82}})
		d.step()
	case 13:
		_ = d.fr.WriteContinuation([]uint32{0, d.next, d.any()}[d.IntN(3)], true, nil)
	case 14:
		d.headers(d.next, append(append(fields{}, good...), [][2]string{{"X", "y"}, {"connection", "close"}, {"te", "x"}, {"x", "a\x00"}, {":path", "/"}, {"content-length", "3"}}[d.IntN(6)]), d.IntN(2) == 0)
		d.next += 2
	default:
		for range 12 {
			d.begin()
		}
	}
}

// TestOracle compares the two servers on dialogues, all in one bubble: x/net keeps channels for the next connection.
func TestOracle(t *testing.T) {
	const dialogues = 500
	synctest.Test(t, func(t *testing.T) {
		whole := 0
		for seed := range uint64(dialogues) {
			say := newDialogue(seed).say(60)
			if compare(t, say) == len(say) {
				whole++
			}
		}
		if t.Logf("%d of %d dialogues were compared to their ends", whole, dialogues); whole < dialogues/8 {
			t.Error("too few to say anything of what comes late in a connection")
		}
	})
}

// FuzzOracle compares the two servers on arbitrary bytes.
func FuzzOracle(f *testing.F) {
	f.Add([]byte{})
	for seed := range uint64(20) {
		f.Add(newDialogue(seed).say(20))
	}
	f.Fuzz(func(t *testing.T, all []byte) {
		runtime.GC() // twice, so that x/net's pool has no channels of another bubble
		runtime.GC()
		synctest.Test(t, func(t *testing.T) { compare(t, all) })
	})
}
