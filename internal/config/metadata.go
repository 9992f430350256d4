package config

import (
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"
)

// plainMap is m with all maps in it keyed by text.
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

// newMetadata is nil when there is nothing in m.
func newMetadata(m map[string]any) (*structpb.Struct, error) {
	if len(m) == 0 {
		return nil, nil
	}
	return structpb.NewStruct(m)
}

// withoutExtension is s less our own key, which no response carries; nil when nothing is left. s is not changed.
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
