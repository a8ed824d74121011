//go:build !race

package ops

var race []string
