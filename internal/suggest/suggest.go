// Package suggest finds the intended word for a misspelled one.
package suggest

// Nearest returns the word that is most similar to a misspelled one. It returns the empty string if no word is similar
// enough, or if the word is spelled correctly.
func Nearest(word string, words []string) string {
	best, least := "", (len(word)+1)/3+1
	for _, w := range words {
		if d := Distance(word, w); d < least {
			best, least = w, d
		}
	}
	if best == word {
		return ""
	}
	return best
}

// Distance returns the Levenshtein distance: how many bytes must be inserted, deleted or replaced to turn a into b.
func Distance(a, b string) int {
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
