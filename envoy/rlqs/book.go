// Package rlqs serves Envoy's rate limit quota service: its filter spends assignments inside Envoy and reports its usage.
//
// A [QuotaServer] is the door to the Envoys. It decodes their reports, finds the rule of each bucket id, and encodes
// assignments. It decides nothing about limits: a [QuotaBook] does. Only ids without an enforced limit are answered
// here, with ALLOW_ALL.
//
// One stream belongs to one Envoy and domain. It is served next to the rate limit service, on the same connections.
package rlqs

import (
	"time"

	"github.com/keyward/keyward/internal/config"
	"github.com/keyward/keyward/owner"
)

// QuotaBook divides limits between the streams of Envoys.
//
// Its methods are called on the goroutines of connections, those of one stream one at a time except for Closed. They
// must not block. They may call QuotaServer.Send. Calls for a stream after Closed must have no effect.
type QuotaBook interface {
	// Opened is called when the first report of a stream has arrived. Numbers of streams are never used again.
	Opened(now time.Time, stream uint64, envoy EnvoyStream)
	// Reported is called with the usage that one message reports, of buckets that have a limit or had one earlier on the
	// stream. The slice is valid until Reported returns, which may set Declined in it.
	Reported(now time.Time, stream uint64, usages []BucketUsage)
	// Acked is called when an Envoy has answered the PING behind the response with this serial: it uses all responses up
	// to it.
	Acked(now time.Time, stream, serial uint64)
	// Closed is called once for each stream that was opened, when it has ended. Usage that its Envoy has not reported may
	// be lost.
	Closed(now time.Time, stream uint64)
}

// EnvoyStream describes a stream.
type EnvoyStream struct {
	Name    string // of the Envoy, by its metadata (rls.EnvoyHeader); else Address
	Address string // of its connection, without the port of TCP
	// Identity is the name in the Envoy's certificate; "": none.
	Identity string
	Domain   string
}

// QuotaBucket is a bucket id and the rule that it fits. It is immutable.
type QuotaBucket struct {
	// Key identifies the id in its domain: equal ids have equal keys, on all streams of the domain and all members. It
	// is binary.
	Key     string
	Domain  string
	Entries []config.Entry // of the descriptor, in its order; of an id that fits no rule, in that of the names
	Fit     BucketFit
	Match   config.Match  // of the descriptor
	Request owner.Request // of its counter, without operation and hits; only if Limited
}

// Limited reports whether a limit is to be enforced. If not, Envoys admit everything.
func (b *QuotaBucket) Limited() bool { return b.Fit == FitLimited }

// AppendName appends the id for people: k=v,k2=v2.
func (b *QuotaBucket) AppendName(dst []byte) []byte {
	for i, e := range b.Entries {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = append(append(append(dst, e.Key...), '='), e.Value...)
	}
	return dst
}

// BucketFit states which rule a bucket id fits.
type BucketFit uint8

// The fits of bucket ids.
const (
	FitNone      BucketFit = iota // no rule, or the domain has none
	FitAmbiguous                  // bare names that fit several paths of the rules
	FitOwner                      // a rule with another mechanism than quota: its limit is not assigned to Envoys
	FitUnlimited                  // an unlimited rule
	FitShadow                     // a rule in shadow mode
	FitLimited                    // a rule with a limit
)

func (f BucketFit) String() string {
	return [...]string{"none", "ambiguous", "owner", "unlimited", "shadow", "limited"}[f]
}

// BucketUsage is the usage of one bucket since the report before.
type BucketUsage struct {
	Bucket  *QuotaBucket
	Allowed uint64        // requests that were admitted; at most MaxReported
	Denied  uint64        // requests that were refused; at most MaxReported
	Elapsed time.Duration // since the report before, in whole seconds; 0 in the first one of an id
	// Declined is set by QuotaBook.Reported for a bucket that it does not keep, such as one above a number. The Envoy then
	// keeps to its no_assignment_behavior, until a later report is not declined. The bucket is abandoned when it has not
	// been used for a minute.
	Declined bool
}

// MaxReported is the largest number of requests that counts of one report.
const MaxReported = 1<<32 - 1

// AssignmentKind is the content of an Assignment.
type AssignmentKind uint8

// The kinds of assignments.
const (
	// AssignPair is DENY_ALL and then a bucket of Tokens that is never refilled: exactly Tokens from now on.
	AssignPair AssignmentKind = iota + 1
	// AssignSame is the identical bucket again with another TTL: what is left of it stays. Another number of tokens
	// than that of the last AssignPair would admit too much.
	AssignSame
	AssignDeny    // DENY_ALL
	AssignAllow   // ALLOW_ALL
	AssignAbandon // the Envoy forgets the id, and its usage that it has not reported
)

// Assignment determines which requests of a bucket an Envoy admits from now on.
type Assignment struct {
	Key    string // of the bucket
	Kind   AssignmentKind
	Tokens uint32        // of AssignPair and AssignSame; 0 is like AssignDeny
	TTL    time.Duration // rounded down to seconds, but at least 1 s; not used by AssignAbandon
}
