package payments

import (
	"testing"
	"testing/synctest"
	"time"
)

// Looking through all may take too long while a long transaction keeps what is dead. What became due
// lately is claimed nevertheless.
func TestFailedFullClaimIsPutOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c claims
		<-time.After(time.Second)
		if from := c.start(); from != nil {
			t.Errorf("the first claim starts at %s", from)
		}
		if from := c.start(); from == nil || time.Since(*from) < claimMargin { // the first has failed
			t.Errorf("the second one starts at %v", from)
		}
		<-time.After(fullClaimAgain + 1)
		if c.start() != nil {
			t.Error("it is never tried again")
		}

		until := time.Now()
		c.done(true, until, 3*time.Second)
		<-time.After(3*fullClaimShare*time.Second - 1)
		if from := c.start(); from == nil || !from.Equal(until.Add(-claimMargin)) {
			t.Errorf("it takes all of the time: %v", from)
		}
		<-time.After(2)
		if c.start() != nil {
			t.Error("it is never tried again")
		}
		c.done(true, time.Now(), 15*time.Second)
		<-time.After(fullClaimAtMost + 1)
		if c.start() != nil {
			t.Error("one that waited for its COMMIT hides what is old for minutes")
		}
		c.done(true, time.Now(), time.Millisecond)
		<-time.After(fullClaimEvery + 1)
		if c.start() != nil {
			t.Error("what is old waits too long")
		}
	})
}
