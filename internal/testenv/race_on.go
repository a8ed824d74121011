//go:build race

package testenv

// Race is what a test builds programs with: the race detector, if it was built with it itself.
var Race = []string{"-race"}
