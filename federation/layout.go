package federation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Layout is a federation as all of its regions know it: the file of --federation. Layouts that divide limits in different
// ways have different epochs.
type Layout struct {
	Name  string `yaml:"name"`
	Epoch uint32 `yaml:"epoch"`
	// Coordinator is the authority of rules that name none: the name of an --authority, a region whose cluster coordinates,
	// or SpreadCoordinator.
	Coordinator string         `yaml:"coordinator"`
	Regions     []LayoutRegion `yaml:"regions"`
	// Holders replaces Regions where members cannot gossip: each of them is a holder of its own, with any name, and this is about how
	// many there are.
	Holders uint16 `yaml:"holders"`
}

// LayoutRegion is one region of a Layout.
type LayoutRegion struct {
	Name   string  `yaml:"name"`
	Weight *uint32 `yaml:"weight"` // default 1
	// Address is the host:port at which the region's cluster serves other regions, if it coordinates.
	Address string `yaml:"address"`
}

// SpreadCoordinator is a Layout's Coordinator if every region coordinates a part of the keys.
const SpreadCoordinator = "spread"

// maxName is the most bytes of the name of a region.
const maxName = 64

// ParseLayout reads a layout. It returns all faults, joined; each names the file.
func ParseLayout(file string, content []byte) (*Layout, error) {
	l := &Layout{}
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	if err := d.Decode(l); err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file is empty")
		}
		return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	var faults []error
	for _, text := range l.faults() {
		faults = append(faults, fmt.Errorf("%s: %s", file, text))
	}
	return l, errors.Join(faults...)
}

// faults returns what is wrong with l.
func (l *Layout) faults() (faults []string) {
	add := func(wrong bool, format string, args ...any) {
		if wrong {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	add(l.Name == "", "name is missing: all regions of a federation have the same")
	add(l.Epoch == 0, "epoch is missing: a whole number from 1 on, larger with every change of the regions or their weights")
	add(l.Coordinator == "", "coordinator is missing: the name of an --authority")
	add(len(l.Regions) == 0 && l.Holders == 0, "regions is empty, and so is holders: list the regions, or give the number of sidecars that are "+
		"holders of their own")
	add(len(l.Regions) > 0 && l.Holders > 0, "regions contradicts holders: sidecars that are holders of their own are not listed")
	add(l.Holders > maxRegions, "%d holders, at most %d", l.Holders, maxRegions)
	add(len(l.Regions) > maxRegions, "%d regions, at most %d", len(l.Regions), maxRegions)
	seen, sum := map[string]bool{}, uint64(0)
	for i, r := range l.Regions {
		add(r.Name == "" || len(r.Name) > maxName, "the name of region %d has %d bytes: want 1 to %d", i+1, len(r.Name), maxName)
		add(seen[r.Name], "two regions are named %q", r.Name)
		seen[r.Name] = true
		sum += uint64(r.weight())
		add(r.Name == SpreadCoordinator, "no region can be named %q: it is a value of coordinator", r.Name)
		add(l.Coordinates(r.Name) && r.Address == "", "region %q coordinates, but has no address: want the host:port of its --federation-listen", r.Name)
		add(r.Address != "" && !isAddress(r.Address), "the address %q of region %q: want host:port", r.Address, r.Name)
	}
	add(len(l.Regions) > 0 && sum == 0, "no region has a weight above 0")
	return faults
}

// isAddress reports whether other regions can connect to at: it has a host, and a port.
func isAddress(at string) bool {
	host, port, err := net.SplitHostPort(at)
	n, portErr := strconv.ParseUint(port, 10, 16)
	return err == nil && portErr == nil && host != "" && n > 0
}

func (r *LayoutRegion) weight() uint32 {
	if r.Weight == nil {
		return 1
	}
	return *r.Weight
}

// Coordinates reports whether the cluster of that region coordinates keys of rules that name no authority.
func (l *Layout) Coordinates(region string) bool {
	i := l.Index(region)
	return i >= 0 && (l.Coordinator == region || l.Coordinator == SpreadCoordinator && l.Regions[i].weight() > 0)
}

// Weights returns the weights of the regions, in their order.
func (l *Layout) Weights() []uint32 {
	ws := make([]uint32, len(l.Regions))
	for i := range l.Regions {
		ws[i] = l.Regions[i].weight()
	}
	return ws
}

// Admits returns why a holder of that name has no place in l, or nil.
func (l *Layout) Admits(region string) error {
	switch {
	case l.Holders > 0 && len(region) > maxName:
		return fmt.Errorf("%q has %d bytes, at most %d", region, len(region), maxName)
	case l.Holders > 0 || l.Index(region) >= 0:
		return nil
	}
	return fmt.Errorf("%q is not in the layout, which has %s", region, strings.Join(l.Names(), ", "))
}

// Index returns the position of a region, or -1.
func (l *Layout) Index(region string) int {
	for i := range l.Regions {
		if l.Regions[i].Name == region {
			return i
		}
	}
	return -1
}

// Names returns the names of the regions, in their order.
func (l *Layout) Names() []string {
	names := make([]string, len(l.Regions))
	for i := range l.Regions {
		names[i] = l.Regions[i].Name
	}
	return names
}
