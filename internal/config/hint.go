package config

import (
	"fmt"
	"slices"

	"github.com/keyward/keyward/internal/suggest"
)

// validKeys returns the keys that a file may have, at any level.
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
	for _, k := range settings() {
		keys = append(keys, k.key)
	}
	return keys
}

// hintKey returns a hint for an unknown key outside metadata. It is empty if no known key is similar.
func hintKey(key string) string {
	if slices.Contains(extensionKeyNames(), key) {
		return fmt.Sprintf("'%s' is one of Keyward's own keys: write it under metadata.%s of the descriptor", key,
			metadataKey)
	}
	return hintWord(key, validKeys())
}

// hintWord suggests the word that is similar to a misspelled one. It is empty if none is.
func hintWord(word string, words []string) string {
	if meant := suggest.Nearest(word, words); meant != "" {
		return fmt.Sprintf("did you mean '%s'?", meant)
	}
	return ""
}
