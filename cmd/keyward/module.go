package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/keyward/keyward/envoy/snippet"
)

func newModule() *cobra.Command {
	var envoy, to, from string
	var list bool
	cmd := &cobra.Command{
		Use:     "module --envoy VERSION --to DIR",
		Short:   "Copy the dynamic module for an Envoy version to a directory, in an init container",
		Long:    helpText("module"),
		Example: helpExamples("module"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if list {
				return listModules(cmd.OutOrStdout(), from)
			}
			if envoy == "" || to == "" {
				return errors.New("want --envoy VERSION and --to DIR, or --list")
			}
			f, err := snippet.ModuleFor(envoy)
			if err != nil {
				return fmt.Errorf("--envoy: %w", err)
			}
			if err := copyModule(filepath.Join(from, f.Name()), to); err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is for Envoy %s\n", filepath.Join(to, f.Name()), strings.Join(f.Envoys(), " and "))
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&envoy, "envoy", "", "`version` of the Envoy that loads the module, such as 1.40 or 1.40.0")
	f.StringVar(&to, "to", "", "existing `directory` to copy to: Envoy's ENVOY_DYNAMIC_MODULES_SEARCH_PATH")
	f.StringVar(&from, "from", "/module", "`directory` with the files that scripts/module builds")
	f.BoolVar(&list, "list", false, "print the ABIs, their files and Envoy versions, and which files --from has")
	cmd.MarkFlagsMutuallyExclusive("list", "envoy")
	cmd.MarkFlagsMutuallyExclusive("list", "to")
	return cmd
}

// listModules prints a row for each file of the module.
func listModules(out io.Writer, from string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "ABI\tFILE\tENVOY\tIN %s\n", from)
	for _, f := range snippet.ModuleFiles() {
		found := "yes"
		if _, err := os.Stat(filepath.Join(from, f.Name())); errors.Is(err, fs.ErrNotExist) {
			found = "no"
		} else if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", f.ABI, f.Name(), strings.Join(f.Envoys(), ", "), found)
	}
	return w.Flush()
}

// copyModule copies a file to a directory under its own name. The name has the complete file or its former content at
// any time, because an Envoy may load it or have it mapped.
func copyModule(file, dir string) error {
	src, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--from: %w: scripts/module builds it, and the image of deploy/module has it in /module", err)
	}
	if err != nil {
		return fmt.Errorf("--from: %w", err)
	}
	defer src.Close()
	if info, err := src.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return errors.Join(err, fmt.Errorf("--from: %s is empty or no regular file", file))
	}
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return fmt.Errorf("--to: %s is not a directory", dir)
	}
	tmp, err := os.CreateTemp(dir, ".keyward-*.so")
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("--to: %w: the user %d of this process cannot write there", err, os.Getuid())
	}
	if err != nil {
		return fmt.Errorf("--to: %w", err)
	}
	_, err = io.Copy(tmp, src)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, filepath.Base(file)))
	}
	if err != nil {
		return fmt.Errorf("copy %s: %w", file, errors.Join(err, os.Remove(tmp.Name())))
	}
	return nil
}
