package keyward

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

var (
	markdownLink = regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`)
	listItem     = regexp.MustCompile(`^\s*([*-]|\d+\.)\s+`)
	sentenceEnd  = regexp.MustCompile(`[.!?]["')]*\s[^a-z]`)
	tableRule    = regexp.MustCompile(`^\|[\s:|-]+\|$`)
	quoted       = regexp.MustCompile(`"[^"]*"`)
)

// plain returns s without links and bold type, with single spaces.
func plain(s string) string {
	s = markdownLink.ReplaceAllString(s, "$1")
	return strings.Join(strings.Fields(strings.ReplaceAll(s, "**", "")), " ")
}

// cells splits a row of a table. No cell may contain a vertical bar.
func cells(line string) []string {
	return strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
}

// sentencesOf returns the sentences of a document in Markdown, those in cells of tables included, those in code blocks and comments
// not. If the head of a column contains one of promiseWords, every row with a text in that column is a promise, called: row "FIRST CELL".
func sentencesOf(text string) (found []sentence) {
	for _, b := range blocksOf(text) {
		if b.promise {
			found = append(found, b)
			continue
		}
		for _, s := range split(plain(b.text)) {
			found = append(found, sentence{b.line, s, promiseWords.MatchString(quoted.ReplaceAllString(s, ""))})
		}
	}
	return found
}

// blocksOf returns the paragraphs, list items, headings and cells of a document, in order, and the names of the rows that are promises.
func blocksOf(text string) (blocks []sentence) {
	code, open, heads := false, false, []string(nil) // open: the next line goes on with the last block
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if !strings.HasPrefix(trimmed, "|") {
			heads = nil
		}
		switch {
		case strings.HasPrefix(trimmed, "```"):
			code, open = !code, false
		case code || trimmed == "" || strings.HasPrefix(trimmed, "<!--") || tableRule.MatchString(trimmed):
			open = false
		case strings.HasPrefix(trimmed, "|"):
			row := cells(trimmed)
			if heads == nil {
				heads = row
			} else {
				blocks = append(blocks, rowBlocks(i+1, heads, row)...)
			}
		case open && !listItem.MatchString(line) && !strings.HasPrefix(trimmed, "#"):
			blocks[len(blocks)-1].text += " " + trimmed
		default:
			blocks = append(blocks, sentence{line: i + 1, text: listItem.ReplaceAllString(line, "")})
			open = !strings.HasPrefix(trimmed, "#")
		}
	}
	return blocks
}

// rowBlocks returns the cells of a row. Its name takes the place of the first one if the head of another one makes it a promise.
func rowBlocks(line int, heads, row []string) (blocks []sentence) {
	promised := false
	for i, cell := range row {
		blocks = append(blocks, sentence{line: line, text: cell})
		promised = promised || i < len(heads) && promiseWords.MatchString(heads[i]) && strings.TrimSpace(cell) != ""
	}
	if promised {
		blocks[0] = sentence{line, `row "` + plain(row[0]) + `"`, true}
	}
	return blocks
}

// split returns the sentences of text: they end where a space and anything but a small letter follow a full stop.
func split(text string) (found []string) {
	for at := sentenceEnd.FindStringIndex(text); at != nil; at = sentenceEnd.FindStringIndex(text) {
		end := at[0] + strings.Index(text[at[0]:], " ")
		found, text = append(found, text[:end]), text[end+1:]
	}
	return append(found, text)
}

// testFolder holds the tests of one folder: for each the string literals of its file, which contain the names of subtests.
type testFolder struct {
	tests map[string]map[string]bool
	err   error
}

// testNames looks up tests in the folders below root and remembers what it has read.
type testNames struct {
	root    fs.FS
	folders map[string]testFolder
}

// check returns an error if no test is called ref: folder.TestName or folder.TestName/subtest, without a folder in the root. A subtest exists if
// its name, with spaces or underscores, is a string in the test's file.
func (n *testNames) check(ref string) error {
	folder, name, ok := strings.Cut(ref, ".")
	if !ok {
		return errors.New("not of the form folder.TestName")
	}
	name, sub, _ := strings.Cut(name, "/")
	read, ok := n.folders[folder]
	if !ok {
		read = readTests(n.root, folder)
		n.folders[folder] = read
	}
	literals, ok := read.tests[name]
	switch {
	case read.err != nil:
		return read.err
	case !ok:
		return fmt.Errorf("no test of this name in %s/*_test.go", folder)
	case sub != "" && !literals[sub] && !literals[strings.ReplaceAll(sub, "_", " ")]:
		return fmt.Errorf("no subtest %q next to %s", sub, name)
	}
	return nil
}

// readTests parses the tests of a folder.
func readTests(root fs.FS, folder string) testFolder {
	read := testFolder{tests: map[string]map[string]bool{}}
	files, err := fs.Glob(root, path.Join(folder, "*_test.go"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no file %s/*_test.go", folder)
	}
	for _, file := range files {
		text, readErr := fs.ReadFile(root, file)
		f, parseErr := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		if err = errors.Join(err, readErr, parseErr); err != nil {
			break
		}
		literals := map[string]bool{}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				read.tests[fn.Name.Name] = literals
			}
		}
		ast.Inspect(f, func(node ast.Node) bool {
			if lit, ok := node.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				s, _ := strconv.Unquote(lit.Value)
				literals[s] = true
			}
			return true
		})
	}
	read.err = err
	return read
}
