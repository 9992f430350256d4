package ringcheck

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/keyward/keyward/ring"
)

// Vectors are answers recorded from a real Envoy: one cluster, and the host that answered each request.
type Vectors struct {
	Name        string
	Header      string // the header of the hash policy
	Cluster     EnvoyCluster
	IDs         []int   // IDs[i] is the number of Cluster.Hosts[i] in the file
	HostsInRing []int   // IDs; nil if the file does not list them
	Gauges      *Gauges // nil if the file has none
	Requests    []RecordedRequest
}

// RecordedRequest is one recorded answer.
type RecordedRequest struct {
	Lines []string // the header's values in the order sent; empty if the header was absent
	Host  int      // the ID that answered; NoHost when Envoy answered without one
}

// NoHost is the host of a request that Envoy answered itself.
const NoHost = -1

// ParseVectors reads the JSON format of testdata/envoy-ring. It ignores unknown fields. The error lists every fault
// with its field, or with its line if no field is known.
func ParseVectors(data []byte) (*Vectors, error) {
	var f vectorFile
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, locate(data, err)
	}
	v := &Vectors{Name: f.Name, Header: f.Header, HostsInRing: f.HostsInRing, Gauges: f.Gauges.gauges()}
	var faults []error
	if f.Hosts == nil {
		faults = append(faults, errors.New("hosts: missing"))
	}
	if f.Requests == nil {
		faults = append(faults, errors.New("requests: missing"))
	}
	cluster, err := f.Ring.cluster()
	if err != nil {
		faults = append(faults, fmt.Errorf("ring.%w", err))
	}
	v.Cluster = cluster
	faults = append(faults, v.addHosts(f.Hosts), v.addRequests(f.Requests))
	return v, errors.Join(faults...)
}

func (v *Vectors) addHosts(hosts []json.RawMessage) error {
	var faults []error
	known := map[int]bool{}
	for i, raw := range hosts {
		id, h, err := parseHost(raw, i)
		if err == nil && known[id] {
			err = fmt.Errorf("id: %d is used twice", id)
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("hosts[%d].%w", i, err))
			continue
		}
		known[id] = true
		v.IDs, v.Cluster.Hosts = append(v.IDs, id), append(v.Cluster.Hosts, h)
	}
	return joinSome(faults)
}

func (v *Vectors) addRequests(requests []json.RawMessage) error {
	var faults []error
	for i, raw := range requests {
		r, err := parseRequest(raw)
		if err != nil {
			faults = append(faults, fmt.Errorf("requests[%d].%w", i, err))
			continue
		}
		v.Requests = append(v.Requests, r)
	}
	return joinSome(faults)
}

// maxFaults is the number of faults that are reported for one list.
const maxFaults = 10

// joinSome joins the first maxFaults errors and counts the others.
func joinSome(faults []error) error {
	if n := len(faults) - maxFaults; n > 0 {
		faults = append(faults[:maxFaults:maxFaults], fmt.Errorf("and %d more", n))
	}
	return errors.Join(faults...)
}

// locate adds the field or the line to an error of encoding/json.
func locate(data []byte, err error) error {
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var offset int64
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &kind):
		offset = kind.Offset
		err = fmt.Errorf("%s: is a %s", fieldOrFile(kind.Field), kind.Value)
	default: // an error of one of our own types, which contains the field
		return err
	}
	line := 1 + bytes.Count(data[:min(max(offset, 0), int64(len(data)))], []byte{'\n'})
	return fmt.Errorf("line %d: %w", line, err)
}

func fieldOrFile(field string) string {
	if field == "" {
		return "the top-level value"
	}
	return field
}

type vectorFile struct {
	Name        string            `json:"name"`
	Header      string            `json:"header"`
	Ring        vectorRing        `json:"ring"`
	Gauges      *vectorGauges     `json:"envoy_gauges"`
	HostsInRing []int             `json:"hosts_in_ring"`
	Hosts       []json.RawMessage `json:"hosts"`
	Requests    []json.RawMessage `json:"requests"`
}

type vectorGauges struct {
	Size uint64 `json:"size"`
	Min  uint64 `json:"min_hashes_per_host"`
	Max  uint64 `json:"max_hashes_per_host"`
}

func (g *vectorGauges) gauges() *Gauges {
	if g == nil {
		return nil
	}
	return &Gauges{Size: g.Size, MinHashesPerHost: g.Min, MaxHashesPerHost: g.Max}
}

type vectorRing struct {
	Minimum          uint64          `json:"minimum_ring_size"`
	Maximum          uint64          `json:"maximum_ring_size"`
	HashFunction     string          `json:"hash_function"`
	UseHostname      bool            `json:"use_hostname_for_hashing"`
	LocalityWeighted flag            `json:"locality_weighted"`
	LocalityConfig   flag            `json:"locality_weighted_lb_config"`
	PanicThreshold   json.RawMessage `json:"healthy_panic_threshold"`
	Overprovisioning uint32          `json:"overprovisioning_factor"`
}

func (r *vectorRing) cluster() (EnvoyCluster, error) {
	c := EnvoyCluster{
		MinimumRingSize:  r.Minimum,
		MaximumRingSize:  r.Maximum,
		UseHostname:      r.UseHostname,
		LocalityWeighted: bool(r.LocalityWeighted || r.LocalityConfig),
		Overprovisioning: r.Overprovisioning,
	}
	var faults []error
	switch strings.ToUpper(r.HashFunction) {
	case "", "XX_HASH", "DEFAULT_HASH":
	case "MURMUR_HASH_2":
		c.HashFunction = ring.Murmur2
	default:
		faults = append(faults, fmt.Errorf("hash_function: %q is neither XX_HASH nor MURMUR_HASH_2", r.HashFunction))
	}
	var err error
	if c.PanicThreshold, err = parsePercent(r.PanicThreshold); err != nil {
		faults = append(faults, fmt.Errorf("healthy_panic_threshold: %w", err))
	}
	return c, errors.Join(faults...)
}

