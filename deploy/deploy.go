// Package deploy has the alarms, for the tests that check them.
package deploy

import _ "embed" // of the rules

// Rules is prometheus/rules.yaml.
//
//go:embed prometheus/rules.yaml
var Rules string
