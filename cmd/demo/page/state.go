package page

// State is what the page shows, every second.
type State struct {
	Elapsed        float64     `json:"elapsed"` // seconds since the demo began, as everywhere here
	Boxes          []Box       `json:"boxes"`
	Flows          []Flow      `json:"flows"`
	Outbox         Outbox      `json:"outbox"`
	Lease          *Lease      `json:"lease"` // nil: no relay holds it
	Payment        *Payment    `json:"payment"`
	Invariants     []Invariant `json:"invariants"`
	CheckedElapsed float64     `json:"checked_elapsed"` // when Invariants were counted
	Faults         Faults      `json:"faults"`
}

// Box is a program, a server, or who stands outside of the service.
type Box struct {
	ID        string     `json:"id"`
	State     string     `json:"state"`
	Rate      float64    `json:"rate"`
	Unit      string     `json:"unit"`
	P50       *float64   `json:"p50_ms"` // nil: nothing was measured
	P99       *float64   `json:"p99_ms"`
	Detail    string     `json:"detail"`
	Instances []Instance `json:"instances"`
}

// The states of boxes and instances.
const (
	Running    = "running"
	Leading    = "leading"
	StandingBy = "standing-by"
	Frozen     = "frozen"
	Down       = "down"
	Starting   = "starting"
)

// Instance is one of several processes of a program.
type Instance struct {
	Name  string `json:"name"`
	State string `json:"state"`
}

// Flow is an arrow between two boxes, with what passes along it in a second.
type Flow struct {
	From string  `json:"from"`
	To   string  `json:"to"`
	Rate float64 `json:"rate"`
}

// Outbox is how far its events have come.
type Outbox struct {
	Cursor        string      `json:"cursor"`
	Waiting       int64       `json:"waiting"`
	OldestSeconds float64     `json:"oldest_seconds"`
	Sent          int64       `json:"sent"`
	Stragglers    []Straggler `json:"stragglers"`
}

// Straggler is an open transaction that has written: its events come after younger ones.
type Straggler struct {
	XID     string  `json:"xid"`
	Seconds float64 `json:"seconds"`
}

// Lease says who leads.
type Lease struct {
	Holder      string  `json:"holder"`
	Token       int64   `json:"token"`
	LeftSeconds float64 `json:"left_seconds"`
}

// Payment is one payment with everything that is written about it.
type Payment struct {
	ID   string `json:"id"`
	Rows []Row  `json:"rows"`
}

// Row is a row of a table, a record of a topic, an entry of the PSP's books or a webhook.
type Row struct {
	Store   string      `json:"store"`
	Table   string      `json:"table"`
	Elapsed float64     `json:"elapsed"` // when it was first seen
	Values  [][2]string `json:"values"`
}

// Invariant is a promise, and how often it was found broken.
type Invariant struct {
	Name  string `json:"name"`
	Text  string `json:"text"`
	Wrong int64  `json:"wrong"`
	Of    int64  `json:"of"` // how many were looked at
}

// Faults are those that last until something ends them.
type Faults struct {
	OpenTransaction bool     `json:"open_transaction"`
	LoseCommitReply bool     `json:"lose_commit_reply"`
	Frozen          []string `json:"frozen"`
}

// The boxes, in the order of the page, and the arrows between them.
var (
	boxes = []string{
		"requests", "api", "postgres", "relay", "kafka", "consumer", "worker", "psp", "webhooks",
	}
	flows = [][2]string{
		{"requests", "api"}, {"api", "postgres"}, {"postgres", "relay"}, {"relay", "kafka"},
		{"kafka", "consumer"}, {"kafka", "worker"}, {"worker", "psp"}, {"worker", "webhooks"},
	}
)

// Blank is a state in which everything is starting. Every list is there, if only empty.
func Blank(elapsed float64) State {
	s := State{
		Elapsed: elapsed, Invariants: []Invariant{},
		Outbox: Outbox{Stragglers: []Straggler{}}, Faults: Faults{Frozen: []string{}},
	}
	for _, id := range boxes {
		s.Boxes = append(s.Boxes, Box{ID: id, State: Starting, Instances: []Instance{}})
	}
	for _, f := range flows {
		s.Flows = append(s.Flows, Flow{From: f[0], To: f[1]})
	}
	return s
}

// Box returns the box of that id.
func (s *State) Box(id string) *Box {
	for i := range s.Boxes {
		if s.Boxes[i].ID == id {
			return &s.Boxes[i]
		}
	}
	panic("page: no box " + id)
}
