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
	Replaced = "replaced" // never came into force: something newer was read, or the old content again
)

// Version is one version of the rules, as this member saw it.
type Version struct {
	Hash   uint64
	State  string
	Source string    // where it came from
	Detail string    // which directory or server
	Reason string    // why it came into force: first, agreed or timeout
	Loaded time.Time // when it was read
	Since  time.Time // when it came into force; zero if it has not
	Until  time.Time // when it was followed by another
}

// kept is how many versions are listed.
const kept = 10

// history lists versions, oldest first. The one in force and the one prepared are always among them.
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
