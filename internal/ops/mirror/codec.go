package mirror

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a message in wire format. Unknown fields are passed through.
type frame struct{ data []byte }

// codec encodes and decodes frames. It has the name of the codec that both services use.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("marshal a %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(f.data)}, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("unmarshal a %T", v)
	}
	f.data = data.Materialize()
	return nil
}
