package api

import "time"

// Self is the answer of GET /v1/self: what a member does not gossip. `keyward doctor` compares it between members.
type Self struct {
	Node     string             `json:"node"`
	Inst     string             `json:"inst"` // boot ID
	Role     string             `json:"role"` // member or observer
	Version  string             `json:"version"`
	Time     int64              `json:"time_unix_nano"` // by its own clock
	Started  time.Time          `json:"started"`
	Flags    map[string]string  `json:"flags"` // all flags by name, with defaults
	Addrs    SelfAddresses      `json:"addresses"`
	Cert     *SelfCertificate   `json:"certificate"`           // null without certificates
	GossipBy []string           `json:"gossip_key"`            // first 8 hex digits of each key's SHA-256, the encrypting key first
	Offsets  map[string]float64 `json:"clock_offsets_seconds"` // by how much other members' clocks are ahead of this one's

	GossipRefused []SelfRefusal `json:"gossip_refused,omitempty"` // senders of gossip that was dropped recently, the latest last
	Memory        SelfMemory    `json:"memory"`
	Data          *SelfData     `json:"data,omitempty"` // nil without --data
	Warnings      []string      `json:"warnings"`
}

// SelfRefusal is a gossip message that was dropped unread.
type SelfRefusal struct {
	From   string    `json:"from"`
	Reason string    `json:"reason"` // key, label, compressed, too_large or malformed
	At     time.Time `json:"at"`
}

// SelfAddresses are the addresses at which other pods reach the member. An empty one is not served.
type SelfAddresses struct {
	Gossip  string `json:"gossip"`
	Peer    string `json:"peer"`
	RLS     string `json:"rls"`
	Route   string `json:"route"`
	Metrics string `json:"metrics"`
	XDS     string `json:"xds"`
}

// SelfCertificate describes the current contents of the files of --tls-cert and --tls-ca.
type SelfCertificate struct {
	Names      []string          `json:"names"` // URIs, then DNS names
	PeerNames  []string          `json:"peer_names"`
	NotAfter   time.Time         `json:"not_after"`
	CANotAfter time.Time         `json:"ca_not_after"`
	CA         []string          `json:"ca"` // first 8 hex digits of each CA certificate's SHA-256
	Files      map[string]string `json:"files"`
	Problem    string            `json:"problem,omitempty"` // why a member with this CA would reject the certificate
}

// SelfMemory describes the process's memory, in bytes. A limit of 0 means that there is none.
type SelfMemory struct {
	GoLimit uint64 `json:"go_limit"` // GOMEMLIMIT
	Limit   uint64 `json:"limit"`    // of the container
	Used    uint64 `json:"used"`     // by the process, as Go's runtime counts it
}

// SelfData describes the member's journal.
type SelfData struct {
	Dir        string `json:"dir"`               // --data
	Window     string `json:"window"`            // --data-window
	State      string `json:"state"`             // loading, up, stalled or down
	Up         bool   `json:"up"`                // it can be written, or there was nothing to write yet
	Problem    string `json:"problem,omitempty"` // why it is down
	Bytes      int64  `json:"bytes"`             // size of its files
	MaxBytes   int64  `json:"max_bytes"`         // --data-size
	OwedHits   uint64 `json:"owed_hits"`         // hits that only memory has
	Loaded     int    `json:"loaded"`            // counters that were loaded from former journals
	Journals   int    `json:"journals"`          // former journals that were loaded
	Missing    int    `json:"missing"`           // journals of the last ring that no member has loaded
	Generation uint32 `json:"generation"`        // number of the current generation; 0: nothing was written yet
}
