// Package config turns rate-limit YAML or RateLimitConfig resources into immutable rules, and finds the rule that
// limits a descriptor. [Load] parses files and builds a tree of hash maps for each domain. [Rules.Match] walks the tree
// once and returns the rule, the digest of its counter and the hash that determines the owner. [Rules.Trace] explains
// the result.
package config

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/internal/limit"
)

// Entry is one key and value of a descriptor. Both are opaque bytes.
type Entry struct{ Key, Value string }

// File is one YAML file. Its name appears in every diagnostic about it.
type File struct {
	Name    string
	Content []byte
}

// Options configure how files become rules. The zero value rejects a domain that is defined in two files.
type Options struct {
	MergeDomains bool   // let several files add to one domain
	KeyPrefix    string // namespace of the counters (CACHE_KEY_PREFIX)
	Cluster      string // label of the cluster; different labels never share a counter
	Members      int    // expected number of members; every one must get a part of a rule's epsilon. 0 means 1
	Lenient      bool   // no rule is enforced (SHADOW_MODE, QUOTA_MODE)
	// Defaults are keys of metadata.keyward for rules that lack them.
	Defaults Defaults
	// Federation is the federation of the members; nil if it is not known, so that only the text of rules is checked.
	Federation *FederationOptions
}

// Rules are the rules of all files. They are immutable and safe for concurrent use.
type Rules struct {
	domains map[string]*domain
	order   []*domain // in the order of the files
	rules   []*RuleSpec
	prefix  string
	k0, k1  uint64 // key of the counters' digests
	hash    uint64
	members int  // expected, at least 1
	lenient bool // no rule is enforced

	defaults   Defaults           // of metadata.keyward
	federation *FederationOptions // nil: not known
	f0, f1     uint64             // key of the digests of counters that regions share
}

// domain is the root of the tree of one domain.
type domain struct {
	node
	name string
	head []byte // prefix of the digest input of every counter in the domain
}

// node is one descriptor of a file, with the descriptors below it.
type node struct {
	children map[string]*node // by glued text: key_value, or the key alone
	list     []*node          // in the order of the files
	wild     wildcards
	rule     *RuleSpec
	metadata *structpb.Struct // as written, including the key keyward
	level    Level
	glued    string
	file     string
	line     int // 0 if unknown
	column   int
	pattern  pattern // of glued, if it contains a *
	shadow   bool
	quota    bool
	detailed bool
}

// Level is one descriptor on the path from the domain to a rule.
type Level struct {
	Key, Value    string // as configured; Value is empty for a default
	Variable      bool   // the value differs between requests: none is configured, or it contains a *
	Shared        bool   // share_threshold: all values that match the wildcard share one counter
	ValueToMetric bool
}

// RuleSpec is one configured limit. It is immutable.
type RuleSpec struct {
	Index          int    // dense, from 0, in the order of the files
	Domain         string // the domain it belongs to
	FullKey        string // domain and levels joined by dots; the statistics' name if it does not depend on the request
	Name           string // by which other rules replace it
	File           string // that contains it
	Line           int    // of its descriptor; 0 if unknown
	Column         int    // in characters, from 1; 0 if unknown
	Limit          limit.Rule
	Unit           Unit // as written; UnitUnknown if Unlimited. Limit.Window takes precedence
	Unlimited      bool
	Shadow         bool
	Quota          bool
	DetailedMetric bool
	ValueToMetric  bool // a level has value_to_metric
	ShareThreshold bool // a level has share_threshold
	SharesCounter  bool // different descriptors have one counter: share_threshold or fair
	Replaces       []string
	Levels         []Level
	Metadata       *structpb.Struct // without the key keyward; nil if empty. It must not be modified
	Extension      Extension

	path        []*node
	statedUnit  Unit // with statedTimes: how responses state the window
	statedTimes uint32
	ownerLevels []int  // indexes of the levels whose values form the owner string
	ownerText   string // the owner string if ownerLevels is empty
	ownerHash   uint64 // of ownerText
}

// OwnerLevels returns the indexes of the levels whose values, joined by |, form the owner string. If there are none,
// all requests of the rule have one owner.
func (r *RuleSpec) OwnerLevels() []int { return slices.Clone(r.ownerLevels) }

// OwnerString returns the owner string of all requests of the rule. It is empty if OwnerLevels is not.
func (r *RuleSpec) OwnerString() string { return r.ownerText }

// Load parses all files and builds their rules. It returns the first fault of [Check] as an error, in the words of
// envoyproxy/ratelimit.
func Load(files []File, o Options) (*Rules, error) {
	report := Check(files, o)
	if len(report.Faults) > 0 {
		return nil, report.Faults[0]
	}
	return report.Rules, nil
}

// Rules returns all rules; Rules()[i].Index is i. The slice must not be modified.
func (r *Rules) Rules() []*RuleSpec { return r.rules }

// Domains returns the names of the domains in the order of the files.
func (r *Rules) Domains() []string {
	names := make([]string, len(r.order))
	for i, d := range r.order {
		names[i] = d.name
	}
	return names
}

// Members returns the expected number of members, at least 1.
func (r *Rules) Members() int { return r.members }

// Empty reports whether no domain is configured.
func (r *Rules) Empty() bool { return len(r.order) == 0 }

// Hash returns the version of the rules: a digest of their meaning. Equal files have equal hashes on every member, and
// so do files that differ only in formatting or in an order that has no effect.
func (r *Rules) Hash() uint64 { return r.hash }

func newRules(o Options) *Rules {
	// The cluster label keys the digest, so that two clusters never share a counter. It is not a secret and must not
	// change: that would reset all counters.
	key := sha256.Sum256([]byte("keyward/1" + o.Cluster))
	name := o.Cluster
	if o.Federation != nil {
		name = o.Federation.Name
	}
	shared := sha256.Sum256([]byte("keyward/1/federation" + name))
	return &Rules{
		domains: map[string]*domain{},
		members: max(1, o.Members), lenient: o.Lenient,
		prefix: o.KeyPrefix,
		k0:     binary.LittleEndian.Uint64(key[0:]),
		k1:     binary.LittleEndian.Uint64(key[8:]),
		f0:     binary.LittleEndian.Uint64(shared[0:]), f1: binary.LittleEndian.Uint64(shared[8:]),
		federation: o.Federation, defaults: o.Defaults,
	}
}

// domain returns the domain with the given name, and adds it if necessary.
func (r *Rules) domain(name string) *domain {
	if d := r.domains[name]; d != nil {
		return d
	}
	d := &domain{name: name, head: appendPart(appendPart(nil, r.prefix), name)}
	r.domains[name] = d
	r.order = append(r.order, d)
	return d
}
