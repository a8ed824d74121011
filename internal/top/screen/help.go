package screen

import "strings"

const help = `Figures are rates and quantiles of the last five seconds, or gauges as they are
now. – is not known: a program is unreachable, or was read only once.

  api       new: executed; replay: the stored answer again; progress: 409, the
            first attempt is in progress; mismatch: a key used for another
            request. Batches are transactions; the queue waits for one.
  outbox    waiting: events that Kafka has not acknowledged. writer: how long
            the oldest transaction that has written is open. days ahead: for
            how many days there are partitions.
  relay     send: a batch. ack: from the payment's transaction to Kafka's
            acknowledgement.
  consumer  lag: events of its partitions that it has not processed.
  worker    calls of the PSP, and operations without a result: pending, never
            sent; unknown, perhaps executed; operator, a person must decide.
            overdue: an authorization that is over and keeps its hold.
            due: how long the oldest webhook that could be sent waits.

  ● good   ▲ look again in a moment   ✗ wrong: read the heading behind →
           in docs/operating.md

  q quit   space pause and go on   ? this text`

// Help explains the screen.
func Help(width, height int, colors bool) string {
	d := drawing{View: View{Width: width, Height: height, Colors: colors}, theme: plain}
	if colors {
		d.theme = colored
	}

	d.put(line{}.add("oncepay top", d.strong))
	d.put(line{})
	for text := range strings.Lines(help) {
		d.put(line{}.add(cut(strings.TrimRight(text, "\n"), width), same))
	}
	return strings.Join(d.lines[:min(len(d.lines), max(height, 1))], "\n")
}
