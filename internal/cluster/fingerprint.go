package cluster

import (
	"crypto/sha256"
	"encoding/hex"
)

// KeyFingerprints returns the first 8 hex digits of the SHA-256 of each gossip key, which identify the keys without
// revealing them. The key that encrypts comes first. Without keys it returns an empty slice. It is safe for
// concurrent use.
func (c *Cluster) KeyFingerprints() []string {
	prints := []string{}
	if c.gossip == nil || c.gossip.keys == nil {
		return prints
	}
	for _, key := range c.gossip.keys.GetKeys() { // the primary key is the first
		sum := sha256.Sum256(key)
		prints = append(prints, hex.EncodeToString(sum[:4]))
	}
	return prints
}
