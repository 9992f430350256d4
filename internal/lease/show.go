package lease

// Have is what was granted of the present window and not given back.
func (h *Holding) Have() uint64 { return h.have }

// Window is what Have and Left are of, as the grantor named it; 0: of none.
func (h *Holding) Window() int64 { return h.window }

// Expires is when the balance ends, in Unix nanoseconds.
func (h *Holding) Expires() int64 { return h.expiresAt }

// Demand is the hits a second that are offered, denials included.
func (h *Holding) Demand(now int64) (perSecond float64) { return h.demand.rate(now) }
