// Package names holds the names that Envoy's configuration and Keyward's servers must agree on.
package names

// Headers.
const (
	KeyHeader   = "x-keyward-key"   // the owner string of a rate limit call; the ring of the owner cluster hashes it
	EnvoyHeader = "x-keyward-envoy" // the name of an Envoy that opens a stream of the rate limit quota service
	// The sub-key of a hot key, which the ring hashes instead; Envoy strips one that a client sent.
	SubHeader = "x-keyward-sub"
)

// Resources of the xDS server.
const (
	OwnerCluster  = "keyward"        // CDS, EDS: the rate limit services of the sidecars
	RouteCluster  = "keyward-routes" // CDS, EDS: the Envoys of the pods, for ring-hash routes
	RouteConfig   = "keyward-routes" // RDS: ring-hash routes to the pods
	DirectConfig  = "keyward-direct" // RDS: routes of an Envoy that calls owners directly and spreads hot keys
	RouteListener = "keyward-routes" // LDS: the listener with the ring-hash routes
)

// HTTP filters of an Envoy that serves the routes of hot keys.
const (
	SpreadFilter = "keyward-spread" // header mutation: the route of a hot key sets SubHeader
	CapFilter    = "keyward-cap"    // local rate limit: the route of a hot key refuses what is certainly over its limit
	CapsFilter   = "keyward-caps"   // local rate limit: with the name of a domain, buckets of many keys; also by ECDS
)

// Filters of an Envoy whose rules have hot_step: quota. The route of a hot key enables the first and disables the second.
// QuotaID and CallsID return their names.
const (
	quotaFilter = "keyward-quota" // rate limit quota, disabled: spends the limit
	callsFilter = "keyward-calls" // rate limit: calls for each request
)

// QuotaID returns the name of the rate limit quota filter of a descriptor with one entry.
func QuotaID(domain, entry string) string { return quotaFilter + "/" + domain + "/" + entry }

// CallsID returns the name of the rate limit filter of a descriptor with one entry.
func CallsID(domain, entry string) string { return callsFilter + "/" + domain + "/" + entry }

// PrimeHeader carries the ID of the bucket that a request to PrimeListener is for.
const PrimeHeader = "x-keyward-prime"

// PrimeListener is a listener on a loopback address. Its requests are answered by Envoy after they have passed a rate
// limit quota filter, so that Envoy has an assignment for a bucket before its own requests need it.
const PrimeListener = "keyward-prime"

// Filters by ECDS that set SubHeader, for keys that are the value of a header or the client's address.
const (
	SpreadByHeader  = "keyward-spread-header"
	SpreadByAddress = "keyward-spread-address"
)

// Secrets that the bootstrap of an Envoy defines when the sidecars require mTLS. Every Envoy is served the same cluster,
// whatever the paths of its files. Envoy reads static secrets once: an Envoy whose certificates are rotated without a restart
// defines OwnerCluster in its bootstrap, with secrets in files that it watches, and takes only the endpoints from xDS.
const (
	ClientSecret = "keyward_client" // the certificate of the Envoy and its key
	CASecret     = "keyward_ca"     // the CA of the sidecars
)
