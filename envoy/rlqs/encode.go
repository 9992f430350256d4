package rlqs

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// fillInterval is the time in seconds after which a bucket gets its next token. Nobody waits that long: the TTL is
// shorter.
const fillInterval = 10_000_000

// Numbers of fields: envoy.service.rate_limit_quota.v3, envoy.type.v3.
const (
	responseAction = 1 // RateLimitQuotaResponse
	actionID       = 1 // BucketAction
	actionAssign   = 2
	actionAbandon  = 3
	assignTTL      = 2 // QuotaAssignmentAction
	assignStrategy = 3
	strategyRule   = 1 // RateLimitStrategy
	strategyBucket = 3
	bucketMax      = 1 // TokenBucket
	bucketPerFill  = 2
	bucketInterval = 3
	allowAll       = 0 // RateLimitStrategy.BlanketRule
	denyAll        = 1
)

// quotaResponse is an encoded envoy.service.rate_limit_quota.v3.RateLimitQuotaResponse.
type quotaResponse []byte

// Append appends the message.
func (r quotaResponse) Append(b []byte) []byte { return append(b, r...) }

// add adds an assignment of the bucket with this encoded id.
func (r quotaResponse) add(id []byte, a Assignment) quotaResponse {
	ttl := max(a.TTL/time.Second, 1)
	switch {
	case a.Kind == AssignAbandon:
		return r.action(id, actionAbandon, nil)
	case a.Kind == AssignAllow:
		return r.assign(id, ttl, blanket(allowAll))
	case a.Kind == AssignPair && a.Tokens > 0:
		return r.assign(id, ttl, blanket(denyAll)).assign(id, ttl, tokenBucket(a.Tokens))
	case a.Kind == AssignSame && a.Tokens > 0:
		return r.assign(id, ttl, tokenBucket(a.Tokens))
	}
	return r.assign(id, ttl, blanket(denyAll))
}

func (r quotaResponse) assign(id []byte, seconds time.Duration, strategy []byte) quotaResponse {
	var b []byte
	b = appendField(b, assignTTL, appendDuration(nil, uint64(seconds)))
	b = appendField(b, assignStrategy, strategy)
	return r.action(id, actionAssign, b)
}

func (r quotaResponse) action(id []byte, kind protowire.Number, content []byte) quotaResponse {
	var b []byte
	b = appendField(b, actionID, id)
	b = appendField(b, kind, content)
	return appendField(r, responseAction, b)
}

func blanket(rule uint64) []byte { return appendNumber(nil, strategyRule, rule) }

func tokenBucket(tokens uint32) []byte {
	b := appendNumber(nil, bucketMax, uint64(tokens))
	b = appendField(b, bucketPerFill, appendNumber(nil, 1, 1))
	b = appendField(b, bucketInterval, appendDuration(nil, fillInterval))
	return appendField(nil, strategyBucket, b)
}

// appendDuration appends a google.protobuf.Duration.
func appendDuration(b []byte, seconds uint64) []byte { return appendNumber(b, 1, seconds) }

func appendNumber(b []byte, field protowire.Number, n uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), n)
}

func appendField(b []byte, field protowire.Number, content []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, field, protowire.BytesType), content)
}
