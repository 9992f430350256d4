// Package keyward holds the tests of the whole repository's shape.
package keyward

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/keyward/keyward/"

// layers reads the table of packages in ARCHITECTURE.md: what each folder may import from this module. "all" allows every import, and
// names are folders, with or without "internal/".
func layers(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, m := range packageRow.FindAllStringSubmatch(string(text), -1) {
		allowed := []string{}
		for _, name := range strings.Fields(strings.ReplaceAll(m[2], "-", "")) {
			if !isFolder(name) && isFolder("internal/"+name) {
				name = "internal/" + name
			}
			if name != "all" && !isFolder(name) {
				t.Errorf("ARCHITECTURE.md: %s may import %s, which is not a folder", m[1], name)
			}
			allowed = append(allowed, name)
		}
		if !isFolder(m[1]) {
			t.Errorf("ARCHITECTURE.md: %s is not a folder", m[1])
		}
		rows[m[1]] = allowed
	}
	return rows
}

// packageRow is a row of that table: | `folder` | sentence | imports |
var packageRow = regexp.MustCompile("(?m)^\\| `([a-z0-9/]+)` \\|[^|]*\\| ([a-z0-9/ -]+) \\|$")

func isFolder(name string) bool {
	d, err := os.Stat(name)
	return err == nil && d.IsDir()
}

// pure packages have no clock, no I/O, no goroutines and no global randomness; these imports would bring them in.
var pure = []string{"internal/limit", "internal/policy", "internal/protocol", "internal/suggest", "ring", "internal/ringcheck", "hotkey", "internal/lease", "internal/quota", "internal/sublease", "handoff", "owner", "owner/internal/counter", "owner/internal/fair", "owner/internal/lending", "owner/internal/replica", "owner/internal/writeback", "internal/counterwire", "internal/config", "internal/membership", "internal/ops/translate", "internal/wire"}

var impure = []string{"context", "net", "net/http", "os", "io/fs", "math/rand", "math/rand/v2", "crypto/rand", "log", "log/slog", "os/exec", "syscall"}

var clocks = []string{"Now", "Since", "Until", "After", "AfterFunc", "Sleep", "NewTimer", "NewTicker", "Tick"}

// sources parses every package's files, tests left out, by folder.
func sources(t *testing.T) (map[string][]*ast.File, *token.FileSet) {
	t.Helper()
	fset, files := token.NewFileSet(), map[string][]*ast.File{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || isModule(path)) || d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err == nil {
			dir := filepath.ToSlash(filepath.Dir(path))
			files[dir] = append(files[dir], f)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files, fset
}

// isModule reports whether a folder is a module of its own (tools, bench).
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func TestImports(t *testing.T) {
	files, fset := sources(t)
	rows := layers(t)
	for dir := range rows {
		if files[dir] == nil {
			t.Errorf("ARCHITECTURE.md: %s holds no package", dir)
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		allowed, ok := rows[dir]
		if !ok {
			t.Errorf("package %s is not in the table of ARCHITECTURE.md", dir)
			continue
		}
		for _, f := range files[dir] {
			for _, imp := range f.Imports {
				path, _ := strconv.Unquote(imp.Path.Value)
				ours, found := strings.CutPrefix(path, module)
				if found && !slices.Contains(allowed, ours) && !slices.Contains(allowed, "all") {
					t.Errorf("%s: %s may not import %s", fset.Position(imp.Pos()), dir, ours)
				}
				if slices.Contains(pure, dir) && slices.Contains(impure, path) {
					t.Errorf("%s: %s is pure and may not import %s", fset.Position(imp.Pos()), dir, path)
				}
				if strings.HasPrefix(path, "github.com/hashicorp/memberlist") && dir != "internal/cluster" {
					t.Errorf("%s: only cluster imports memberlist", fset.Position(imp.Pos()))
				}
			}
		}
	}
}

func TestPureCoreHasNoClockAndNoGoroutine(t *testing.T) {
	files, fset := sources(t)
	for _, dir := range pure {
		for _, f := range files[dir] {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s: %s starts a goroutine", fset.Position(n.Pos()), dir)
				case *ast.SelectorExpr:
					if x, ok := n.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains(clocks, n.Sel.Name) {
						t.Errorf("%s: %s reads the clock", fset.Position(n.Pos()), dir)
					}
				}
				return true
			})
		}
	}
}

func TestEveryPackageSaysOnceWhatItIs(t *testing.T) {
	files, _ := sources(t)
	for _, dir := range slices.Sorted(maps.Keys(files)) {
		docs := 0
		for _, f := range files[dir] {
			if f.Doc != nil {
				docs++
			}
		}
		if docs != 1 {
			t.Errorf("package %s has %d package comments, not one", dir, docs)
		}
	}
}

// TestFilesWithoutRaceDetector holds the convention for tests that are not run under the race detector. They stand in files
// *_norace_test.go that a build with -race leaves out. Either they are searches and measurements of one goroutine, in which the
// detector finds nothing and which it slows down five times; or they count allocations, of which the detector makes its own.
func TestFilesWithoutRaceDetector(t *testing.T) {
	found := 0
	for _, path := range testFiles(t) {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		named := strings.HasSuffix(path, "_norace_test.go")
		if skipped := withoutRace(f); named != skipped && (named || hasTests(f)) {
			t.Errorf("%s: either the name ends in _norace_test.go and the first line is %s, or neither", path, noRace)
		}
		if !named {
			continue
		}
		found++
		if filepath.Base(path) == "alloc_norace_test.go" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if starts(n) {
				t.Errorf("%s: a goroutine, which the race detector should see", fset.Position(n.Pos()))
			}
			return true
		})
	}
	if found == 0 {
		t.Error("no such file")
	}
}

const noRace = "//go:build !race"

// testFiles lists the files of tests of this module.
func testFiles(t *testing.T) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || isModule(path)) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func withoutRace(f *ast.File) bool {
	return len(f.Comments) > 0 && f.Comments[0].Pos() < f.Package && f.Comments[0].List[0].Text == noRace
}

func hasTests(f *ast.File) bool {
	return slices.ContainsFunc(f.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		return ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test")
	})
}

// starts reports whether n starts a goroutine by itself, by a group or by a benchmark.
func starts(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.GoStmt:
		return true
	case *ast.SelectorExpr:
		return n.Sel.Name == "Go" || n.Sel.Name == "RunParallel"
	}
	return false
}
