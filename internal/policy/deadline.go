package policy

import "time"

// Deadline is when a request is decided without the key's owner. The two times are equal, or Alive is later.
type Deadline struct {
	Silent time.Time // if nothing has been received from the owner since the request: the rule's degraded policy decides
	Alive  time.Time // if the owner is alive but has not replied: the request is refused and not charged
}
