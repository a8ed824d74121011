package httpapi

import (
	"fmt"
	"slices"
	"strings"

	"github.com/oncepay/oncepay/internal/strictjson"
	"github.com/oncepay/oncepay/internal/webhooks"
)

// endpointOrder is the body of a new webhook endpoint, and its canonical form: types in one order, and
// none for all.
type endpointOrder struct {
	URL        string   `json:"url"`
	EventTypes []string `json:"event_types,omitempty"`
}

func (s *server) decodeEndpoint(body []byte) (o endpointOrder, err error) {
	f, err := newFields(body)
	if err != nil {
		return o, err
	}

	url, there := f.required("url")
	if there {
		if err := webhooks.CheckURL(url, s.WebhooksAllow); err != nil {
			f.fail("invalid-field", fmt.Sprintf("url %s.", err), "url")
		}
	}
	o = endpointOrder{URL: url, EventTypes: f.eventTypes("event_types")}
	return o, f.err()
}

// eventTypes reads an optional list of types; nil: all. A type that does not exist is most likely a
// typing error.
func (f *fields) eventTypes(name string) []string {
	v, there := f.get(name)
	if !there {
		return nil
	}
	if v.Kind != strictjson.Array || len(v.Items) == 0 {
		f.fail("invalid-field", name+" must be a list of event types; omit it to get all.", name)
		return nil
	}

	var types []string
	for _, t := range v.Items {
		if t.Kind != strictjson.String || !slices.Contains(webhooks.EventTypes, t.Text) {
			f.fail("invalid-field",
				name+" may have "+strings.Join(webhooks.EventTypes, ", ")+" and nothing else.", name)
			return nil
		}
		types = append(types, t.Text)
	}
	slices.Sort(types)
	return slices.Compact(types)
}

// decodeNothing reads a body that must be an empty object.
func decodeNothing(body []byte) error {
	f, err := newFields(body)
	if err != nil {
		return err
	}
	return f.err()
}
