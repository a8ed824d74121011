//go:build !linux

package main

import "time"

// pause may be a millisecond late.
func pause(d time.Duration) { <-time.After(d) }
