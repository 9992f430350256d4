package api

import "time"

// Escrows is the answer of GET /v1/escrows: what one member has of limits that several regions share.
type Escrows struct {
	Member       string              `json:"member"`
	Region       string              `json:"region"`
	Federation   string              `json:"federation"`
	Epoch        uint32              `json:"epoch"`
	Coordinators []RegionCoordinator `json:"coordinators"`
	Keys         []KeyEscrow         `json:"keys"` // those with the most lent hits
	Total        int                 `json:"total"`
}

// RegionCoordinator is a coordinator as a member sees it.
type RegionCoordinator struct {
	Name      string  `json:"name"`
	Away      bool    `json:"away"` // the outage policies of rules decide
	RoundTrip float64 `json:"round_trip_seconds"`
}

// KeyEscrow is the escrow of one key.
type KeyEscrow struct {
	Digest      string        `json:"digest"`
	Coordinator string        `json:"coordinator"`
	Limit       uint32        `json:"limit"` // of all regions together
	Window      string        `json:"window"`
	Have        uint64        `json:"have"`   // hits lent to this region in this window
	Left        uint64        `json:"left"`   // the unspent part of them
	Used        uint64        `json:"used"`   // charged hits of the pool, by the newest reply
	Usable      uint64        `json:"usable"` // hits of the pool
	UsedUp      bool          `json:"used_up"`
	Demand      float64       `json:"demand"` // hits per second offered here
	Ends        *time.Time    `json:"ends,omitempty"`
	Answered    *time.Time    `json:"answered,omitempty"` // the newest reply of the coordinator
	Others      []OtherRegion `json:"others,omitempty"`
}

// OtherRegion describes the part of a key that another region has, by the newest reply of the coordinator.
type OtherRegion struct {
	Region string  `json:"region"`
	Have   uint64  `json:"have"`
	Left   uint64  `json:"left"`
	Age    float64 `json:"age_seconds"` // since its newest request
}
