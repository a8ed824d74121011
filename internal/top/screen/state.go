package screen

import (
	"fmt"
	"strings"

	"github.com/oncepay/oncepay/internal/top"
)

// state is how a part of the chain is: a sign, and words that say the same.
type state struct {
	sign  string
	color func(string) string
	words string // what is
	more  string // what else is worth a line's rest
}

// The signs differ in shape, not only in color.
const (
	signGood = "●"
	signWarn = "▲"
	signBad  = "✗"
)

func (d *drawing) head(name string, s state) {
	l := line{}.add(name, d.strong).to(gutter).add(s.sign+" "+cut(clean(s.words), d.Width-gutter-2), s.color)
	if s.more != "" && l.width+3 < d.Width {
		l = l.add(cut(" · "+clean(s.more), d.Width-l.width), d.label)
	}
	d.put(l)
}

// instances returns those of a program that answer, and those that do not.
func (d *drawing) instances(program string) (up, down []top.Instance) {
	for _, i := range d.Figures.Instances {
		switch {
		case i.Program != program:
		case i.Problem == "":
			up = append(up, i)
		default:
			down = append(down, i)
		}
	}
	return up, down
}

func addresses(of []top.Instance) string {
	var all []string
	for _, i := range of {
		all = append(all, i.Address)
	}
	return strings.Join(all, ", ")
}

// programState is that of a program of which any instance may work.
func (d *drawing) programState(program string) state {
	up, down := d.instances(program)
	switch {
	case len(up) == 0 && len(down) == 0:
		return state{sign: signWarn, color: d.warn, words: "not looked at"}
	case len(up) == 0:
		return state{signBad, d.bad, "unreachable", addresses(down) + ": " + down[0].Problem}
	case len(down) > 0:
		words := fmt.Sprintf("%d of %d unreachable", len(down), len(up)+len(down))
		return state{signBad, d.bad, words, addresses(down) + ": " + down[0].Problem}
	case len(up) == 1:
		return state{signGood, d.good, "running", up[0].Address + " for " + up[0].Uptime.Age()}
	}
	return state{signGood, d.good, fmt.Sprintf("%d running", len(up)), addresses(up)}
}

func (d *drawing) apiState() state {
	s := d.programState(top.API)
	if n := d.Figures.API.New; n.Known() {
		s.more += " · " + n.Count() + " new since its start"
	}
	return s
}

// relayState names the leader; without one, the programs are what is to be looked at.
func (d *drawing) relayState(f top.RelayFigures) state {
	s := d.programState(top.Relay)
	up, _ := d.instances(top.Relay)
	if len(up) == 0 {
		return s
	}

	var leaders []top.Instance
	for _, i := range up {
		if i.Leads {
			leaders = append(leaders, i)
		}
	}

	switch {
	case len(leaders) == 0:
		return state{signWarn, d.warn, "nobody leads", s.more}
	case len(leaders) > 1:
		return state{signWarn, d.warn, "the lead changes", addresses(leaders) + " say they lead"}
	}
	if s.sign == signGood {
		s.words, s.more = "leading", leaders[0].Address+" for "+leaders[0].Uptime.Age()
		if f.StandBy > 0 {
			s.more += fmt.Sprintf(" · %d standing by", f.StandBy)
		}
	} else {
		s.words = "leading: " + leaders[0].Address + ", " + s.words
	}
	return s
}

func (d *drawing) cursor(o top.OutboxFigures) state {
	switch o.Cursor {
	case top.CursorMoves:
		return state{signGood, d.good, "moving", "Kafka acknowledges events"}
	case top.CursorAtEnd:
		return state{signGood, d.good, "at the end", "nothing waits to be sent"}
	case top.CursorStands:
		return state{signWarn, d.warn, "standing still", "events wait, none is acknowledged"}
	}
	return state{signWarn, d.warn, "unknown", "the relays measure it"}
}
