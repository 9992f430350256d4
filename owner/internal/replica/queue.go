package replica

import (
	"slices"

	"github.com/keyward/keyward/owner/internal/counter"
)

// queueChunk is the number of keys by which a queue grows. A chunk is allocated under the shard's lock, so it is small:
// 4 KiB.
const queueChunk = 256

// queue is a first-in, first-out queue of keys. The Queued flag of a key's Unreplicated keeps the key from being in it
// twice.
type queue struct {
	chunks [][]counter.Key // as many as it needs, and at most one more
	head   int             // the first key, in the first chunk
	n      int
}

func (q *queue) len() int { return q.n }

func (q *queue) push(k counter.Key) {
	end := q.head + q.n
	if end == len(q.chunks)*queueChunk {
		q.chunks = append(q.chunks, make([]counter.Key, queueChunk))
	}
	q.chunks[end/queueChunk][end%queueChunk] = k
	q.n++
}

func (q *queue) pop() counter.Key {
	first := q.chunks[0]
	k := first[q.head]
	q.head++
	q.n--
	if q.head == queueChunk {
		q.head, q.chunks = 0, slices.Delete(q.chunks, 0, 1)
		if q.n > (len(q.chunks)-1)*queueChunk {
			q.chunks = append(q.chunks, first) // used again, so that a steady queue does not allocate
		}
	}
	return k
}
