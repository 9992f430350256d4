package mirror

import (
	"fmt"

	"google.golang.org/grpc/mem"
)

// frame is a message as it is on the wire. What is in it that this program does not know goes through all the same.
type frame struct{ data []byte }

// codec moves frames. It has the name of the codec that both services speak.
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
