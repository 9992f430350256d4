package config

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"
)

// plainMap returns m with strings as the keys of all nested maps.
func plainMap(m map[string]interface{}) map[string]any {
	plain := make(map[string]any, len(m))
	for k, v := range m {
		plain[k] = plainValue(v)
	}
	return plain
}

func plainValue(v any) any {
	switch v := v.(type) {
	case map[interface{}]interface{}:
		plain := make(map[string]any, len(v))
		for k, e := range v {
			plain[fmt.Sprint(k)] = plainValue(e)
		}
		return plain
	case []interface{}:
		plain := make([]any, len(v))
		for i, e := range v {
			plain[i] = plainValue(e)
		}
		return plain
	}
	return v
}

// newMetadata converts m. It returns nil if m is empty.
func newMetadata(m map[string]any) (*structpb.Struct, error) {
	if len(m) == 0 {
		return nil, nil
	}
	return structpb.NewStruct(m)
}

// withoutExtension returns s without the key keyward, which is not part of responses. It returns nil if nothing is
// left. It does not modify s.
func withoutExtension(s *structpb.Struct) *structpb.Struct {
	if _, ours := s.GetFields()[metadataKey]; !ours {
		return s
	}
	if len(s.Fields) == 1 {
		return nil
	}
	rest := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(s.Fields)-1)}
	for k, v := range s.Fields {
		if k != metadataKey {
			rest.Fields[k] = v
		}
	}
	return rest
}
