// Command generate writes the dashboards' JSON files. Run it at the root of the repository: go run ./dashboards/generate.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/keyward/keyward/dashboards"
)

func main() {
	dir := flag.String("dir", "dashboards", "folder to write to")
	flag.Parse()
	if err := write(*dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(dir string) error {
	for _, b := range dashboards.All() {
		text, err := b.JSON()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, b.File()), text, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", b.Title, err)
		}
	}
	return nil
}
