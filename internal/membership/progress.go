package membership

// Progress describes how far a member is with the last change of the ring. The zero value is that of a member that
// has not started.
type Progress struct {
	// Ring is the version of the ring that the member adopted last.
	Ring uint64
	// CompleteRing is the version of the last ring on which the member held all of its keys and no other. It is 0 if
	// there was none, if its ownership on that ring was revoked, or if it has left that ring and adopted it again.
	CompleteRing uint64
	// Prefetched is set when a joining member has replicas from all active members.
	Prefetched bool
	// HandedOff is set when a leaving member holds nothing that the others lack.
	HandedOff bool
	// Unconfirmed is the number of members that have not confirmed what was sent to them.
	Unconfirmed int
	// MissingAcks is the number of members that have not sent this one the Ack for its ring.
	MissingAcks int
}

// Complete reports whether the member holds all of its keys on Ring and no other.
func (p Progress) Complete() bool { return p.CompleteRing == p.Ring && p.Ring != 0 }
