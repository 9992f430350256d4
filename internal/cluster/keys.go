package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hashicorp/memberlist"
)

// readKeys reads a gossip key file with one key per line. The first key encrypts, and all decrypt. Empty lines and
// lines that begin with # are ignored. A key has 16, 24 or 32 bytes (AES-128, -192, -256) in hex, base64 or raw form,
// tried in that order. A file that is not text and has one of these lengths is one key.
//
// To rotate a key without interruption, distribute the file to all members three times, each time waiting until all
// have read it: with the new key on the second line, with it on the first line, and without the old key.
func readKeys(file string) ([][]byte, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("gossip-key-file: %w", err)
	}
	keys, err := parseKeys(b)
	if err != nil {
		return nil, fmt.Errorf("gossip-key-file %s: %w", file, err)
	}
	return keys, nil
}

func parseKeys(b []byte) ([][]byte, error) {
	if isKeySize(len(b)) && !isText(b) {
		return [][]byte{b}, nil
	}
	var keys [][]byte
	for i, line := range bytes.Split(b, []byte("\n")) {
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key := parseKey(line)
		if key == nil {
			return nil, fmt.Errorf("line %d: not a key of 16, 24 or 32 bytes in hex, base64 or raw", i+1)
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return nil, errors.New("no key")
	}
	return keys, nil
}

func isText(b []byte) bool {
	for _, c := range b {
		if c > '~' || c < ' ' && c != '\n' && c != '\r' && c != '\t' {
			return false
		}
	}
	return true
}

func isKeySize(n int) bool { return n == 16 || n == 24 || n == 32 }

func parseKey(line []byte) []byte {
	if key, err := hex.DecodeString(string(line)); err == nil && isKeySize(len(key)) {
		return key
	}
	for _, enc := range []*base64.Encoding{
		base64.StdEncoding, base64.URLEncoding, base64.RawStdEncoding, base64.RawURLEncoding,
	} {
		if key, err := enc.DecodeString(string(line)); err == nil && isKeySize(len(key)) {
			return key
		}
	}
	if isKeySize(len(line)) {
		return bytes.Clone(line)
	}
	return nil
}

// keyring returns the keyring of o.KeyFile, or nil if it is empty.
func keyring(o *Options) (*memberlist.Keyring, error) {
	if o.KeyFile == "" {
		return nil, nil
	}
	keys, err := readKeys(o.KeyFile)
	if err != nil {
		return nil, err
	}
	return memberlist.NewKeyring(keys, keys[0])
}

// updateKeyring makes the keyring equal to the file. If the file is invalid, it changes nothing.
func updateKeyring(ring *memberlist.Keyring, file string) (changed bool, err error) {
	keys, err := readKeys(file)
	if err != nil {
		return false, err
	}
	have := ring.GetKeys()
	for _, k := range keys {
		if !contains(have, k) {
			changed = true
			if err := ring.AddKey(k); err != nil {
				return changed, err
			}
		}
	}
	if !bytes.Equal(ring.GetPrimaryKey(), keys[0]) {
		changed = true
		if err := ring.UseKey(keys[0]); err != nil {
			return changed, err
		}
	}
	for _, k := range have {
		if !contains(keys, k) {
			changed = true
			if err := ring.RemoveKey(k); err != nil {
				return changed, err
			}
		}
	}
	return changed, nil
}

func contains(keys [][]byte, key []byte) bool {
	for _, k := range keys {
		if bytes.Equal(k, key) {
			return true
		}
	}
	return false
}

// keysInterval is the time between two readings of the key file.
const keysInterval = 2 * time.Second

// watchKeys re-reads the key file until ctx ends.
func (c *Cluster) watchKeys(ctx context.Context) {
	for c.gossip.keys != nil && ctx.Err() == nil {
		sleep(ctx, keysInterval)
		c.reloadKeys()
	}
}

// reloadKeys re-reads the key file.
func (c *Cluster) reloadKeys() {
	if c.gossip.keys == nil {
		return
	}
	changed, err := updateKeyring(c.gossip.keys, c.o.KeyFile)
	switch {
	case err != nil:
		c.log.Warn("cannot re-read gossip keys; keeping the current ones", "error", err)
	case changed:
		c.log.Info("gossip keys changed", "keys", len(c.gossip.keys.GetKeys()))
	}
}
