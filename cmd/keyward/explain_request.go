package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/keyward/keyward/internal/api"
	"github.com/keyward/keyward/internal/config"
)

// nextDescriptor separates the descriptors of a call in the arguments.
const nextDescriptor = "+"

// parseDescriptors parses the entries of one or several descriptors.
func parseDescriptors(args []string) (all [][]config.Entry, err error) {
	var faults []error
	for from, i := 0, 0; i <= len(args); i++ {
		if i < len(args) && args[i] != nextDescriptor {
			continue
		}
		entries, err := parseEntries(args[from:i])
		if err == nil && len(entries) == 0 {
			err = errors.New("want KEY=VALUE before and after each +")
		}
		if err != nil {
			faults = append(faults, err)
		}
		all, from = append(all, entries), i+1
	}
	return all, errors.Join(faults...)
}

// explainedRequest explains a call with several descriptors. Fields are only ever added.
type explainedRequest struct {
	Domain      string            `json:"domain"`
	Verdict     string            `json:"verdict"`
	RefusedBy   []int             `json:"refused_by"` // indexes of Descriptors
	Why         string            `json:"why"`
	Descriptors []api.Explanation `json:"descriptors"` // in the order of the request
}

// explainRequest combines the explanations of the descriptors of a call. The call is over the limit if one of them is.
func explainRequest(domain string, all []api.Explanation) *explainedRequest {
	r := &explainedRequest{Domain: domain, Verdict: api.VerdictNoRule, Why: "No rule matches any of its descriptors.", RefusedBy: []int{}, Descriptors: all}
	named := false
	for i := range all {
		e := &all[i]
		switch {
		case e.Verdict == api.VerdictOver:
			r.RefusedBy = append(r.RefusedBy, i)
		case e.Verdict == api.VerdictLimited:
			r.Verdict, r.Why = e.Verdict, "Rules limit it; without a running member the counts are unknown."
		case e.Matched && r.Verdict == api.VerdictNoRule:
			r.Verdict, r.Why = api.VerdictOK, "No descriptor is over its limit."
		}
		named = named || e.Rule != nil && e.Rule.Name != ""
	}
	if len(r.RefusedBy) > 0 {
		var by []string
		for _, i := range r.RefusedBy {
			by = append(by, fmt.Sprintf("descriptor %d (%s)", i+1, descriptorText(&all[i])))
		}
		verb := "denies"
		if len(by) > 1 {
			verb = "deny"
		}
		r.Verdict = api.VerdictOver
		r.Why = fmt.Sprintf("%s %s it. The other descriptors are still charged, unless STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT is set.", strings.Join(by, " and "), verb)
	}
	if named {
		r.Why += " Rules that replace others by name are not considered here."
	}
	return r
}

func descriptorText(e *api.Explanation) string {
	var parts []string
	for _, x := range e.Descriptor.Entries {
		parts = append(parts, printable(x.Key+"="+x.Value))
	}
	return strings.Join(parts, " ")
}

func (r *explainedRequest) write(out io.Writer) error {
	for i := range r.Descriptors {
		e := &r.Descriptors[i]
		if _, err := fmt.Fprintf(out, "descriptor %d of %d: %s\n", i+1, len(r.Descriptors), descriptorText(e)); err != nil {
			return err
		}
		if err := writeExplain(out, e); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	_, err := fmt.Fprintf(out, "request  %s\nwhy      %s\n", r.Verdict, r.Why)
	return err
}
