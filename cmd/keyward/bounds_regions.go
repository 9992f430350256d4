package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"github.com/keyward/keyward/federation"
	"github.com/keyward/keyward/internal/ops/rulecheck"
)

// regionFlags are the flags of keyward bounds for rules with federation.
type regionFlags struct {
	layout    string
	lag       time.Duration
	roundTrip time.Duration
}

func (f *regionFlags) define(s *pflag.FlagSet) {
	s.StringVar(&f.layout, "federation", "", "`file` of the regions (--federation of the members), for rules with federation; --members is that of each region")
	s.DurationVar(&f.lag, "lag", time.Second, "with --federation: `time` by which the replica of the coordinator's store may be behind")
	s.DurationVar(&f.roundTrip, "round-trip", 100*time.Millisecond, "with --federation: round trip `time` between regions and coordinator")
}

// conditions returns what the flags say of the regions, or nil without --federation.
func (f *regionFlags) conditions() (*rulecheck.FederationConditions, error) {
	if f.layout == "" {
		return nil, nil
	}
	var fault error
	if f.lag < 0 || f.roundTrip <= 0 {
		fault = fmt.Errorf("--lag %v, --round-trip %v: want at least 0s, and more than 0s", f.lag, f.roundTrip)
	}
	ls, err := readLayouts(f.layout)
	if err = errors.Join(fault, err); err != nil {
		return nil, err
	}
	return &rulecheck.FederationConditions{Weights: ls[len(ls)-1].Weights(), Lag: f.lag, RoundTrip: f.roundTrip}, nil
}

// readLayouts reads a file of --federation.
func readLayouts(file string) ([]*federation.Layout, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--federation: %w", err)
	}
	return federation.ParseLayouts(file, content)
}
