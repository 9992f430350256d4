package main

import (
	"embed"
	"strings"
)

// helpFiles holds the help text of each command, followed by its examples.
//
//go:embed help/*.txt
var helpFiles embed.FS

// helpText returns the text of help/NAME.txt above the examples.
func helpText(name string) string {
	text, _ := splitHelp(name)
	return text
}

// helpExamples returns the examples of help/NAME.txt.
func helpExamples(name string) string {
	_, examples := splitHelp(name)
	return examples
}

func splitHelp(name string) (text, examples string) {
	b, err := helpFiles.ReadFile("help/" + name + ".txt")
	if err != nil {
		panic(err) // the names are constants
	}
	text, examples, _ = strings.Cut(string(b), "\n== examples\n")
	return strings.TrimRight(text, "\n"), strings.TrimRight(examples, "\n")
}
