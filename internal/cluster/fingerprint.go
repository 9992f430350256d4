package cluster

import (
	"crypto/sha256"
	"encoding/hex"
)

// KeyFingerprints tell gossip keys apart without telling them: the first 8 hex digits of each one's SHA-256, the one
// that encrypts first. There are none without keys. It may be called concurrently.
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
