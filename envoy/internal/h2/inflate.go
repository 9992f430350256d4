package h2

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc/codes"
)

// encodingGzip is the only grpc-encoding in which requests are accepted, in addition to identity.
const encodingGzip = "gzip"

const (
	inflateCost  = 512      // cost of a compressed message, as for turnTaker.Spend
	inflateStep  = 16 << 10 // bytes of output after which the connection waits for its turn again
	inflateInput = 1 << 10  // the same for bytes of input, because blocks without output cost time, too
	inflaterSize = 64 << 10 // approximate size of an inflater in bytes
)

// inflater decompresses one message at a time.
type inflater struct {
	in    gzipInput
	gzip  gzip.Reader
	chunk [inflateStep]byte
	spare []byte // buffer for the next message, at most keepMessageSize bytes
}

// open begins to decompress b.
func (z *inflater) open(b []byte, turns turnTaker) error {
	z.in = gzipInput{rest: b, due: inflateInput, turns: turns}
	turns.Spend(inflateCost)
	turns.Enter()
	return z.gzip.Reset(&z.in)
}

// next returns the next bytes of output, up to inflateStep. They are valid until the next call.
func (z *inflater) next() ([]byte, error) {
	n, err := z.gzip.Read(z.chunk[:])
	z.in.turns.Spend(n / 2)
	z.in.turns.Enter()
	return z.chunk[:n], err
}

// close releases the message.
func (z *inflater) close() { z.in, z.gzip.Header = gzipInput{}, gzip.Header{} }

// gzipInput is the input of an inflater. It implements flate.Reader, so that gzip needs no buffer of its own.
type gzipInput struct {
	rest  []byte
	due   int // bytes to read before the connection waits for its turn
	turns turnTaker
}

// Read implements io.Reader.
func (r *gzipInput) Read(p []byte) (int, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.rest)
	r.skip(n)
	return n, nil
}

// ReadByte implements io.ByteReader.
func (r *gzipInput) ReadByte() (byte, error) {
	if len(r.rest) == 0 {
		return 0, io.EOF
	}
	b := r.rest[0]
	r.skip(1)
	return b, nil
}

func (r *gzipInput) skip(n int) {
	r.rest = r.rest[n:]
	if r.due -= n; r.due <= 0 {
		r.due = inflateInput
		r.turns.Spend(4 * inflateInput)
		r.turns.Enter()
	}
}

// keptCompressed returns how many bytes of a compressed message are kept, if keep bytes of its content are. No usual
// compressor makes a message that much longer.
func keptCompressed(keep int) int { return keep + keep>>8 + 64 }

// callError fails a call before it has a handler.
type callError struct {
	reason  string // for Options.Refuse
	code    codes.Code
	message string
}

func (e callError) Error() string { return e.message }

// inflate replaces the compressed message of a call by its content, of which it keeps Limits.KeepMessage bytes. If the
// content is invalid or larger than Limits.Message, inflate fails the call in the words of grpc-go and returns false.
// An error ends the connection.
func (c *conn) inflate(k *Stream) (bool, error) {
	z, ok := c.server.inflaters.Get().(*inflater)
	if !ok {
		z = new(inflater)
	}
	k.inflated = true
	out, err := c.inflateWith(z, k)
	k.inflating = 0
	if err == nil {
		k.message, z.spare = out, reusable(k.message)
		c.charge(k)
	}
	z.close()
	c.server.inflaters.Put(z)
	if err == nil {
		return true, nil
	}
	fault := callError{}
	if !errors.As(err, &fault) {
		return false, err
	}
	c.server.refuse(fault.reason)
	c.fail(k, fault.code, fault.message)
	return false, c.spendControl(1)
}

// inflateWith returns the content of a compressed message with a prefix. It releases the lock while it decompresses,
// and charges the memory that it uses after each step.
func (c *conn) inflateWith(z *inflater, k *Stream) ([]byte, error) {
	limits := &c.server.o.Limits
	keep := prefix + limits.KeepMessage
	out := append(z.spare[:0], zeros[:prefix]...)
	z.spare = nil
	c.mu.Unlock()
	err := z.open(k.message[prefix:], c.turns)
	c.mu.Lock()
	if err != nil {
		return nil, callError{Undecodable, codes.Internal, fmt.Sprintf("grpc: failed to decompress the message: %v", err)}
	}
	for n := 0; err == nil; {
		var b []byte
		c.mu.Unlock()
		b, err = z.next()
		c.mu.Lock()
		if n += len(b); n > limits.Message {
			return nil, callError{TooLarge, codes.ResourceExhausted,
				fmt.Sprintf("grpc: received message after decompression larger than max %d", limits.Message)}
		}
		out = appendUpTo(out, b, keep)
		k.inflating = cap(out) + inflaterSize
		if err := c.chargeInflated(k); err != nil {
			return nil, err
		}
	}
	switch kept, all := len(k.message)-prefix, int(k.received)-prefix; {
	case kept < all && len(out) < keep:
		return nil, callError{TooLarge, codes.ResourceExhausted,
			fmt.Sprintf("grpc: received compressed message larger than max (%d vs. %d)", all, kept)}
	case kept == all && !errors.Is(err, io.EOF):
		return nil, callError{Undecodable, codes.Internal, fmt.Sprintf("grpc: failed to read decompressed data: %v", err)}
	}
	return out, nil
}

// appendUpTo appends b to out, up to a total of most bytes, and never allocates more than that.
func appendUpTo(out, b []byte, most int) []byte {
	n := min(len(out)+len(b), most)
	if n > cap(out) {
		out = append(make([]byte, 0, min(max(2*cap(out), n), most)), out...)
	}
	return append(out, b[:n-len(out)]...)
}

// chargeInflated charges the memory that decompressing the message of k uses. It returns an error if the connection
// must end.
func (c *conn) chargeInflated(k *Stream) error {
	if c.broken != nil {
		return c.broken
	}
	if c.charge(k); c.chargeKept() {
		return nil
	}
	return c.reclaim()
}
