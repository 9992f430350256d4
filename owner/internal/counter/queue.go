package counter

import "slices"

// queueChunk is the number of values by which a queue grows. A chunk is allocated under the shard's lock, so it is small:
// 4 KiB.
const queueChunk = 256

// Queue is a first-in, first-out queue of keys, or of values with a key. Flags of a key's Unreplicated and Unwritten keep
// the key from being in it twice.
type Queue[T any] struct {
	chunks [][]T // as many as it needs, and at most one more
	head   int   // the first value, in the first chunk
	n      int
}

// Len returns the number of values.
func (q *Queue[T]) Len() int { return q.n }

// Push adds v at the end.
func (q *Queue[T]) Push(v T) {
	end := q.head + q.n
	if end == len(q.chunks)*queueChunk {
		q.chunks = append(q.chunks, make([]T, queueChunk))
	}
	q.chunks[end/queueChunk][end%queueChunk] = v
	q.n++
}

// First returns the first value, which must exist.
func (q *Queue[T]) First() T { return q.chunks[0][q.head] }

// Pop removes the first value, which must exist, and returns it.
func (q *Queue[T]) Pop() T {
	first := q.chunks[0]
	v := first[q.head]
	q.head++
	q.n--
	if q.head == queueChunk {
		q.head, q.chunks = 0, slices.Delete(q.chunks, 0, 1)
		if q.n > (len(q.chunks)-1)*queueChunk {
			q.chunks = append(q.chunks, first) // used again, so that a steady queue does not allocate
		}
	}
	return v
}
