// Package config turns rate-limit YAML or RateLimitConfig resources into immutable rules, and finds the rule of a
// descriptor: files are parsed and their keys checked ([Check]), descriptors become a tree of hash maps a domain, and
// [Rules.Match] walks it once, yielding the rule, the digest of its counter and the hash that places it on an owner.
package config

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/internal/limit"
)

// Entry is one key and value of a descriptor that is asked about. Both are opaque bytes.
type Entry struct{ Key, Value string }

// File is one YAML file. Its name begins every fault found in it.
type File struct {
	Name    string
	Content []byte
}

// Options say how files become rules. The zero value refuses a domain that is in two files.
type Options struct {
	MergeDomains bool   // let later files add to a domain of earlier ones
	KeyPrefix    string // namespace of the counters (CACHE_KEY_PREFIX)
	Cluster      string // label of the cluster; counters of different labels never meet
	Members      int    // expected; a rule whose drift leaves one of them nothing is refused. 0 means 1
	Lenient      bool   // no rule refuses anybody (SHADOW_MODE, QUOTA_MODE)
}

// Rules are the rules of all files together. They are immutable and safe for concurrent use.
type Rules struct {
	domains map[string]*domain
	order   []*domain // as the files name them
	rules   []*RuleSpec
	prefix  string
	k0, k1  uint64 // of the counters' digests
	hash    uint64
	members int  // expected, at least 1
	lenient bool // no rule refuses anybody
}

// domain is the root of one domain's tree.
type domain struct {
	node
	name string
	head []byte // what every counter's digest of the domain begins with
}

// node is one descriptor of a file.
type node struct {
	children map[string]*node // by glued text: key_value, or the bare key
	list     []*node          // as the files list them
	wild     wildcards
	rule     *RuleSpec
	metadata *structpb.Struct // as written, the key keyward included
	level    Level
	glued    string
	file     string
	line     int // 0 when unknown
	column   int
	pattern  pattern // of glued, when it holds a *
	shadow   bool
	quota    bool
	detailed bool
}

// Level is one descriptor on the way from the domain to a rule.
type Level struct {
	Key, Value    string // as configured; Value is empty for a default
	Variable      bool   // the value differs between requests: none is configured, or there is a * in it
	Shared        bool   // share_threshold: all values of the wildcard count as its pattern
	ValueToMetric bool
}

// RuleSpec is one configured limit. It is immutable.
type RuleSpec struct {
	Index          int    // dense, from 0, in the order of the files
	Domain         string // the domain it belongs to
	FullKey        string // domain and levels joined by dots: the statistics' name when nothing of the request is in it
	Name           string // what others name to replace it
	File           string // where it was read
	Line           int    // of its descriptor; 0 when unknown
	Column         int    // in characters, from 1; 0 when unknown
	Limit          limit.Rule
	Unit           Unit // as written; UnitUnknown when Unlimited. Limit.Window is what counts
	Unlimited      bool
	Shadow         bool
	Quota          bool
	DetailedMetric bool
	ValueToMetric  bool // some level has value_to_metric
	ShareThreshold bool // some level has share_threshold
	Replaces       []string
	Levels         []Level
	Metadata       *structpb.Struct // nil when there is none; never holds the key keyward; must not be modified
	Extension      Extension

	path      []*node
	told      Unit // with times: how an answer spells the window
	times     uint32
	ownerAt   []int  // levels whose values make the owner string
	ownerText string // the owner string when ownerAt is empty
	ownerHash uint64 // of ownerText
}

// OwnerLevels are the indexes of the levels whose values, joined by |, make the owner string. With none of them all
// requests of the rule have one owner.
func (r *RuleSpec) OwnerLevels() []int { return slices.Clone(r.ownerAt) }

// OwnerString returns the owner string of all requests of the rule. It is empty if OwnerLevels is not.
func (r *RuleSpec) OwnerString() string { return r.ownerText }

// Load reads all files and then builds their rules. The error is the first fault of [Check], worded and ordered as
// envoyproxy/ratelimit does.
func Load(files []File, o Options) (*Rules, error) {
	report := Check(files, o)
	if len(report.Faults) > 0 {
		return nil, report.Faults[0]
	}
	return report.Rules, nil
}

// Rules lists every rule; Rules()[i].Index is i. The slice must not be modified.
func (r *Rules) Rules() []*RuleSpec { return r.rules }

// Domains lists the domains in the order of the files.
func (r *Rules) Domains() []string {
	names := make([]string, len(r.order))
	for i, d := range r.order {
		names[i] = d.name
	}
	return names
}

// Members returns the expected number of members, at least 1.
func (r *Rules) Members() int { return r.members }

// Empty says that no domain is configured.
func (r *Rules) Empty() bool { return len(r.order) == 0 }

// Hash is the version of the rules: a digest of what they mean. Equal files give equal hashes on every member, and so
// do files that differ in spelling or in an order that changes nothing.
func (r *Rules) Hash() uint64 { return r.hash }

func newRules(o Options) *Rules {
	// The label keys the digest so that counters of two clusters can never be taken for each other's. It is no
	// secret and must not rotate: all counts would begin anew.
	key := sha256.Sum256([]byte("keyward/1" + o.Cluster))
	return &Rules{
		domains: map[string]*domain{},
		members: max(1, o.Members), lenient: o.Lenient,
		prefix: o.KeyPrefix,
		k0:     binary.LittleEndian.Uint64(key[0:]),
		k1:     binary.LittleEndian.Uint64(key[8:]),
	}
}

// domain finds or makes the domain called name.
func (r *Rules) domain(name string) *domain {
	if d := r.domains[name]; d != nil {
		return d
	}
	d := &domain{name: name, head: appendPart(appendPart(nil, r.prefix), name)}
	r.domains[name] = d
	r.order = append(r.order, d)
	return d
}
