package cluster

// Prepared says whether every live member that counts is ready for the rules of that version, or goes by them already.
// Members on their way out are not waited for.
func (v *View) Prepared(version uint64) bool {
	for i := range v.Members {
		m := &v.Members[i]
		if m.Role == RoleMember && m.State != Leaving && m.Prepared != version && m.InForce != version {
			return false
		}
	}
	return true
}

// RulesDiffer is the number of members that answer by other rules than self.
func (v *View) RulesDiffer() int {
	me, n := v.SelfMember(), 0
	for i := range v.Members {
		if m := &v.Members[i]; m.Role == RoleMember && me.Role == RoleMember && m.InForce != me.InForce {
			n++
		}
	}
	return n
}
