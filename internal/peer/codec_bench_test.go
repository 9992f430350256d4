package peer

import (
	"testing"
	"time"

	"github.com/keyward/keyward/internal/counterwire"
	"github.com/keyward/keyward/internal/lease"
	"github.com/keyward/keyward/internal/limit"
	"github.com/keyward/keyward/internal/protocol"
	"github.com/keyward/keyward/internal/wire"
	"github.com/keyward/keyward/owner"
)

func BenchmarkCodec(b *testing.B) {
	q := owner.Request{
		Key: owner.Key{1, 2}, RingPos: 3, Hits: 4, Rule: limit.Rule{Window: time.Second, Limit: 5, Burst: 6,
			Algorithm: limit.TokenBucket}, Strict: true,
	}
	g := requestGroup{id: 7, sent: 9, ttl: time.Millisecond, count: 1}
	reqs, index := []owner.Request{q}, []uint16{0}
	buf := make([]byte, 0, 4096)
	b.Run("request/append", func(b *testing.B) {
		for b.Loop() {
			buf = appendRequests(buf[:0], g, reqs, index)
		}
	})
	request := appendRequests(nil, g, reqs, index)
	b.Run("request/parse", func(b *testing.B) {
		for b.Loop() {
			if benchParseRequest(request, &q) != nil {
				b.Fatal()
			}
		}
	})
	results := []owner.Result{{Kind: owner.Decided, Path: owner.Forwarded}}
	b.Run("reply/append", func(b *testing.B) {
		for b.Loop() {
			buf = appendReply(buf[:0], 7, results)
		}
	})
	reply := appendReply(nil, 7, results)
	b.Run("reply/parse", func(b *testing.B) {
		for b.Loop() {
			if benchParseReply(reply, &results[0]) != nil {
				b.Fatal()
			}
		}
	})
	m := sampleMsg(protocol.Replica)
	var writers counterwire.Writers
	b.Run("message/append", func(b *testing.B) {
		for b.Loop() {
			buf, _ = appendMsg(buf[:0], &m, &writers)
		}
	})
	var messages msgReader
	message, _ := appendMsg(nil, &m, &writers)
	b.Run("message/parse", func(b *testing.B) {
		for b.Loop() {
			if _, err := messages.parse(protocol.Replica, message[frameHead:]); err != nil {
				b.Fatal(err)
			}
		}
	})
	batch := sampleLease(lease.Lend)
	b.Run("lease/append", func(b *testing.B) {
		for b.Loop() {
			buf, _ = appendLease(buf[:0], &batch, 1, &writers)
		}
	})
	var leases leaseReader
	lent, _ := appendLease(nil, &batch, 1, &writers)
	b.Run("lease/parse", func(b *testing.B) {
		for b.Loop() {
			if _, _, err := leases.parse(lease.Lend, lent[frameHead:]); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func benchParseRequest(b []byte, q *owner.Request) error {
	_, payload, _, _, err := nextFrame(b)
	if err != nil {
		return err
	}
	records := wire.NewReader(payload)
	if _, err := parseRequestHead(&records); err != nil {
		return err
	}
	_, err = parseRequest(nextRecord(&records), q)
	return err
}

func benchParseReply(b []byte, a *owner.Result) error {
	_, payload, _, _, err := nextFrame(b)
	if err != nil {
		return err
	}
	records := wire.NewReader(payload)
	if _, err := parseReplyHead(&records); err != nil {
		return err
	}
	return parseResult(nextRecord(&records), a)
}