// parsePercent reads a number, or one inside {"value": ...} as in Envoy's own configuration.
func parsePercent(raw json.RawMessage) (*float64, error) {
	if len(raw) == 0 || string(raw) == "null" {
		return nil, nil
	}
	var number float64
	if json.Unmarshal(raw, &number) == nil {
		return &number, nil
	}
	var message struct {
		Value float64 `json:"value"`
	}
	if err := json.Unmarshal(raw, &message); err != nil {
		return nil, fmt.Errorf("%s is not a percentage", raw)
	}
	return &message.Value, nil
}

// flag is a boolean, or an Envoy message whose presence means true.
type flag bool

func (f *flag) UnmarshalJSON(raw []byte) error {
	*f = flag(string(raw) == "true" || bytes.HasPrefix(raw, []byte{'{'}))
	if !*f && string(raw) != "false" && string(raw) != "null" {
		return fmt.Errorf("ring.locality_weighted: %.40s is not a boolean", raw)
	}
	return nil
}

type vectorHost struct {
	ID             *int            `json:"id"`
	HashKey        json.RawMessage `json:"hash_key"`
	Hostname       string          `json:"hostname"`
	Address        string          `json:"address"`
	Weight         *uint32         `json:"weight"`
	HealthStatus   string          `json:"health_status"`
	Health         string          `json:"health"`
	Priority       uint32          `json:"priority"`
	Region         string          `json:"locality_region"`
	Zone           string          `json:"locality_zone"`
	SubZone        string          `json:"locality_sub_zone"`
	LocalityWeight uint32          `json:"locality_weight"`
}

// parseHost reads the host at index i, which is its ID if the file has none.
func parseHost(raw json.RawMessage, i int) (int, Host, error) {
	f := vectorHost{ID: &i}
	if err := unmarshalField(raw, &f, "id"); err != nil {
		return 0, Host{}, err
	}
	health, err := parseHealth(f.HealthStatus + f.Health)
	if err != nil {
		return 0, Host{}, fmt.Errorf("health_status: %w", err)
	}
	h := Host{
		Hostname:       f.Hostname,
		Address:        f.Address,
		Health:         health,
		Priority:       f.Priority,
		Locality:       Locality{f.Region, f.Zone, f.SubZone},
		LocalityWeight: f.LocalityWeight,
	}
	_ = json.Unmarshal(f.HashKey, &h.HashKey) // like Envoy, ignore a hash_key that is not a string
	if f.Weight != nil {
		h.Weight = *f.Weight
	}
	if f.ID != nil {
		i = *f.ID
	}
	return i, h, nil
}

func parseHealth(s string) (HostHealth, error) {
	for i, name := range [...]string{"UNKNOWN", "HEALTHY", "UNHEALTHY", "DRAINING", "TIMEOUT", "DEGRADED"} {
		if strings.EqualFold(s, name) {
			return HostHealth(i), nil
		}
	}
	if s == "" {
		return Unknown, nil
	}
	return 0, fmt.Errorf("%q is unknown", s)
}

type vectorRequest struct {
	V    json.RawMessage `json:"v"`
	Hex  json.RawMessage `json:"hex"`
	Host *int            `json:"host"`
}

func parseRequest(raw json.RawMessage) (RecordedRequest, error) {
	var f vectorRequest
	if err := unmarshalField(raw, &f, "v"); err != nil {
		return RecordedRequest{}, err
	}
	r := RecordedRequest{Host: NoHost}
	if f.Host != nil {
		r.Host = *f.Host
	}
	var err error
	if r.Lines, err = parseLines(f.V); err != nil {
		return RecordedRequest{}, fmt.Errorf("v: %w", err)
	}
	encoded, err := parseLines(f.Hex)
	if err != nil {
		return RecordedRequest{}, fmt.Errorf("hex: %w", err)
	}
	if len(encoded) > 0 && len(r.Lines) > 0 {
		return RecordedRequest{}, errors.New("hex: given together with v")
	}
	for _, s := range encoded {
		line, err := hex.DecodeString(s)
		if err != nil {
			return RecordedRequest{}, fmt.Errorf("hex: %w", err)
		}
		r.Lines = append(r.Lines, string(line))
	}
	return r, nil
}

// parseLines reads a string or a list of strings.
func parseLines(raw json.RawMessage) ([]string, error) {
	if len(raw) == 0 {
		return nil, nil
	}
	var one string
	if raw[0] == '"' && json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	var list []string
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%.40s is not a list of strings", raw)
	}
	return list, nil
}

// unmarshalField decodes an object. Its error starts with the faulty field, or with first if no field is known.
func unmarshalField(raw json.RawMessage, to any, first string) error {
	err := json.Unmarshal(raw, to)
	var kind *json.UnmarshalTypeError
	if errors.As(err, &kind) && kind.Field != "" {
		return fmt.Errorf("%s: is a %s", kind.Field, kind.Value)
	}
	if err != nil {
		return fmt.Errorf("%s: %.40s is not an object", first, raw)
	}
	return nil
}
