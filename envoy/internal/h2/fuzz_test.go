package h2

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// converse gives a server one connection with the given input, and checks that the server closes it and releases
// everything.
func converse(t *testing.T, say []byte) {
	s := NewInlineServer(Options{Methods: methods(), Headers: []KeptHeader{{Name: "x-a", Max: 100}}, Refuse: func(string) {}, Served: func(net.Conn) {}})
	near, far := net.Pipe()
	s.start(far)
	var done sync.WaitGroup
	done.Go(func() { _, _ = io.Copy(io.Discard, near) })
	_ = near.SetDeadline(time.Now().Add(20 * time.Second))
	_, _ = io.WriteString(near, http2.ClientPreface)
	_, _ = near.Write(say)
	near.Close()
	done.Wait()
	ended := make(chan struct{})
	go func() {
		s.gone.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the connection does not end")
	}
	if n := s.account.Held(); n != 0 {
		t.Errorf("%d bytes are charged without a connection", n)
	}
}

var settingsFrame = appendHead(nil, 0, frameKind{http2.FrameSettings, 0}, 0)

// FuzzConn sends arbitrary bytes after a valid preface.
func FuzzConn(f *testing.F) {
	f.Add([]byte{})
	f.Add(settingsFrame)
	f.Add(append(append(settingsFrame[:9:9], headersFrame(1, 0, callBlock(echo))...), "\x00\x00\x07\x00\x01\x00\x00\x00\x01\x00\x00\x00\x00\x02hi"...))
	f.Fuzz(converse)
}

// FuzzFrames sends frames that are mostly valid: each pair of bytes picks a frame and a stream, the next bytes a
// mistake.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x00\x01\x10\x01\x20\x01\x00\x03\x11\x03\x30\x00"))
	f.Add([]byte("\x00\x01\x10\x01\x30\x01\x40\x00\x50\x01\x60\x00\x70\x00\x01\x05\x10\x05"))
	f.Add([]byte("\x40\x00\x00\x01\x10\x01\x50\x01\x51\x01\x40\x03\x50\x00"))
	f.Fuzz(func(t *testing.T, plan []byte) {
		converse(t, frames(plan))
	})
}

// frames generates frames from a plan.
func frames(plan []byte) []byte {
	paths := []string{echo, late, count, gives, fails, huge, both, ""}
	out := append([]byte{}, settingsFrame...)
	for ; len(plan) >= 2 && len(out) < 1<<20; plan = plan[2:] {
		kind, how, id := plan[0]>>4, plan[0]&15, uint32(plan[1]&31)
		n := int(plan[1])
		switch kind {
		case 0:
			out = append(out, headersFrame(id, http2.Flags(how>>3), callBlock(paths[how&7]))...)
		case 1:
			out = append(appendHead(out, 7, frameKind{http2.FrameData, http2.Flags(1 - how&1)}, id), 0, 0, 0, 0, 2, '9', '9')
		case 2:
			out = append(appendHead(out, n, frameKind{http2.FrameData, http2.Flags(how)}, id), make([]byte, n)...)
		case 3:
			out = appendReset(out, id, http2.ErrCode(how))
		case 4:
			out = append(appendHead(out, 6, frameKind{http2.FrameSettings, 0}, 0), 0, how&7, 0, 0, plan[1]&0x80, plan[1])
		case 5:
			out = appendWindow(out, id*uint32(how&1), int64(n)<<(2*how))
		case 6:
			out = append(appendHead(out, 8, frameKind{http2.FramePing, http2.Flags(how & 1)}, 0), drainPing[:]...)
		case 7:
			out = appendGoAway(out, id, http2.ErrCode(how), "")
		case 8:
			b := callBlock(paths[how&7])
			out = append(appendHead(out, n%len(b), frameKind{http2.FrameHeaders, 0}, id), b[:n%len(b)]...)
			out = append(appendHead(out, len(b)-n%len(b), frameKind{http2.FrameContinuation, http2.FlagContinuationEndHeaders}, id), b[n%len(b):]...)
		case 9: // a block that puts something into the table, or points at it
			b := append([]byte{0x40, 3, 'x', '-', 'a', 1, how, 0x80 | 62}, callBlock(echo)...)
			out = append(out, headersFrame(id, 0, b[7*int(how&1):])...)
		case 10: // trailers
			out = append(out, headersFrame(id, 1, []byte("\x00\x01x\x01y"))...)
		default:
			out = append(appendHead(out, min(n, len(plan)), frameKind{http2.FrameType(how), http2.Flags(plan[1])}, id), plan[:min(n, len(plan))]...)
		}
	}
	return out
}
