package owner

import "github.com/keyward/keyward/lease"

// Name tells what people call key k, what its rule says of leases, and the owner string that Envoy hashes. Only names of
// hot and leased keys are kept. It may run concurrently, and costs little when the name is known.
func (n *Node) Name(k Key, domain, name, ownerString string, knobs *lease.Knobs) {}
