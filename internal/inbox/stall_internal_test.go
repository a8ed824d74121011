package inbox

import (
	"strings"
	"testing"
	"time"
)

// TestPartitionThatMovesIsNoStall: however slow it is. Each partition is looked at by itself.
func TestPartitionThatMovesIsNoStall(t *testing.T) {
	t.Parallel()
	var s stalls
	slow, stuck, quiet := partition{"things", 0}, partition{"things", 1}, partition{"things", 2}
	now, offset := time.Now(), int64(0)
	for n := range 100 {
		waiting := map[partition]int64{slow: offset, stuck: -1}
		if n%20 == 19 {
			offset++ // every 40 s
		}
		if n%15 > 0 {
			waiting[quiet] = 7 // now and then it has caught up
		}
		err := s.look(waiting, 50*time.Second, now)
		if want := n >= 25; (err != nil) != want {
			t.Fatalf("look %d: %v", n, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "things/1 at offset 0 for ") || strings.Contains(err.Error(), "things/0") || strings.Contains(err.Error(), "things/2")) {
			t.Fatalf("look %d: %v", n, err)
		}
		now = now.Add(2 * time.Second)
	}

	s.blame(stuck, "it is poisoned")
	s.blame(slow, "it was poisoned")
	if err := s.look(map[partition]int64{stuck: -1}, 50*time.Second, now); err == nil || !strings.HasSuffix(err.Error(), "(it is poisoned)") {
		t.Error(err)
	}
	s.moved(stuck)
	if err := s.look(nil, 50*time.Second, now); err != nil {
		t.Error(err)
	}
	if err := s.look(map[partition]int64{stuck: 3}, 50*time.Second, now.Add(time.Hour)); err != nil {
		t.Errorf("it has just begun to wait: %v", err)
	}
}
