package main

import (
	"syscall"
	"time"
)

// pause is exact to some 50 microseconds. A timer of Go may be a millisecond late on an idle process, as long as a whole request.
func pause(d time.Duration) {
	left := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&left, nil) // interrupted: the caller looks at the clock and comes again
}
