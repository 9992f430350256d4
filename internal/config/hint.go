package config

import (
	"fmt"
	"slices"
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

func knobKeys() []string {
	var keys []string
	for _, k := range knobs() {
		keys = append(keys, k.key)
	}
	return keys
}

// hintKey is what may be meant by a key that stands where only the original's keys may; empty when nobody can tell.
func hintKey(key string) string {
	if slices.Contains(knobKeys(), key) {
		return fmt.Sprintf("'%s' is one of Keyward's own keys: write it under metadata.%s of the descriptor", key, metadataKey)
	}
	return hintWord(key, validKeys())
}

// hintWord asks whether the one of words was meant that is written much like word; empty when none is.
func hintWord(word string, words []string) string {
	if meant := Nearest(word, words); meant != "" {
		return fmt.Sprintf("did you mean '%s'?", meant)
	}
	return ""
}

// Nearest returns the one of words that is written most like word, which is none of them. It returns the empty string
// when none is near enough to be meant.
func Nearest(word string, words []string) string {
	best, least := "", (len(word)+1)/3+1
	for _, w := range words {
		if d := distance(word, w); d < least {
			best, least = w, d
		}
	}
	if best == word {
		return ""
	}
	return best
}

// distance is Levenshtein's: the bytes to insert, delete or replace that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
