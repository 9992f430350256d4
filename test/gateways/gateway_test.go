package gateways

import (
	"context"
	"fmt"
)

// gateway is a control plane with its Envoy. Its methods are for one goroutine.
type gateway interface {
	// name returns the name of the gateway's page in docs/gateways, and of a variant after a space.
	name() string

	// about returns the versions of the control plane and its Envoy.
	about() string

	// workload returns the program that decides rate limits in the gateway's installation, with Keyward's image.
	workload() (workload, error)

	// start starts the control plane and its Envoy, and returns when both answer.
	start(ctx context.Context) error

	// stop ends what start has started. The resources that were applied remain.
	stop() error

	// apply writes the gateway's own resources for a route of the host route.example.com to the application, with a
	// policy. It does not wait until the resources are in force. Callers ask lacks first.
	apply(route string, p *policy) error

	// forget removes the resources of a route, at the next call of apply at the latest.
	forget(route string)

	// direct makes Envoy call the owners of the values of clientHeader, by the resources that Keyward's tool prints, or any member.
	direct(on bool) error

	// counter returns the domain and the entries of the descriptor of a client, for a shared first rule of a route.
	counter(route, client string) (domain string, entries []string)

	// lacks returns why the gateway cannot express a feature of policies or does not support an option, or an empty string.
	lacks(feature) string

	// address returns the address of the listener.
	address() string

	// stat returns the sum of the statistics of its Envoy whose names end with suffix.
	stat(ctx context.Context, suffix string) (float64, error)
}

// feature is something that cases need of a gateway.
type feature string

const (
	distinctHeader  feature = "a limit for each value of a header"
	distinctAddress feature = "a limit for each client address"
	shadowRule      feature = "shadow mode"
	sharedRule      feature = "a limit shared by routes"
	limitHeaders    feature = "x-ratelimit headers"
	retryAfter      feature = "Retry-After"
	ownerDirect     feature = "calls to owners"
	requestCost     feature = "cost of a request from dynamic metadata"
	responseCost    feature = "cost of a response from dynamic metadata"
	numberCost      feature = "cost of a request as a number"
	limitOfMetadata feature = "a limit from dynamic metadata"
	longUnits       feature = "weeks, months and years"
	formerVersion   feature = "a former version"
)

// policy lists the limits of a case, without the words of any gateway.
type policy struct {
	rules []rule

	// script is Lua that runs before the rate limit filter. Gateways that lack requestCost need not support it.
	script string
}

// rule limits the requests with all of its conditions.
type rule struct {
	limit uint
	unit  string // Second, Minute, Hour, Day, Week, Month or Year

	header  string            // each value of this header has its own count
	exact   map[string]string // headers with these values
	cidr    string            // client addresses in this network; each has its own count
	methods []string
	shadow  bool
	shared  bool // one count for all routes of the policy

	requestCost  *cost
	responseCost *cost
	limitOf      string // key of dynamic metadata in metadataNamespace with the limit, as an object of requests_per_unit and unit
}

// cost is a number of hits, or the key of dynamic metadata in metadataNamespace that has it.
type cost struct {
	number uint64
	key    string
}

// metadataNamespace has the dynamic metadata of the cases.
const metadataNamespace = "cases"

// host returns the host of requests for a route.
func host(route string) string { return route + ".example.com" }

// value of the header that distinguishes clients in all cases.
const clientHeader = "x-user-id"

// workload is a container of Keyward.
type workload struct {
	command []string
	env     []envVar
	mounts  map[string]string // names of volumes by paths
	user    int

	gossip string // Service by which members find each other; empty: keyward-gossip

	readiness string // port and path that answer when a member is ready
	metrics   string // port with metrics

	preStop  []string // command that ends before the pod's process gets SIGTERM
	stateful bool     // of a StatefulSet: a pod ends before the one starts that has its name and replaces it

	// found passes the addresses of the ready members to the gateway. It is nil if the gateway looks for the service by name.
	found func(ready []string) error
}

// envVar is a variable of a container, in the schema of Kubernetes.
type envVar struct {
	Name, Value string
	ValueFrom   struct {
		FieldRef struct {
			FieldPath string `yaml:"fieldPath"`
		} `yaml:"fieldRef"`
	} `yaml:"valueFrom"`
}

// resolve returns the variable for a pod, as NAME=VALUE.
func (v envVar) resolve(pod, ip string) (string, error) {
	switch field := v.ValueFrom.FieldRef.FieldPath; field {
	case "":
		return v.Name + "=" + v.Value, nil
	case "metadata.name":
		return v.Name + "=" + pod, nil
	case "status.podIP":
		return v.Name + "=" + ip, nil
	case "metadata.namespace":
		return v.Name + "=" + namespace, nil
	case "metadata.uid":
		return v.Name + "=uid-of-" + pod, nil
	default:
		return "", fmt.Errorf("%s: field %s is not known", v.Name, field)
	}
}
