package membership

// Progress describes how far a member is with the last change of the ring. The zero value is that of a member that
// has not started.
type Progress struct {
	// CompleteRing is the fingerprint of the last ring on which the member held all of its keys and no other. It is 0
	// if there was none, or if its ownership on that ring was revoked.
	CompleteRing uint64
	// Prefetched is set when a joining member has replicas from all active members.
	Prefetched bool
	// HandedOff is set when a leaving member holds nothing that the others lack.
	HandedOff bool
	// Unconfirmed is the number of members that have not confirmed what was sent to them.
	Unconfirmed int
}
