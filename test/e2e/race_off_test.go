//go:build !race

package e2e

var race []string
