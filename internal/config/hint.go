package config

import (
	"fmt"
	"slices"

	"github.com/keyward/keyward/internal/suggest"
)

// validKeys are the keys that a file may have, whatever their level.
func validKeys() []string {
	var keys []string
	for _, k := range levelKeys() {
		if !slices.Contains(keys, k.key) {
			keys = append(keys, k.key)
		}
	}
	return keys
}

func extensionKeyNames() []string {
	var keys []string
	for _, k := range knobs() {
		keys = append(keys, k.key)
	}
	return keys
}

// hintKey is what may be meant by a key that stands where only the original's keys may; empty when nobody can tell.
func hintKey(key string) string {
	if slices.Contains(extensionKeyNames(), key) {
		return fmt.Sprintf("'%s' is one of Keyward's own keys: write it under metadata.%s of the descriptor", key, metadataKey)
	}
	return hintWord(key, validKeys())
}

// hintWord asks whether the one of words was meant that is written much like word; empty when none is.
func hintWord(word string, words []string) string {
	if meant := suggest.Nearest(word, words); meant != "" {
		return fmt.Sprintf("did you mean '%s'?", meant)
	}
	return ""
}
