// Package budget accounts for the memory that clients make a process keep.
//
// [New] makes the account of all connections -> [Account.Part] makes that of one port -> [Account.Open] makes that of one
// connection. A charge to a connection is a charge to all accounts above it.
package budget

import "sync/atomic"

// Account is a number of bytes that clients make the process keep: of one connection, of a port or of all ports. The nil
// Account charges nothing and allows everything. Its methods are safe for concurrent use.
type Account struct {
	parent *Account
	limit  int64 // 0: none of its own
	fair   int64
	held   atomic.Int64
	open   atomic.Int64 // connections
	closed atomic.Bool
}

// New returns an account without connections. All of them together should keep at most limit bytes, and one of them is
// never to blame while it keeps at most fair bytes or its equal part of limit, whichever is less.
func New(limit, fair int64) *Account { return &Account{limit: limit, fair: fair} }

// Part returns an account with a limit of its own, whose charges count in a, too.
func (a *Account) Part(limit, fair int64) *Account {
	return &Account{parent: a, limit: limit, fair: fair}
}

// Open returns the account of one connection. Close releases it.
func (a *Account) Open() *Account {
	if a == nil {
		return nil
	}
	for up := a; up != nil; up = up.parent {
		up.open.Add(1)
	}
	return &Account{parent: a}
}

// Charge adds n bytes, or takes -n of them back. It reports whether the connection may stay: whether no account above it is
// beyond its limit, or the connection keeps no more than its fair part. The bytes are charged in either case.
func (a *Account) Charge(n int64) bool {
	if a == nil {
		return true
	}
	own, fits := a.held.Add(n), true
	for up := a.parent; up != nil; up = up.parent {
		if up.held.Add(n) > up.limit && own > up.share() {
			fits = false
		}
	}
	return fits
}

// share is what one connection may keep whatever the others do. It shrinks as others come, and nobody is cut for what it kept before: n connections that
// come one after the other and fill their shares keep limit * (1/1 + ... + 1/n) together, which is less than 8 times the limit for 1,024.
func (a *Account) share() int64 { return min(a.fair, a.limit/max(a.open.Load(), 1)) }

// Spare reports whether n more bytes would leave at least half of every limit free. Memory that only makes things faster is
// kept if so: it is never the reason why a client is refused.
func (a *Account) Spare(n int64) bool {
	if a == nil {
		return true
	}
	for up := a.parent; up != nil; up = up.parent {
		if up.held.Load()+n > up.limit/2 {
			return false
		}
	}
	return true
}

// Held returns the bytes that are charged.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	return a.held.Load()
}

// Close releases what a connection is charged, and the connection. Nothing may be charged after it. Closing twice is
// closing once.
func (a *Account) Close() {
	if a == nil || a.closed.Swap(true) {
		return
	}
	n := a.held.Swap(0)
	for up := a.parent; up != nil; up = up.parent {
		up.held.Add(-n)
		up.open.Add(-1)
	}
}
