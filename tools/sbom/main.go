// Command sbom prints the software bill of materials of Go programs in CycloneDX 1.6, from what the linker wrote into them:
// exactly the modules that are in the binary, with the hashes that go.sum vouches for.
//
//	go -C tools run ./sbom -version v1.0.0 ../bin/sidecar ../bin/xds > sbom.cdx.json
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
)

type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string      `json:"type"`
	Ref        string      `json:"bom-ref"`
	Name       string      `json:"name"`
	Version    string      `json:"version,omitempty"`
	PURL       string      `json:"purl,omitempty"`
	Hashes     []hash      `json:"hashes,omitempty"`
	Properties []property  `json:"properties,omitempty"`
	Parts      []component `json:"components,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn"`
}

func main() {
	version := flag.String("version", "dev", "version of the programs")
	flag.Parse()
	if err := run(os.Stdout, *version, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func run(w io.Writer, version string, files []string) error {
	if len(files) == 0 {
		return fmt.Errorf("name the programs")
	}
	modules := map[string]component{}
	b := bom{Format: "CycloneDX", Spec: "1.6", Version: 1}
	b.Metadata.Component = component{Type: "application", Ref: "keyward", Name: "keyward", Version: version}
	for _, file := range files {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return err
		}
		program, err := programOf(file, version, info)
		if err != nil {
			return err
		}
		b.Metadata.Component.Parts = append(b.Metadata.Component.Parts, program)
		d := dependency{Ref: program.Ref, On: []string{}}
		for _, m := range append(info.Deps, &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}) {
			c := moduleOf(m)
			modules[c.Ref] = c
			d.On = append(d.On, c.Ref)
		}
		slices.Sort(d.On)
		b.Dependencies = append(b.Dependencies, d)
	}
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		b.Components = append(b.Components, modules[ref])
	}
	out := json.NewEncoder(w)
	out.SetIndent("", "  ")
	return out.Encode(b)
}

// programOf describes one program: its hash, and the settings it was built with.
func programOf(file, version string, info *buildinfo.BuildInfo) (component, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return component{}, err
	}
	sum := sha256.Sum256(text)
	name := filepath.Base(file)
	c := component{
		Type: "application", Ref: "keyward/" + name, Name: name, Version: version,
		PURL: "pkg:golang/" + info.Path + "@" + version, Hashes: []hash{{"SHA-256", hex.EncodeToString(sum[:])}},
	}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" || s.Key == "-trimpath" {
			c.Properties = append(c.Properties, property{"go:" + s.Key, s.Value})
		}
	}
	return c, nil
}

// moduleOf describes one module, by what replaces it if anything does.
func moduleOf(m *debug.Module) component {
	if m.Replace != nil {
		m = m.Replace
	}
	purl := "pkg:golang/" + m.Path + "@" + m.Version
	c := component{Type: "library", Ref: purl, Name: m.Path, Version: m.Version, PURL: purl}
	if sum, ok := strings.CutPrefix(m.Sum, "h1:"); ok { // of the module's files, as go.sum has it
		if raw, err := base64.StdEncoding.DecodeString(sum); err == nil {
			c.Properties = []property{{"go:h1", "h1:" + base64.StdEncoding.EncodeToString(raw)}}
		}
	}
	return c
}
