package rls

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/keyward/keyward/internal/config"
)

// metadata returns the encoded dynamic metadata of the response: the request, and the metadata of rules that admitted
// it. It shares no memory with the rules.
func (c *Call) metadata() []byte {
	req := &c.Request
	descriptors := &structpb.ListValue{}
	for i := range req.Descriptors {
		descriptors.Values = append(descriptors.Values, structpb.NewStructValue(req.Descriptors[i].metadata()))
	}
	fields := map[string]*structpb.Value{
		"domain":      text(req.Domain),
		"descriptors": structpb.NewListValue(descriptors),
	}
	if req.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(req.HitsAddend))
	}
	passed := &structpb.Struct{Fields: map[string]*structpb.Value{}}
	for i := range c.slots {
		l := &c.slots[i]
		if l.counted() && l.match.Rule != nil && c.Response.Statuses[i].Code == OK {
			merge(passed, l.match.Rule.Metadata)
		}
	}
	if len(passed.Fields) > 0 {
		fields["metadata"] = structpb.NewStructValue(passed)
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&structpb.Struct{Fields: fields})
	if err != nil {
		return nil // only invalid UTF-8 fails, and text replaces it
	}
	return b
}

func (d *Descriptor) metadata() *structpb.Struct {
	entries := &structpb.ListValue{}
	for _, e := range d.Entries {
		entries.Values = append(entries.Values, text(e.Key+"="+e.Value))
	}
	fields := map[string]*structpb.Value{"entries": structpb.NewListValue(entries)}
	if d.Override.Set {
		fields["limit"] = text(d.Override.protoText())
	}
	if d.HasAddend {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.Addend))
	}
	return &structpb.Struct{Fields: fields}
}

// protoText returns o as protobuf's text format writes it in the metadata: "requests_per_unit:2  unit:DAY".
func (o *limitOverride) protoText() string {
	var parts []string
	if o.Limit != 0 {
		parts = append(parts, "requests_per_unit:"+strconv.FormatUint(uint64(o.Limit), 10))
	}
	switch u := config.Unit(o.Unit); u {
	case config.UnitUnknown:
	case config.Week: // has no name among the units of an override
		parts = append(parts, "unit:7")
	default:
		parts = append(parts, "unit:"+u.String())
	}
	if o.Multiplied {
		m := "unit_multiplier:{}"
		if o.Multiplier != 0 {
			m = "unit_multiplier:{value:" + strconv.FormatUint(uint64(o.Multiplier), 10) + "}"
		}
		parts = append(parts, m)
	}
	return strings.Join(parts, "  ")
}

// text returns s as a string that a Struct may hold. Invalid UTF-8 would make Envoy reject the response.
func text(s string) *structpb.Value {
	return structpb.NewStringValue(strings.ToValidUTF8(s, "\uFFFD"))
}

// merge adds the fields of src that dst lacks. The first value of a field wins, and structs are merged. Values are
// copied, since dst changes while the rules serve other calls.
func merge(dst, src *structpb.Struct) {
	for k, v := range src.GetFields() {
		old, ok := dst.Fields[k]
		if !ok {
			dst.Fields[k] = proto.CloneOf(v)
			continue
		}
		if into, from := old.GetStructValue(), v.GetStructValue(); into != nil && from != nil {
			if into.Fields == nil {
				into.Fields = map[string]*structpb.Value{}
			}
			merge(into, from)
		}
	}
}
