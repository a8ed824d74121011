//go:build race

package ops

// race builds the programs as the tests are built.
var race = []string{"-race"}
