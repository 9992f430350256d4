package config

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// digestAll hashes a canonical form of the rules: domains by name, and in each level the exact descriptors by text,
// then the wildcards in the order of the file, which is the only order that has an effect.
func (r *Rules) digestAll() uint64 {
	b := []byte("keyward/rules/1")
	b = appendPart(b, r.prefix)
	for _, name := range slices.Sorted(maps.Keys(r.domains)) {
		b = appendPart(b, name)
		b = appendChildren(b, &r.domains[name].node)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}

func appendChildren(b []byte, parent *node) []byte {
	list := slices.Clone(parent.list)
	slices.SortStableFunc(list, func(a, b *node) int {
		switch wildA, wildB := a.pattern != nil, b.pattern != nil; {
		case wildA && wildB:
			return 0
		case wildA:
			return 1
		case wildB:
			return -1
		}
		return strings.Compare(a.glued, b.glued)
	})
	b = binary.AppendUvarint(b, uint64(len(list)))
	for _, n := range list {
		b = appendNode(b, n)
	}
	return b
}

func appendNode(b []byte, n *node) []byte {
	b = appendPart(b, n.level.Key)
	b = appendPart(b, n.level.Value)
	b = appendFlags(b, n.level.Shared, n.level.ValueToMetric, n.shadow, n.quota, n.detailed, n.rule != nil)
	b = appendStruct(b, n.metadata)
	if r := n.rule; r != nil {
		b = appendFlags(b, r.Unlimited)
		b = binary.LittleEndian.AppendUint32(b, r.Limit.Limit)
		b = binary.LittleEndian.AppendUint32(b, uint32(r.Unit))
		b = appendPart(b, r.Name)
		b = binary.AppendUvarint(b, uint64(len(r.Replaces)))
		for _, name := range r.Replaces {
			b = appendPart(b, name)
		}
	}
	return appendChildren(b, n)
}

func appendFlags(b []byte, flags ...bool) []byte {
	var bits byte
	for i, f := range flags {
		if f {
			bits |= 1 << i
		}
	}
	return append(b, bits)
}

// appendStruct appends s in the same form in every process, which protobuf does not guarantee.
func appendStruct(b []byte, s *structpb.Struct) []byte {
	fields := s.GetFields()
	b = binary.AppendUvarint(b, uint64(len(fields)))
	for _, k := range slices.Sorted(maps.Keys(fields)) {
		b = appendPart(b, k)
		b = appendValue(b, fields[k])
	}
	return b
}

func appendValue(b []byte, v *structpb.Value) []byte {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		return appendStruct(append(b, 's'), v.StructValue)
	case *structpb.Value_ListValue:
		b = binary.AppendUvarint(append(b, 'l'), uint64(len(v.ListValue.GetValues())))
		for _, e := range v.ListValue.GetValues() {
			b = appendValue(b, e)
		}
		return b
	case *structpb.Value_StringValue:
		return appendPart(append(b, 't'), v.StringValue)
	case *structpb.Value_NumberValue:
		return binary.LittleEndian.AppendUint64(append(b, 'n'), canonicalFloat(v.NumberValue))
	case *structpb.Value_BoolValue:
		return appendFlags(append(b, 'b'), v.BoolValue)
	}
	return append(b, '0')
}

// canonicalFloat returns the bits of f. All NaNs are equal.
func canonicalFloat(f float64) uint64 {
	if f != f {
		f = math.NaN()
	}
	return math.Float64bits(f)
}
