package quota

// wish returns the hits that a lease of the line should have for the next seconds. While there is room, a line whose load
// pauses has enough for it until the next report.
func (a *allotment) wish(now int64, l *line, seconds float64) float64 {
	need := l.demand(now, seconds)
	if !a.roomy || l.stream.stalled(now) || !l.idle() && !l.rate.known {
		return need
	}
	if l.quiet == 0 && !l.back && l.rate.perSecond > steadyAbove*l.peak {
		return need
	}
	back := rate{perSecond: l.peak}
	if l.quiet > 0 {
		seconds = min(seconds, pauseLease.Seconds())
	}
	return max(need, 1.1*back.need(seconds, 2))
}

// addPauses adds to the needs what loads that pause may need when they come back, at most budget hits. It returns how many.
func (a *allotment) addPauses(now int64, seconds, budget float64) (added float64) {
	if !a.roomy {
		return 0
	}
	for i, l := range a.lines {
		added += max(0, a.wish(now, l, seconds)-a.needs[i])
	}
	if added <= 0 || budget <= 0 {
		return 0
	}
	part := min(1, budget/added)
	for i, l := range a.lines {
		a.needs[i] += part * max(0, a.wish(now, l, seconds)-a.needs[i])
	}
	return part * added
}
