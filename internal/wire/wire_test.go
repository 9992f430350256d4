package wire_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/keyward/keyward/internal/wire"
)

// encode appends one value of each type.
func encode() []byte {
	var w wire.Writer
	w = w.U8(1).U16(0x0203).U32(0x04050607).U64(math.MaxUint64).I64(-2)
	return w.Uvarint(300).Uvarint(math.MaxUint64).Varint(-300).String("name rest")
}

// decode reads what encode appended.
func decode(r *wire.Reader) (values []any) {
	values = append(values, r.U8(), r.U16(), r.U32(), r.U64(), r.I64(), r.Uvarint(), r.Uvarint(), r.Varint())
	record := r.Record(4)
	return append(values, record.String(4), string(r.Rest()))
}

func TestRoundTrip(t *testing.T) {
	want := []any{byte(1), uint16(0x0203), uint32(0x04050607), uint64(math.MaxUint64), int64(-2), uint64(300),
		uint64(math.MaxUint64), int64(-300), "name", " rest"}
	r := wire.NewReader(encode())
	for i, v := range decode(&r) {
		if v != want[i] {
			t.Errorf("value %d is %v, want %v", i, v, want[i])
		}
	}
	if r.Err() != nil || r.Len() != 0 {
		t.Errorf("%v, %d bytes left", r.Err(), r.Len())
	}
}

func TestVarints(t *testing.T) {
	for shift := range 64 {
		for _, v := range []uint64{1<<shift - 1, 1 << shift, 1<<shift + 1, math.MaxUint64 >> shift} {
			r := wire.NewReader(wire.Writer{}.Uvarint(v).Varint(int64(v)))
			if got, signed := r.Uvarint(), r.Varint(); got != v || signed != int64(v) || r.Err() != nil ||
				r.Len() != 0 {
				t.Errorf("%d became %d and %d, %v", v, got, signed, r.Err())
			}
		}
	}
	for _, b := range []string{"", "\x80", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02",
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x81\x00"} {
		r := wire.NewReader([]byte(b))
		if v := r.Uvarint(); v != 0 || r.Err() == nil {
			t.Errorf("% x: read as %d", b, v)
		}
	}
}

func TestEndLen32(t *testing.T) {
	w := wire.Writer("before")
	at := len(w)
	w = w.U32(0).String("record")
	w.EndLen32(at)
	r := wire.NewReader(w[at:])
	if got := r.String(int(r.U32())); got != "record" || r.Err() != nil || r.Len() != 0 {
		t.Errorf("%q, %v, %d bytes left", got, r.Err(), r.Len())
	}
}

func TestTruncated(t *testing.T) {
	for n := range len(encode()) - len(" rest") {
		r := wire.NewReader(encode()[:n])
		decode(&r)
		if !errors.Is(r.Err(), wire.ErrMalformed) || r.Len() != 0 {
			t.Errorf("%d bytes: %v, %d bytes left", n, r.Err(), r.Len())
		}
	}
}

func TestErrorsAreSticky(t *testing.T) {
	for name, fail := range map[string]func(*wire.Reader){
		"Fail":            (*wire.Reader).Fail,
		"bytes":           func(r *wire.Reader) { r.Bytes(12) },
		"negative":        func(r *wire.Reader) { r.Bytes(-1) },
		"record":          func(r *wire.Reader) { r.Record(12) },
		"negative record": func(r *wire.Reader) { r.Record(-1) },
		"number":          func(r *wire.Reader) { r.Bytes(4); r.U64() },
		"varint":          func(r *wire.Reader) { r.Uvarint() },
	} {
		t.Run(name, func(t *testing.T) {
			r := wire.NewReader(bytes.Repeat([]byte{0xff}, 11))
			fail(&r)
			record := r.Record(0)
			for _, v := range []uint64{uint64(r.U8()), uint64(r.U16()), uint64(r.U32()), r.U64(), r.Uvarint(),
				uint64(len(r.Rest())), uint64(r.Len()), record.U64()} {
				if v != 0 {
					t.Errorf("read %d after an error", v)
				}
			}
			if r.Err() == nil || record.Err() == nil {
				t.Errorf("errors %v and %v", r.Err(), record.Err())
			}
		})
	}
}

func TestRecordErrorsStayInTheRecord(t *testing.T) {
	r := wire.NewReader([]byte{1, 2, 3})
	record := r.Record(2)
	if record.U32(); record.Err() == nil {
		t.Error("a record has read bytes behind its end")
	}
	if v := r.U8(); v != 3 || r.Err() != nil {
		t.Errorf("after the record: %d, %v", v, r.Err())
	}
}

func TestNoAllocations(t *testing.T) {
	b := encode()
	var sum uint64
	if n := testing.AllocsPerRun(100, func() {
		r := wire.NewReader(b)
		sum += uint64(r.U8()) + uint64(r.U16()) + uint64(r.U32()) + r.U64() + uint64(r.I64())
		sum += r.Uvarint() + uint64(len(r.Rest()))
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	_ = sum
}

// FuzzReader reads values of types and sizes that the input chooses. No read may panic or go behind the end.
func FuzzReader(f *testing.F) {
	f.Add(encode(), []byte{0, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Fuzz(func(t *testing.T, b, ops []byte) {
		r := wire.NewReader(b)
		for _, op := range ops {
			before := r.Len()
			switch op % 8 {
			case 0:
				r.U8()
			case 1:
				r.U16()
			case 2:
				r.U32()
			case 3:
				r.U64()
			case 4:
				r.Uvarint()
			case 5:
				r.Varint()
			case 6:
				r.Bytes(int(int8(op)))
			case 7:
				r = r.Record(int(op >> 3))
			}
			if r.Len() > before || r.Err() != nil && r.Len() != 0 {
				t.Fatalf("op %d: %d bytes left after %d, %v", op%8, r.Len(), before, r.Err())
			}
		}
	})
}
