package source

import (
	"slices"
	"time"
)

// States of a version in the list.
const (
	Prepared = "prepared" // waits for the other members
	InForce  = "in force"
	Past     = "past"     // was in force
	Replaced = "replaced" // never came into force: newer rules, or the previous rules again, were loaded
)

// Version is one version of the rules on this member.
type Version struct {
	Hash   uint64
	State  string
	Source string    // FromFiles or FromXDS
	Detail string    // the directory or server
	Reason string    // why it came into force: first, agreed or timeout
	Loaded time.Time // when it was loaded
	Since  time.Time // when it came into force; zero if it has not
	Until  time.Time // when another version replaced it
}

// kept is the number of versions in the history.
const kept = 10

// history lists versions, oldest first. It always contains the version in force and the prepared version.
type history []Version

func (h *history) prepare(v Version) {
	v.State = Prepared
	*h = append(*h, v)
	if len(*h) > kept {
		i := slices.IndexFunc(*h, func(v Version) bool { return v.State == Past || v.State == Replaced })
		*h = slices.Delete(*h, i, i+1)
	}
}

func (h history) replace(now time.Time) {
	for i := range h {
		if h[i].State == Prepared {
			h[i].State, h[i].Until = Replaced, now
		}
	}
}

func (h history) switchTo(hash uint64, why reason, now time.Time) {
	for i := range h {
		switch v := &h[i]; {
		case v.State == InForce:
			v.State, v.Until = Past, now
		case v.State == Prepared && v.Hash == hash:
			v.State, v.Since, v.Reason = InForce, now, string(why)
		}
	}
}
