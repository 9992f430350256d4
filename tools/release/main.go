// Command release makes what a release of Keyward publishes: archives, packages, images, charts, bills of materials,
// checksums and provenance. It needs no container engine, and its results depend only on the commit and the tag.
//
//	go -C tools/release run . build -tag v1.2.3 -out dist     everything, in dist
//	go -C tools/release run . try -out dist                   push it to a registry on loopback and use it from there
//	go -C tools/release run . provenance -out dist            where it comes from, as an in-toto statement
//	go -C tools/release run . push -out dist                  push images and charts
//	go -C tools/release run . notes -tag v1.2.3               the version's section of CHANGELOG.md
//
// scripts/release runs it. docs/releasing.md describes the results.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
)

// options are the flags of all commands.
type options struct {
	root, out string
	tag       string
	platforms string
	licenses  string
	programs  string
	modules   string
	registry  string
	helm      string
	dryRun    bool
}

var commands = map[string]func(context.Context, options) error{
	"build": build, "try": try, "provenance": provenance, "push": push, "notes": printNotes,
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("usage: release build|try|provenance|push|notes [flags]")
	}
	var o options
	s := flag.NewFlagSet("release "+args[0], flag.ContinueOnError)
	s.StringVar(&o.root, "root", "../..", "folder of the repository")
	s.StringVar(&o.out, "out", "dist", "folder of the results, in the repository")
	s.StringVar(&o.tag, "tag", "", "tag of the release, v1.2.3")
	s.StringVar(&o.platforms, "platforms", strings.Join(allPlatforms, ","), "platforms to build for, OS/ARCH")
	s.StringVar(&o.licenses, "licenses", "", "folder that scripts/licenses has written (default: run it)")
	s.StringVar(&o.programs, "programs", "", "folder work/programs of a former build (default: compile them)")
	s.StringVar(&o.modules, "modules", "", "folder in the repository that scripts/module release has written; a dry run can leave the module out")
	s.StringVar(&o.registry, "registry", defaultRegistry, "registry and folder to push to")
	s.StringVar(&o.helm, "helm", "", "Helm programs for try, separated by commas")
	s.BoolVar(&o.dryRun, "dry-run", false, "accept a commit without the tag, changed files, and notes that are called Unreleased")
	if err := s.Parse(args[1:]); err != nil {
		return err
	}
	if s.NArg() > 0 {
		return fmt.Errorf("unexpected arguments: %v", s.Args())
	}
	var err error
	if o.root, err = filepath.Abs(o.root); err != nil {
		return err
	}
	for _, dir := range []*string{&o.out, &o.modules} {
		if *dir != "" && !filepath.IsAbs(*dir) {
			*dir = filepath.Join(o.root, *dir)
		}
	}
	return commands[args[0]](ctx, o)
}
