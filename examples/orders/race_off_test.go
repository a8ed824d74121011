//go:build !race

package main

var race []string
