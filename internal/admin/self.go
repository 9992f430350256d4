package admin

import "time"

// Self is what one member knows of itself and no gossip tells: what `keyward doctor` compares between members.
type Self struct {
	Node     string            `json:"node"`
	Inst     string            `json:"inst"`
	Role     string            `json:"role"` // member or observer
	Version  string            `json:"version"`
	Time     int64             `json:"time_unix_nano"` // by its own clock
	Started  time.Time         `json:"started"`
	Flags    map[string]string `json:"flags"` // in force, by name, whether given or not
	Addrs    SelfAddresses     `json:"addresses"`
	Cert     *SelfCertificate  `json:"certificate"` // null: none
	GossipBy []string          `json:"gossip_key"`  // first 8 hex digits of each key's SHA-256, the one that encrypts first
	// Offsets are how far other members' clocks are ahead of this one's, in seconds.
	Offsets map[string]float64 `json:"clock_offsets_seconds"`
	// GossipRefused is whose gossip the member has refused to read of late, the last one last.
	GossipRefused []SelfRefusal `json:"gossip_refused,omitempty"`
	Memory        SelfMemory    `json:"memory"`
	Warnings      []string      `json:"warnings"`
}

// SelfRefusal is gossip that was refused unread.
type SelfRefusal struct {
	From   string    `json:"from"`
	Reason string    `json:"reason"` // key, label, compressed, too_large or malformed
	At     time.Time `json:"at"`
}

// SelfAddresses are where the member listens, or is reached from other pods; empty where it does not.
type SelfAddresses struct {
	Gossip  string `json:"gossip"`
	Peer    string `json:"peer"`
	RLS     string `json:"rls"`
	Route   string `json:"route"`
	Metrics string `json:"metrics"`
	XDS     string `json:"xds"`
}

// SelfCertificate is what is in the files of --tls-cert and --tls-ca now.
type SelfCertificate struct {
	Names      []string          `json:"names"` // URIs, then DNS names
	PeerNames  []string          `json:"peer_names"`
	NotAfter   time.Time         `json:"not_after"`
	CANotAfter time.Time         `json:"ca_not_after"`
	CA         []string          `json:"ca"` // first 8 hex digits of each CA certificate's SHA-256
	Files      map[string]string `json:"files"`
	Problem    string            `json:"problem,omitempty"` // why another member with this CA would refuse the certificate
}

// SelfMemory is what bounds the process's memory, in bytes; 0: nothing does.
type SelfMemory struct {
	GoLimit uint64 `json:"go_limit"` // GOMEMLIMIT
	Limit   uint64 `json:"limit"`    // of the container
	Used    uint64 `json:"used"`     // by the process, as Go's runtime counts it
}
