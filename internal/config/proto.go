package config

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Fields of RateLimitDescriptor that servers send and that the generated type does not have yet.
const (
	quotaModeField = 7 // bool
	metadataField  = 8 // google.protobuf.Struct
)

// FromProto builds rules from RateLimitConfig resources, as Load does from files. In errors the name of a resource
// replaces the name of a file.
func FromProto(resources []*rlsconf.RateLimitConfig, o Options) (*Rules, error) {
	var faults []Diagnostic
	var sources []source
	for _, c := range resources {
		s := source{name: c.GetName()}
		s.root.Domain = c.GetDomain()
		var err error
		s.root.Descriptors, err = descriptorsOf(c.GetDescriptors(), 0)
		if err != nil {
			faults = append(faults, Diagnostic{File: s.name, Text: err.Error()})
			continue
		}
		sources = append(sources, s)
	}
	report := build(sources, o, faults)
	if len(report.Faults) > 0 {
		return nil, report.Faults[0]
	}
	return report.Rules, nil
}

func descriptorsOf(list []*rlsconf.RateLimitDescriptor, depth int) ([]yamlDescriptor, error) {
	if depth > maxNesting {
		return nil, fmt.Errorf("descriptors are nested deeper than %d levels", maxNesting)
	}
	all := make([]yamlDescriptor, len(list))
	for i, d := range list {
		y := &all[i]
		y.Key, y.Value = d.GetKey(), d.GetValue()
		y.ShadowMode, y.DetailedMetric = d.GetShadowMode(), d.GetDetailedMetric()
		y.RateLimit = rateLimitOf(d.GetRateLimit())
		if err := readUnknown(d, y); err != nil {
			return nil, err
		}
		var err error
		if y.Descriptors, err = descriptorsOf(d.GetDescriptors(), depth+1); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func rateLimitOf(p *rlsconf.RateLimitPolicy) *yamlRateLimit {
	if p == nil {
		return nil
	}
	y := &yamlRateLimit{
		RequestsPerUnit: p.GetRequestsPerUnit(), Unit: p.GetUnit().String(), Unlimited: p.GetUnlimited(), Name: p.GetName(),
	}
	for _, r := range p.GetReplaces() {
		y.Replaces = append(y.Replaces, yamlReplaces{r.GetName()})
	}
	return y
}

// readUnknown reads quota_mode and metadata, which the generated type does not have.
func readUnknown(d *rlsconf.RateLimitDescriptor, y *yamlDescriptor) error {
	metadata := &structpb.Struct{}
	for b := d.ProtoReflect().GetUnknown(); len(b) > 0; {
		num, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return fmt.Errorf("error parsing resource: %w", protowire.ParseError(n))
		}
		size := protowire.ConsumeFieldValue(num, typ, b[n:])
		if size < 0 {
			return fmt.Errorf("error parsing resource: %w", protowire.ParseError(size))
		}
		value := b[n : n+size]
		b = b[n+size:]
		switch {
		case num == quotaModeField && typ == protowire.VarintType:
			v, _ := protowire.ConsumeVarint(value)
			y.QuotaMode = v != 0
		case num == metadataField && typ == protowire.BytesType:
			v, _ := protowire.ConsumeBytes(value)
			if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(v, metadata); err != nil {
				return fmt.Errorf("error parsing metadata: %w", err)
			}
		}
	}
	if len(metadata.Fields) > 0 {
		y.Metadata = metadata.AsMap()
	}
	return nil
}

// ToProto returns one RateLimitConfig per domain, named after it, for an xDS server. lost names what the protocol
// cannot express: value_to_metric, share_threshold, and texts that are not UTF-8.
func (r *Rules) ToProto() (resources []*rlsconf.RateLimitConfig, lost []string) {
	w := protoWriter{}
	for _, d := range r.order {
		if !utf8.ValidString(d.name) {
			w.lose("all of", d.name)
			continue
		}
		resources = append(resources, &rlsconf.RateLimitConfig{
			Name: d.name, Domain: d.name, Descriptors: w.descriptors(d.name, d.list),
		})
	}
	return resources, w.lost
}

type protoWriter struct{ lost []string }

func (w *protoWriter) lose(what, of string) {
	w.lost = append(w.lost, fmt.Sprintf("%s '%s'", what, strings.ToValidUTF8(of, "?")))
}

func (w *protoWriter) descriptors(up string, list []*node) []*rlsconf.RateLimitDescriptor {
	var all []*rlsconf.RateLimitDescriptor
	for _, n := range list {
		full := up + "." + n.glued
		if !utf8.ValidString(n.glued) || n.rule != nil && !n.rule.validNames() {
			w.lose("all of", full)
			continue
		}
		d := &rlsconf.RateLimitDescriptor{
			Key: n.level.Key, Value: n.level.Value, ShadowMode: n.shadow, DetailedMetric: n.detailed,
			RateLimit: policyOf(n.rule), Descriptors: w.descriptors(full, n.list),
		}
		if unknown := unknownOf(n); len(unknown) > 0 {
			d.ProtoReflect().SetUnknown(unknown)
		}
		if n.level.Shared {
			w.lose("share_threshold of", full)
		}
		if n.level.ValueToMetric {
			w.lose("value_to_metric of", full)
		}
		all = append(all, d)
	}
	return all
}

// validNames reports whether the names of the rule can be sent.
func (r *RuleSpec) validNames() bool {
	return utf8.ValidString(r.Name) && !slices.ContainsFunc(r.Replaces,
		func(name string) bool { return !utf8.ValidString(name) })
}

func policyOf(r *RuleSpec) *rlsconf.RateLimitPolicy {
	if r == nil {
		return nil
	}
	p := &rlsconf.RateLimitPolicy{
		Unit: rlsconf.RateLimitUnit(r.Unit), RequestsPerUnit: r.Limit.Limit, Unlimited: r.Unlimited, Name: r.Name,
	}
	for _, name := range r.Replaces {
		p.Replaces = append(p.Replaces, &rlsconf.RateLimitReplace{Name: name})
	}
	return p
}

// unknownOf returns the wire format of the fields that the generated type does not have.
func unknownOf(n *node) []byte {
	var b []byte
	if n.quota {
		b = protowire.AppendTag(b, quotaModeField, protowire.VarintType)
		b = protowire.AppendVarint(b, 1)
	}
	if n.metadata == nil {
		return b
	}
	// Members serve equal bytes for equal rules, hence Deterministic. Marshal cannot fail: the texts are valid UTF-8,
	// which newMetadata has checked.
	metadata, err := proto.MarshalOptions{Deterministic: true}.Marshal(n.metadata)
	if err != nil {
		return b
	}
	b = protowire.AppendTag(b, metadataField, protowire.BytesType)
	return protowire.AppendBytes(b, metadata)
}
