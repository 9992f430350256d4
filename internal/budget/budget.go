// Package budget accounts for the memory that clients make a process keep.
//
// [New] makes the account of all connections, [Account.Child] that of one listener, and [Account.Open] that of one
// connection. A charge to a connection is also charged to the accounts above it.
package budget

import "sync/atomic"

// Account is a number of bytes that clients make the process keep: those of one connection, of a listener or of all
// listeners. A nil Account charges nothing and allows everything. Its methods are safe for concurrent use.
type Account struct {
	parent    *Account
	limit     int64 // 0: no limit of its own
	fairShare int64
	held      atomic.Int64
	open      atomic.Int64 // number of connections
	closed    atomic.Bool
}

// New returns an account without connections. Its connections should keep at most limit bytes together. A connection
// may always keep fair bytes or its equal part of limit, whichever is less.
func New(limit, fair int64) *Account { return &Account{limit: limit, fairShare: fair} }

// Child returns an account with its own limit. Its charges are also charged to a.
func (a *Account) Child(limit, fair int64) *Account {
	return &Account{parent: a, limit: limit, fairShare: fair}
}

// Open returns the account of a connection. Close releases it.
func (a *Account) Open() *Account {
	if a == nil {
		return nil
	}
	for up := a; up != nil; up = up.parent {
		up.open.Add(1)
	}
	return &Account{parent: a}
}

// Charge adds n bytes, which may be negative. It reports whether the connection may stay: no account above it exceeds
// its limit, or the connection keeps at most its share. The bytes are charged in either case.
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

// share returns what one connection may always keep. It shrinks as connections open, but connections are not closed
// for what they kept before. So n connections that open one after the other and fill their shares keep limit * (1/1 +
// ... + 1/n) together: less than 8 times the limit for 1,024 connections.
func (a *Account) share() int64 { return min(a.fairShare, a.limit/max(a.open.Load(), 1)) }

// HasSpare reports whether n more bytes would leave half of every limit free. Only then is memory kept just for speed,
// so that such memory never causes a refusal.
func (a *Account) HasSpare(n int64) bool {
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

// Held returns the number of bytes charged.
func (a *Account) Held() int64 {
	if a == nil {
		return 0
	}
	return a.held.Load()
}

// Close releases the connection and its charges. Nothing may be charged afterwards. Further calls do nothing.
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
