package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

const (
	pageFile = "docs/scale.md"
	pictures = "docs/pictures"
)

// Page holds the figures of docs/scale.md: blocks of text between markers, and pictures.
type Page struct {
	blocks   map[string]string // by name
	pictures map[string]string // SVG, by the file's name
}

// NewPage calculates everything again, and takes what was measured from m.
func NewPage(m Measured) (*Page, error) {
	if err := m.complete(); err != nil {
		return nil, err
	}
	p := &Page{blocks: map[string]string{}, pictures: map[string]string{}}
	var balances []Balance
	for _, n := range Sizes {
		b, err := BalanceOf(n)
		if err != nil {
			return nil, err
		}
		balances = append(balances, b)
	}
	p.blocks["summary"] = m.summary()
	p.blocks["ring"] = ringTable(balances)
	p.blocks["cost"] = m.ringCosts()
	p.blocks["push"] = m.pushTable()
	p.blocks["gossip"] = m.gossipTable()
	p.blocks["news"] = newsTable()
	p.blocks["mesh"] = m.meshTable()
	p.blocks["beats"] = m.beatTable()
	p.blocks["handoff"] = m.handoffTable()
	p.blocks["keys"] = m.keysTable()
	p.blocks["measured"] = m.machineLine()
	p.pictures["scale-change.svg"] = m.changePlot().File()
	p.pictures["scale-heartbeats.svg"] = m.beatPlot().File()
	p.pictures["scale-keys.svg"] = m.keysPlot().File()
	return p, nil
}

// Write puts the blocks into the page below root, and writes the pictures.
func (p *Page) Write(root string) error {
	file := filepath.Join(root, pageFile)
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	page, err := p.fill(string(text))
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte(page), 0o644); err != nil {
		return err
	}
	for name, svg := range p.pictures {
		if err := os.WriteFile(filepath.Join(root, pictures, name), []byte(svg), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Check says everything in the page and its pictures that is not what Write would write.
func (p *Page) Check(root string) error {
	text, err := os.ReadFile(filepath.Join(root, pageFile))
	if err != nil {
		return err
	}
	page, err := p.fill(string(text))
	if err != nil {
		return err
	}
	var stale []error
	if page != string(text) {
		stale = append(stale, fmt.Errorf("%s is not current: %s", pageFile, firstDifference(string(text), page)))
	}
	for name, svg := range p.pictures {
		b, err := os.ReadFile(filepath.Join(root, pictures, name))
		if err != nil || string(b) != svg {
			stale = append(stale, fmt.Errorf("%s is not current", filepath.Join(pictures, name)))
		}
	}
	return errors.Join(stale...)
}

var block = regexp.MustCompile(`(?s)<!-- begin (\w+) -->\n.*?<!-- end (\w+) -->`)

// fill replaces every block of text; each must be there once.
func (p *Page) fill(text string) (string, error) {
	var faults []error
	seen := map[string]int{}
	out := block.ReplaceAllStringFunc(text, func(old string) string {
		names := block.FindStringSubmatch(old)
		body, known := p.blocks[names[1]]
		if !known || names[1] != names[2] {
			faults = append(faults, fmt.Errorf("%s: block %s to %s is none", pageFile, names[1], names[2]))
		}
		seen[names[1]]++
		return fmt.Sprintf("<!-- begin %s -->\n%s\n<!-- end %s -->", names[1], strings.TrimSpace(body), names[1])
	})
	for name := range p.blocks {
		if seen[name] != 1 {
			faults = append(faults, fmt.Errorf("%s: block %s is there %d times", pageFile, name, seen[name]))
		}
	}
	return out, errors.Join(faults...)
}

// firstDifference shows where two texts part.
func firstDifference(is, want string) string {
	a, b := strings.Split(is, "\n"), strings.Split(want, "\n")
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, a[i], b[i])
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(a), len(b))
}
