package federation

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Layout is a federation as all of its regions know it: a document of the file of --federation. Layouts that divide limits
// in different ways have different epochs.
type Layout struct {
	Name  string `yaml:"name"`
	Epoch uint32 `yaml:"epoch"`
	// From is a time in UTC, as RFC 3339 has it. The layout applies to windows that begin then or later. Only the first layout of a
	// file may have none.
	From string `yaml:"from"`
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

const (
	maxName    = 64 // bytes of the name of a region
	maxLayouts = 8  // in one file
)

// ParseLayouts reads the layouts of a file, one document each, in the order of their epochs. It returns all faults, joined;
// each names the file.
func ParseLayouts(file string, content []byte) (ls []*Layout, err error) {
	d := yaml.NewDecoder(bytes.NewReader(content))
	d.KnownFields(true)
	for {
		l := &Layout{}
		err := d.Decode(l)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))
		}
		ls = append(ls, l)
	}
	if len(ls) == 0 {
		return nil, fmt.Errorf("%s: the file is empty", file)
	}
	var faults []error
	for i, l := range ls {
		where := file
		if len(ls) > 1 {
			where = fmt.Sprintf("%s: layout %d", file, i+1)
		}
		texts := l.faults()
		if i > 0 {
			texts = append(texts, l.faultsAfter(ls[i-1])...)
		}
		for _, text := range texts {
			faults = append(faults, fmt.Errorf("%s: %s", where, text))
		}
	}
	if len(ls) > maxLayouts {
		faults = append(faults, fmt.Errorf("%s: %d layouts, at most %d: remove those whose windows have ended", file, len(ls), maxLayouts))
	}
	return ls, errors.Join(faults...)
}

// faultsAfter returns what is wrong with l as the layout after former.
func (l *Layout) faultsAfter(former *Layout) (faults []string) {
	if l.Epoch <= former.Epoch {
		faults = append(faults, fmt.Sprintf("epoch %d follows epoch %d: each layout of the file needs a higher one than that before it", l.Epoch, former.Epoch))
	}
	if l.From == "" {
		faults = append(faults, "from is missing: the time, like 2027-01-31T12:00:00Z, from which windows use this layout and not the one before it")
	}
	if l.Name != former.Name {
		faults = append(faults, fmt.Sprintf("name is %q, and %q before: all layouts of a file are of one federation", l.Name, former.Name))
	}
	if (l.Holders > 0) != (former.Holders > 0) {
		faults = append(faults, "a federation with regions cannot become one with holders, or the other way round: give it another name")
	}
	return faults
}

// begins returns From in Unix nanoseconds: without From, the beginning of time.
func (l *Layout) begins() (int64, error) {
	if l.From == "" {
		return math.MinInt64, nil
	}
	t, err := time.Parse(time.RFC3339, l.From)
	if _, offset := t.Zone(); err != nil || offset != 0 || t.Year() < 1970 || t.Year() > 2200 {
		return 0, fmt.Errorf("from %q: want a time in UTC like 2027-01-31T12:00:00Z", l.From)
	}
	return t.UnixNano(), nil
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
	if _, err := l.begins(); err != nil {
		faults = append(faults, err.Error())
	}
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
