package handoff

import (
	"reflect"
	"sync"
	"testing"
	"unsafe"

	"github.com/keyward/keyward/internal/membership"
	"github.com/keyward/keyward/ring"
)

// immutable are the types that a Machine and its clone may share.
var immutable = []reflect.Type{reflect.TypeFor[*ring.Ring](), reflect.TypeFor[*OwnershipView](),
	reflect.TypeFor[*membership.View](), reflect.TypeFor[*membership.Member]()}

// TestCloneSharesNothing fills every field of a Machine and requires that its clone is equal and shares no pointer, map
// or slice with it, apart from immutable types. Models that explore clones depend on it.
func TestCloneSharesNothing(t *testing.T) {
	m := &Machine{}
	fill(reflect.ValueOf(m).Elem())
	m.sortedPeers = nil
	for id, p := range m.peers {
		p.ID = id
		m.sortedPeers = append(m.sortedPeers, p)
	}
	c := m.clone()
	if !reflect.DeepEqual(m, c) {
		t.Errorf("the clone differs:\n%+v\n%+v", m, c)
	}
	sharedIn(t, "Machine", reflect.ValueOf(m).Elem(), reflect.ValueOf(c).Elem())
	for i, p := range c.sortedPeers {
		if c.peers[p.ID] != p {
			t.Errorf("peers and sortedPeers[%d] of the clone are different copies", i)
		}
	}
}

// fill sets v and everything below it to values that are not zero.
func fill(v reflect.Value) {
	v = reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem() // also unexported fields
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[sync.RWMutex]() {
			return
		}
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		if !isImmutable(v.Type()) {
			fill(v.Elem())
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key)
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("x")
	default:
		v.Set(reflect.ValueOf(1).Convert(v.Type()))
	}
}

func isImmutable(t reflect.Type) bool {
	for _, x := range immutable {
		if t == x {
			return true
		}
	}
	return false
}

// sharedIn reports every pointer, map and slice below path that a and b share.
func sharedIn(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Struct:
		for i := range a.NumField() {
			sharedIn(t, path+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
		}
	case reflect.Pointer, reflect.Slice, reflect.Map:
		if isImmutable(a.Type()) {
			return
		}
		if a.Pointer() == b.Pointer() {
			t.Errorf("%s is shared: copy it in Machine.clone", path)
			return
		}
		sharedBelow(t, path, a, b)
	case reflect.Chan, reflect.Func, reflect.Interface, reflect.UnsafePointer:
		t.Errorf("%s: a %s cannot be copied", path, a.Kind())
	}
}

// sharedBelow is sharedIn for what two different pointers, maps or slices contain.
func sharedBelow(t *testing.T, path string, a, b reflect.Value) {
	t.Helper()
	switch a.Kind() {
	case reflect.Pointer:
		sharedIn(t, path, a.Elem(), b.Elem())
	case reflect.Slice:
		for i := range a.Len() {
			sharedIn(t, path+"[]", a.Index(i), b.Index(i))
		}
	case reflect.Map:
		for _, k := range a.MapKeys() {
			sharedIn(t, path+"[]", a.MapIndex(k), b.MapIndex(k))
		}
	}
}
