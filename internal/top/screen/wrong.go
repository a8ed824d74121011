package screen

import (
	"fmt"
	"unicode/utf8"

	"github.com/oncepay/oncepay/internal/top"
)

// wrong lists what is wrong as far as there is room, each with the heading to read.
func (d *drawing) wrong() {
	all := d.Figures.Wrong
	d.put(line{})

	if len(all) == 0 {
		if !d.Figures.At.IsZero() {
			l := line{}.add(signGood+" nothing is wrong", d.good)
			d.put(l.add(" · by the symptoms of docs/operating.md", d.label))
		}
		return
	}

	room := 2 * len(all)
	if d.Height > 0 {
		room = d.Height - 1 - len(d.lines)
	}
	oneLine := room < 2*len(all)
	for i, w := range all {
		if oneLine && i == room-1 && len(all) > room {
			d.put(line{}.add(fmt.Sprintf("  and %d more", len(all)-i), d.bad))
			return
		}
		d.symptom(w, oneLine)
	}
}

// symptom puts what is wrong at the left and what to read at the right, or below if there is room.
func (d *drawing) symptom(w top.Wrong, oneLine bool) {
	text, read := signBad+" "+clean(w.Text), " → "+w.Read
	width := d.Width - utf8.RuneCountInString(read)

	if long := utf8.RuneCountInString(text) > width; long && !oneLine {
		if d.Height > 0 {
			text = cut(text, d.Width)
		}
		d.put(line{}.add(text, d.bad))
		d.put(line{}.add(" "+read, d.label))
		return
	}
	d.put(line{}.add(cut(text, width), d.bad).to(width).add(read, d.label))
}
