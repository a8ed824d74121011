//go:build race

package main

// race builds the programs as the tests are built.
var race = []string{"-race"}
