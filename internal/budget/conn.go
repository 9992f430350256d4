package budget

import (
	"errors"
	"net"
	"sync/atomic"
)

// factor is how many bytes a byte that was read may take until it is understood: its copy in a buffer, and what is made of it.
const factor = 2

// ErrOver is the error of a read after which a connection keeps too much.
var ErrOver = errors.New("too much is kept of a client that is not finished")

// Meter charges what is read from a connection, between Begin and Settle.
type Meter struct {
	account  *Account
	most     int64
	over     func()
	charged  atomic.Int64
	on       atomic.Bool
	reported atomic.Bool
}

// NewMeter charges to a, from now on. Of what is read, at most so many bytes are kept until Settle; 0: all. over is called
// once when that is too much.
func NewMeter(a *Account, most int64, over func()) *Meter {
	m := &Meter{account: a, most: most, over: over}
	m.on.Store(true)
	return m
}

// Begin charges what is read from now on.
func (m *Meter) Begin() { m.on.Store(true) }

// Settle takes the charges back and charges no more, until Begin.
func (m *Meter) Settle() {
	m.on.Store(false)
	m.account.Charge(-m.charged.Swap(0))
}

// Read charges n bytes that were read. An error is that the connection has to end.
func (m *Meter) Read(n int) error {
	if n == 0 || !m.on.Load() || m.most > 0 && m.charged.Load() >= factor*m.most {
		return nil
	}
	m.charged.Add(factor * int64(n))
	if m.account.Charge(factor * int64(n)) {
		return nil
	}
	if !m.reported.Swap(true) {
		m.over()
	}
	return ErrOver
}

// Conn is a connection that charges what is read from it.
type Conn struct {
	net.Conn
	*Meter
}

// Read reads.
func (c Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if over := c.Meter.Read(n); over != nil {
		return 0, over
	}
	return n, err
}
