//go:build !linux

package postgres

import "syscall"

// setTCPUserTimeout does nothing: the system's own limit applies.
func setTCPUserTimeout(string, string, syscall.RawConn) error { return nil }
