package budget

import (
	"errors"
	"net"
	"sync/atomic"
)

// factor is the number of bytes that a byte of input may take until it is processed: a copy in a buffer, and the
// value decoded from it.
const factor = 2

// ErrOver is returned by reads of a connection that keeps too much.
var ErrOver = errors.New("client makes the process keep too much memory")

// Meter charges what is read from a connection between Begin and Settle.
type Meter struct {
	account  *Account
	keep     int64
	over     func()
	charged  atomic.Int64
	on       atomic.Bool
	reported atomic.Bool
}

// NewMeter returns a Meter that charges a from now on. At most most bytes of the input are kept until Settle; 0: all
// of them. over is called once, when the account is exceeded.
func NewMeter(a *Account, most int64, over func()) *Meter {
	m := &Meter{account: a, keep: most, over: over}
	m.on.Store(true)
	return m
}

// Start starts charging.
func (m *Meter) Start() { m.on.Store(true) }

// Stop takes back all charges and stops charging until Begin.
func (m *Meter) Stop() {
	m.on.Store(false)
	m.account.Charge(-m.charged.Swap(0))
}

// Read charges n bytes of input. It returns ErrOver if the connection must be closed.
func (m *Meter) Read(n int) error {
	if n == 0 || !m.on.Load() || m.keep > 0 && m.charged.Load() >= factor*m.keep {
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

// Conn charges what is read from it to its Meter.
type Conn struct {
	net.Conn
	*Meter
}

// Read reads from the connection.
func (c Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if over := c.Meter.Read(n); over != nil {
		return 0, over
	}
	return n, err
}
