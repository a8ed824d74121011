package fakepsp

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"
)

// event is one webhook.
type event struct {
	id     string
	typ    string
	at     time.Time
	object string // the id of the charge or refund
	record record
}

// compare orders events as they happened.
func (e event) compare(other event) int {
	return cmp.Or(e.at.Compare(other.at), strings.Compare(e.object, other.object),
		strings.Compare(e.id, other.id))
}

// events returns those of a charge or refund. Their ids follow from its id, so the journal need not
// have them; "created" sorts before both ends.
func (r record) events() []event {
	kind, object, status := "charge", "", ""
	if r.Charge != nil {
		object, status = r.Charge.ID, r.Charge.Status
	} else {
		kind, object, status = "refund", r.Refund.ID, r.Refund.Status
	}

	_, suffix, _ := strings.Cut(object, "_")
	of := func(what string) event {
		return event{"evt_" + suffix + "_" + what, kind + "." + what, r.At, object, r}
	}
	return []event{of("created"), of(status)}
}

// body is the same each time it is sent: the object as it was then.
func (e event) body() ([]byte, error) {
	var b struct {
		ID      string `json:"id"`
		Type    string `json:"type"`
		Created int64  `json:"created"`
		Data    struct {
			Object any `json:"object"`
		} `json:"data"`
	}

	b.ID, b.Type, b.Created = e.id, e.typ, e.at.Unix()
	b.Data.Object = e.record.Refund
	if e.record.Charge != nil {
		b.Data.Object = e.record.Charge
	}
	return json.Marshal(b)
}
