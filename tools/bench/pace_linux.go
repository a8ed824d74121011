package main

import (
	"syscall"
	"time"
)

// pause is exact to some 50 microseconds at its end. A timer of Go may be a millisecond late on an
// idle process, as long as a whole request, so it returns before that, to be called again.
func pause(d time.Duration) {
	const late = 2 * time.Millisecond
	if d > late {
		<-time.After(d - late)
		return
	}

	left := syscall.NsecToTimespec(int64(d))
	_ = syscall.Nanosleep(&left, nil) // interrupted: it is called again
}
