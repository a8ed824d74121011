package main

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/oncepay/oncepay/internal/invariant"
	"github.com/oncepay/oncepay/internal/traffic"
	"github.com/oncepay/oncepay/tools/rig"
)

// goodRun is one to which there is nothing to object.
func goodRun() (*soaking, invariant.Report) {
	w := newWindow("end", time.Now(), time.Minute, 0, 1)
	w.took.Record(1)
	s := &soaking{
		kills: 5, promotions: 1, instances: []*instance{{name: "relay-1"}},
		load: &traffic.Load{History: &traffic.History{}}, tail: &tail{windows: []*window{w}},
	}
	return s, invariant.Report{
		Lines:    []invariant.Line{{Name: invariant.EventsLost, Of: 100}},
		Captured: 5, Canceled: 2, Expired: 3, Refunds: 4,
	}
}

// TestSoakObjects: each change alone makes a good run a bad one.
func TestSoakObjects(t *testing.T) {
	t.Parallel()
	s, r := goodRun()
	if err := s.objections(r); err != nil {
		t.Errorf("to a good run: %v", err)
	}
	for want, spoil := range map[string]func(*soaking, *invariant.Report){
		"not clean":         func(_ *soaking, r *invariant.Report) { r.Lines[0].Wrong = 1 },
		"looked at nothing": func(_ *soaking, r *invariant.Report) { r.Lines[0].Of = 0 },
		"never had an answer": func(s *soaking, _ *invariant.Report) {
			s.load.History.Unknown.Add(1)
		},
		"an operator was needed": func(s *soaking, _ *invariant.Report) {
			s.instances[0].found(errors.New("refused"))
		},
		"3 relays were killed":    func(s *soaking, _ *invariant.Report) { s.kills = 3 },
		"0 standbys promoted":     func(s *soaking, _ *invariant.Report) { s.promotions = 0 },
		"no payment was captured": func(_ *soaking, r *invariant.Report) { r.Captured = 0 },
		"no payment was canceled": func(_ *soaking, r *invariant.Report) { r.Canceled = 0 },
		"no payment was expired":  func(_ *soaking, r *invariant.Report) { r.Expired = 0 },
		"no payment was refunded": func(_ *soaking, r *invariant.Report) { r.Refunds = 0 },
		"no payment arrived at": func(s *soaking, _ *invariant.Report) {
			s.tail.windows[0].took.Reset()
		},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			s, r := goodRun()
			spoil(s, &r)
			if err := s.objections(r); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestWrongFlagIsOneLine(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-colour"}, {"-for", "10s"}, {"-rate", "5"}, {"now"}} {
		var stdout, stderr bytes.Buffer
		code := rig.Run(t.Context(), "soak", args, &stdout, &stderr, command)
		if code != 1 || strings.Count(stderr.String(), "\n") != 1 || stdout.Len() > 0 {
			t.Errorf("soak %v: exit code %d, %q, %q", args, code, stderr.String(), stdout.String())
		}
	}
}
