// Package keywardv1 declares the messages of the gRPC service keyward.v1.Holds, with which callers make and settle holds.
package keywardv1
