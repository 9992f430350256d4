package lease

// Have returns the hits granted in the current window and not returned.
func (h *Holding) Have() uint64 { return h.have }

// Window returns the window of Have and Left, as in the grant, or 0 if there is none.
func (h *Holding) Window() int64 { return h.window }

// Expires returns the end of the balance, in Unix nanoseconds.
func (h *Holding) Expires() int64 { return h.expiresAt }

// Demand returns the offered hits per second, including refused ones.
func (h *Holding) Demand(now int64) (perSecond float64) { return h.demand.Rate(now) }
