package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"go.yaml.in/yaml/v3"
)

// Helm's media types: https://helm.sh/docs/topics/registries/#helm-chart-manifest
const (
	chartConfig  types.MediaType = "application/vnd.cncf.helm.config.v1+json"
	chartContent types.MediaType = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
)

// charts packages the charts as files and as OCI artifacts. `helm package` would write the time into them.
func (r *release) charts(ctx context.Context) error {
	for _, name := range sortedKeys(chartFolders) {
		if err := r.chart(ctx, name, chartFolders[name]); err != nil {
			return fmt.Errorf("%s: %w", chartFolders[name], err)
		}
	}
	return nil
}

func (r *release) chart(ctx context.Context, name, folder string) error {
	text, err := os.ReadFile(filepath.Join(r.root, folder, "Chart.yaml"))
	if err != nil {
		return err
	}
	var meta map[string]any
	if err := yaml.Unmarshal(text, &meta); err != nil {
		return err
	}
	if meta["version"] != r.Version {
		return fmt.Errorf("version is %v, the tag is %s", meta["version"], r.Tag)
	}
	content, err := r.chartTree(ctx, folder)
	if err != nil {
		return err
	}
	body, err := content.tarGz(path.Base(name)+"/", r.Time)
	if err != nil {
		return err
	}
	config, err := json.Marshal(meta)
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.files(fmt.Sprintf("%s-%s.tgz", path.Base(name), r.Version)), body, 0o644); err != nil {
		return err
	}
	img, err := r.artifact(meta, config, body)
	if err != nil {
		return err
	}
	return r.writeLayout(name, img)
}

// chartTree returns the tracked files of a chart that its .helmignore does not exclude.
func (r *release) chartTree(ctx context.Context, folder string) (tree, error) {
	list, err := r.git(ctx, "ls-files", "-z", "--", folder)
	if err != nil {
		return nil, err
	}
	ignored, err := os.ReadFile(filepath.Join(r.root, folder, ".helmignore"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	t := tree{}
	for file := range strings.SplitSeq(strings.TrimRight(list, "\x00"), "\x00") {
		name := strings.TrimPrefix(file, folder+"/")
		if !isIgnored(strings.Fields(string(ignored)), name) {
			if err := t.copyFile(name, filepath.Join(r.root, file)); err != nil {
				return nil, err
			}
		}
	}
	return t, nil
}

// isIgnored reports whether a pattern matches a part of the path. It knows the patterns that the chart uses: *.orig and
// testdata/.
func isIgnored(patterns []string, name string) bool {
	return slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool {
		return slices.ContainsFunc(patterns, func(p string) bool {
			ok, err := path.Match(strings.TrimSuffix(p, "/"), part)
			return ok && err == nil
		})
	})
}

// artifact returns the chart as `helm push` would make it, except for the time, which is that of the commit.
func (r *release) artifact(meta map[string]any, config, body []byte) (v1.Image, error) {
	content := static.NewLayer(body, chartContent)
	m := v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: describe(config, chartConfig), Layers: []v1.Descriptor{describe(body, chartContent)},
		Annotations: map[string]string{
			"org.opencontainers.image.title": fmt.Sprint(meta["name"]), "org.opencontainers.image.version": fmt.Sprint(meta["version"]),
			"org.opencontainers.image.description": fmt.Sprint(meta["description"]), "org.opencontainers.image.url": fmt.Sprint(meta["home"]),
			"org.opencontainers.image.source": source, "org.opencontainers.image.revision": r.Commit,
			"org.opencontainers.image.created": r.labels()["org.opencontainers.image.created"],
		},
	}
	manifest, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(&chartImage{config: config, manifest: manifest, content: content})
}

func describe(b []byte, mediaType types.MediaType) v1.Descriptor {
	return v1.Descriptor{MediaType: mediaType, Size: int64(len(b)), Digest: v1.Hash{Algorithm: "sha256", Hex: sum(b)}}
}

// chartImage is an OCI artifact with one layer.
type chartImage struct {
	config, manifest []byte
	content          v1.Layer
}

func (c *chartImage) RawConfigFile() ([]byte, error)      { return c.config, nil }
func (c *chartImage) RawManifest() ([]byte, error)        { return c.manifest, nil }
func (c *chartImage) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (c *chartImage) LayerByDigest(h v1.Hash) (partial.CompressedLayer, error) {
	if d, err := c.content.Digest(); err != nil || d != h {
		return nil, fmt.Errorf("the chart has no layer %s", h)
	}
	return c.content, nil
}
