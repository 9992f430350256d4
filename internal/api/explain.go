package api

// The verdicts of an Explanation: what happens to the next hit.
const (
	VerdictOK        = "ok"         // it is within the limit
	VerdictOver      = "over_limit" // it is refused
	VerdictShadow    = "shadow"     // it is over the limit and admitted: shadow or quota mode
	VerdictUnlimited = "unlimited"  // a rule exempts it
	VerdictNoRule    = "no_rule"    // no rule matches it
	VerdictLimited   = "limited"    // a rule limits it, and no member was asked for the count
)

// Explanation is the answer of GET /v1/explain: which rule and which member decide about a descriptor, and why.
type Explanation struct {
	Domain      string            `json:"domain"`
	Descriptor  KeyDescriptor     `json:"descriptor"`
	Matched     bool              `json:"matched"`      // a rule matches, even if only to exempt the descriptor
	Rule        *ExplainRule      `json:"rule"`         // null if no rule matches
	OwnerString string            `json:"owner_string"` // the key's x-keyward-key header
	Position    string            `json:"owner_position,omitempty"`
	Digest      string            `json:"digest,omitempty"` // of the key, as in audit records and /v1/hotkeys
	Owner       string            `json:"owner"`            // the member that counts the key; empty without a rule, a ring or an owner
	Successor   string            `json:"heir"`             // the member that would count it if the owner failed; empty in a cluster of one
	Counter     *CounterStatus    `json:"counter"`
	Verdict     string            `json:"verdict"`
	Why         string            `json:"why"`
	Headers     map[string]string `json:"headers,omitempty"` // that Envoy adds to the response, where its filter is configured to
	Steps       []ExplainStep     `json:"steps,omitempty"`   // how the rules were searched
}

// ExplainRule is the rule that a descriptor matches.
type ExplainRule struct {
	Path      []string `json:"path"` // the domain, then one descriptor for each level, as in the file
	Name      string   `json:"name,omitempty"`
	Limit     uint32   `json:"limit"`
	Unit      string   `json:"unit,omitempty"`
	Window    string   `json:"window,omitempty"` // as a Go duration
	Algorithm string   `json:"algorithm,omitempty"`
	Mechanism string   `json:"mechanism,omitempty"`
	Degraded  string   `json:"degraded,omitempty"`
	Partition string   `json:"partition,omitempty"` // the rule's own policy
	Fair      string   `json:"fair,omitempty"`      // the entry that names the tenants, with their weights
	Holds     string   `json:"holds,omitempty"`     // the settings of holds, as in the file
	Burst     uint32   `json:"burst,omitempty"`
	Shadow    bool     `json:"shadow"`
	Quota     bool     `json:"quota"`
	Unlimited bool     `json:"unlimited"`
	File      string   `json:"file"`
	Line      int      `json:"line"`
}

// ExplainStep is the search for one entry of the descriptor.
type ExplainStep struct {
	Entry  KeyValue       `json:"entry"`
	Taken  *ExplainTried  `json:"taken"` // null if nothing matches: the search ends here
	Passed []ExplainTried `json:"passed,omitempty"`
	More   int            `json:"more,omitempty"` // number of other descriptors on this level that are not listed
}

// ExplainTried is a descriptor of the rule files, and why it matched an entry or did not.
type ExplainTried struct {
	Descriptor string `json:"descriptor"`
	File       string `json:"file"`
	Line       int    `json:"line"`
	Why        string `json:"why"`
	Rule       bool   `json:"rule"` // it has a rate_limit
}
