package main

import (
	"fmt"
	"regexp"
	"strings"
)

// The names under which a release is published. README.md, the chart and docs/releasing.md have the same.
const (
	project         = "keyward"
	source          = "https://github.com/keyward/keyward"
	defaultRegistry = "ghcr.io/keyward"
	imageName       = "keyward"        // in the registry
	moduleImageName = "keyward-module" // the image with the files of Envoy's dynamic module
	description     = "A rate-limit service for Envoy that counts each key on one member, without Redis."
	license         = "Apache-2.0"
	versionVariable = "github.com/keyward/keyward/internal/app.Version"
)

// programs are the folders of cmd, and what they are called in archives and images.
var programs = []string{"coordinator", "keyward", "sidecar", "xds"}

// chartFolders are the charts, by their names in the registry.
var chartFolders = map[string]string{
	"charts/keyward":     "charts/keyward",
	"charts/keyward-lib": "charts/keyward/charts/keyward-lib",
}

var allPlatforms = []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64"}

// platform is an operating system and an architecture, as Go calls them.
type platform struct{ OS, Arch string }

func (p platform) String() string { return p.OS + "_" + p.Arch }

func parsePlatforms(list string) (all []platform, err error) {
	for item := range strings.SplitSeq(list, ",") {
		os, arch, ok := strings.Cut(item, "/")
		if !ok {
			return nil, fmt.Errorf("platform %q: want OS/ARCH", item)
		}
		all = append(all, platform{os, arch})
	}
	return all, nil
}

// tagged matches tags of releases: a semantic version with v, without build metadata, which image tags cannot contain.
var tagged = regexp.MustCompile(`^v((\d+)\.(\d+)\.\d+(-[0-9A-Za-z.-]+)?)$`)

// isImage reports whether a name in the registry is that of an image, not of a chart.
func isImage(repository string) bool { return repository == imageName || repository == moduleImageName }

// imageTags returns the tags of the image. A pre-release gets only its own two.
func imageTags(tag string) []string {
	m := tagged.FindStringSubmatch(tag)
	tags := []string{tag, m[1]}
	if m[4] == "" {
		tags = append(tags, m[2]+"."+m[3], "latest")
	}
	return tags
}
