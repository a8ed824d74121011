//go:build race

package e2e

// race builds the programs as the tests are built.
var race = []string{"-race"}
