// Package replica replicates the charges of an owner to the successors of its keys.
//
// A Backlog queues the keys of one shard of the counters that have charges without a confirmation. The Replicator sends
// them in batches, sends a batch again that is not confirmed in time, and records which successors lack a replica that
// another member has confirmed in their place. What is not confirmed of a counter is its counter.Unreplicated; the
// owner bounds it (U) by making requests wait.
//
// The package has no locks. The lock of the owner's shard guards the Backlog and its counters. The lock under which the
// owner processes messages (serial in owner.Node) guards the Replicator. A method with a *Backlog needs both.
package replica
