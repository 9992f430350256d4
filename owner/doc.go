// Package owner is the state machine of one member: it counts the keys that the member owns and names the owner of the
// others.
//
// Node.Decide hashes a request's key to a shard. Under the shard's lock, handoff's view determines whether this member
// owns the key, and limit decides by the key's counter, or by a sketch that overestimates if the table is full. For
// other keys the result names the member to forward the request to: there it arrives at Serve, and its result at
// Observe here. If no result arrives in time, Degrade decides.
//
// SetMembership, Tick, Flush, Step, StepLease and ClockStepped return a Ready: the messages, results and transfers that
// their caller, the driver, has to pass on. Flush sends charges to the key's successor, and FlushIn returns when it is
// due; Pull returns the messages of a transfer; messages of other members arrive at Step.
//
// Package counter stores the counters, package replica replicates charges, and package lending lends parts of the limits
// of hot keys to members that ask for them, which decide from their leases or, for approximate rules, from their own
// copies of the counter; messages about that arrive at StepLease. The three packages below owner/internal have no locks
// for these: the Node calls them under its own. Package owner reads no clock, never blocks, and starts no goroutines.
package owner
