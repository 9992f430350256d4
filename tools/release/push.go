package main

import (
	"context"
	"fmt"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// push pushes images and charts with their tags, with the credentials of `docker login`, and prints their digests.
func push(ctx context.Context, o options) error {
	r, err := load(o)
	if err != nil {
		return err
	}
	if r.DryRun && o.registry == defaultRegistry {
		return fmt.Errorf("%s was made by a dry run: it is not pushed to %s", o.out, defaultRegistry)
	}
	return r.pushAll(ctx, o.registry, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
}

func (r *release) pushAll(ctx context.Context, registry string, how ...remote.Option) error {
	for _, repository := range sortedKeys(r.Digests) {
		what, err := r.stored(repository)
		if err != nil {
			return err
		}
		tags := []string{r.Version} // Helm's versions have no v
		if isImage(repository) {
			tags = imageTags(r.Tag)
		}
		for _, tag := range tags {
			ref, err := name.NewTag(registry + "/" + repository + ":" + tag)
			if err != nil {
				return err
			}
			if err := remote.Push(ref, what, how...); err != nil {
				return fmt.Errorf("%s: %w", ref, err)
			}
		}
		fmt.Printf("%s/%s@%s\n", registry, repository, r.Digests[repository])
	}
	return ctx.Err()
}

// stored returns the index or the artifact in a layout.
func (r *release) stored(repository string) (remote.Taggable, error) {
	index, err := layout.ImageIndexFromPath(r.layout(repository))
	if err != nil {
		return nil, err
	}
	digest, err := v1.NewHash(r.Digests[repository])
	if err != nil {
		return nil, err
	}
	if isImage(repository) {
		return index.ImageIndex(digest)
	}
	return index.Image(digest)
}
