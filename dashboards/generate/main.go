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
	files, err := dashboards.Files()
	if err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}
