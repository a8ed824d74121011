// Package api has what oncepay promises to programs: openapi.yaml for HTTP, asyncapi.yaml for Kafka and a JSON Schema for
// the payload of every event. The tests in test/contract hold the programs to them, and them to the programs.
package api

import "embed"

// Files has openapi.yaml, asyncapi.yaml and events/<type>.schema.json.
//
//go:embed openapi.yaml asyncapi.yaml events/*.schema.json
var Files embed.FS
