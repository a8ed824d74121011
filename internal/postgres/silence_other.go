//go:build !linux

package postgres

import "syscall"

// limitSilence: here the system's own limit holds.
func limitSilence(string, string, syscall.RawConn) error { return nil }
