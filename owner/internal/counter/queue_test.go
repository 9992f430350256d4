package counter

import "testing"

func TestQueueIsFirstInFirstOut(t *testing.T) {
	q, next := Queue[Key]{}, uint64(0)
	for i := range uint64(10 * queueChunk) {
		if q.Push(Key{i}); i%3 != 0 {
			continue
		}
		if k := q.Pop(); k[0] != next {
			t.Fatalf("%d before %d", k[0], next)
		}
		next++
	}
	for ; q.Len() > 0; next++ {
		if k := q.Pop(); k[0] != next {
			t.Fatalf("%d before %d", k[0], next)
		}
	}
	if next != 10*queueChunk {
		t.Errorf("%d keys came back", next)
	}
}
