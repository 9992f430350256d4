package rls

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/keyward/keyward/envoy/internal/names"
)

// FuzzServers sends the same call to both servers: any message, in DATA frames cut at random, with one odd header.
func FuzzServers(f *testing.F) {
	for _, b := range decodeSeeds(f) {
		f.Add(b, uint64(0), "", "")
	}
	message := encodeRequest(f, request("d", descriptor("k", "v"), descriptor("minute", "v")))
	for shape := range uint64(shapes) {
		f.Add(message, shape, "", "")
		f.Add(message, shape+7*shapes, "x-odd", "\x80")
	}
	for _, h := range [][2]string{
		{"content-type", "application/grpc+proto"}, {"content-type", "text"}, {"content-type", "\r"}, {"te", ""}, {"grpc-timeout", "1H"}, {"grpc-encoding", "gzip"},
		{":path", "/x/y"}, {":path", method + "/"}, {":method", "GET"}, {names.KeyHeader, "v#1"}, {attemptTimeoutHeader, "-"}, {"x-bin", "a"}, {"connection", "close"},
		{"x-odd", "\n"}, {names.KeyHeader, "\x00"},
	} {
		f.Add(message, uint64(0), h[0], h[1])
	}
	f.Add([]byte("0"), 8*uint64(shapes)+2, "", "") // fails before its end
	w := newTwins(f)
	f.Fuzz(func(t *testing.T, message []byte, shape uint64, name, value string) {
		call := shaped(message, shape)
		if strings.EqualFold(name, "grpc-timeout") && strings.ContainsAny(value, "mun") {
			return // less than a second or so: whether the answer comes in time is not for this test
		}
		if name != "" {
			call = call.with(name, value)
		}
		if d := w.differ(t, call); d != "" {
			t.Errorf("shape %d, %q: %q\n%s", shape, name, value, d)
		}
	})
}

// shapes are the ways in which shaped ends or breaks a call.
const shapes = 13

// shaped returns a call with the message in one of the shapes. The rest of the number seeds the sizes of its DATA
// frames.
func shaped(message []byte, shape uint64) rawCall {
	c, r := good(message), rand.New(rand.NewPCG(shape, 0))
	switch shape % shapes {
	case 1:
		c.trailers = true
	case 2:
		c.open = true
	case 3:
		c.data[0] = c.data[0][:r.IntN(len(c.data[0])+1)] // cut short
	case 4:
		c.data[0] = append(c.data[0], framed(message)...) // twice
	case 5:
		c.data[0] = append(c.data[0], message...)
	case 6:
		c.data[0][r.IntN(5)] ^= 1 << r.IntN(8) // in the prefix
	case 7:
		c.data[0] = message // without a prefix
	case 8:
		c.padding = uint8(r.IntN(256))
	case 9:
		c = zipped(gz(message))
	case 10:
		c = zipped(gz(message))
		c.data[0][5+r.IntN(len(c.data[0])-5)] ^= 1 << r.IntN(8) // in the compressed data
	case 11:
		b := gz(message)
		c = zipped(b[:r.IntN(len(b))])
	case 12:
		c = zipped(append(gz(message), message...))
	}
	if shape >= shapes {
		c.cut(r)
	}
	return c
}

// cut splits the data into frames of any size, including 0.
func (c *rawCall) cut(r *rand.Rand) {
	b := bytes.Join(c.data, nil)
	c.data = nil
	for len(b) > 0 && len(c.data) < 50 {
		n := r.IntN(min(len(b), 16<<10-256) + 1)
		c.data, b = append(c.data, b[:n]), b[n:]
	}
	for ; len(b) > 0; b = b[min(len(b), 16<<10-256):] {
		c.data = append(c.data, b[:min(len(b), 16<<10-256)])
	}
}
