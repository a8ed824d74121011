package main

import (
	"bytes"
	"fmt"
	"html"
	"strings"
	"time"
	"unicode/utf8"
)

// The terminal, in characters and pixels.
const (
	rows       = 30
	columns    = 104
	charWidth  = 7.83 // of 13 px monospace
	lineHeight = 18
	margin     = 16
	titleBar   = 34
)

// Waiting is cut short: nothing is to be seen while a program is being built.
const (
	longestPause = 900 * time.Millisecond
	hold         = 12 * time.Second // at the end, before it begins again
)

const style = `text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;white-space:pre;fill:#c9d1d9}
.prompt{fill:#7ee787}.kill{fill:#ff7b72;font-weight:bold}.good{fill:#7ee787}.dim{fill:#8b949e}
@media (prefers-reduced-motion:reduce){*{animation:none!important}}
`

// draw makes the SVG. What cannot animate shows the end.
func draw(command []string, lines []line) []byte {
	lines = append([]line{{"$ " + strings.Join(command, " "), 0}}, wrap(hurry(lines))...)
	total := lines[len(lines)-1].at + hold
	screen := columns * charWidth
	w, h := int(screen)+2*margin, titleBar+rows*lineHeight+margin

	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		w, h, w, h, html.EscapeString("A terminal: "+strings.Join(command, " ")))
	fmt.Fprintf(&b, "<style>\n%s", style)
	percent := func(at time.Duration) float64 { return 100 * at.Seconds() / total.Seconds() }
	// The page scrolls by a line whenever one is printed below the last row; the lines of the first page appear one by one.
	fmt.Fprintf(&b, "#page{transform:translateY(-%dpx);animation:scroll %.1fs step-end infinite}\n@keyframes scroll{0%%{transform:none}\n",
		max(0, len(lines)-rows)*lineHeight, total.Seconds())
	for i := rows; i < len(lines); i++ {
		fmt.Fprintf(&b, "%.2f%%{transform:translateY(-%dpx)}\n", percent(lines[i].at), (i-rows+1)*lineHeight)
	}
	b.WriteString("}\n")
	for i := range lines[:min(rows, len(lines))] {
		fmt.Fprintf(&b, "#l%d{animation:a%d %.1fs step-end infinite}@keyframes a%d{0%%{opacity:0}%.2f%%{opacity:1}}\n", i, i, total.Seconds(), i, percent(lines[i].at))
	}
	b.WriteString("</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#0d1117"/><g fill="#30363d"><circle cx="20" cy="17" r="6"/><circle cx="40" cy="17" r="6"/><circle cx="60" cy="17" r="6"/></g>`+"\n", w, h)
	fmt.Fprintf(&b, `<clipPath id="screen"><rect x="0" y="%d" width="%d" height="%d"/></clipPath><g clip-path="url(#screen)"><g id="page">`+"\n", titleBar, w, rows*lineHeight+4)
	for i, l := range lines {
		fmt.Fprintf(&b, `<text id="l%d" x="%d" y="%d"%s>%s</text>`+"\n", i, margin, titleBar+(i+1)*lineHeight-4, class(l.text), html.EscapeString(l.text))
	}
	b.WriteString("</g></g>\n</svg>\n")
	return b.Bytes()
}

// wrap breaks lines that are longer than the terminal is wide.
func wrap(lines []line) []line {
	var wrapped []line
	for _, l := range lines {
		for text := []rune(l.text); ; {
			n := min(len(text), columns)
			if n < len(text) { // behind a word, or a member of an object
				if at := strings.LastIndexAny(string(text[:n]), " ,"); at > 0 {
					n = utf8.RuneCountInString(string(text[:n])[:at+1])
				}
			}
			wrapped = append(wrapped, line{string(text[:n]), l.at})
			if text = text[n:]; len(text) == 0 {
				break
			}
		}
	}
	return wrapped
}

// hurry shortens long pauses.
func hurry(lines []line) []line {
	var hurried []line
	var before, now time.Duration
	for _, l := range lines {
		now += min(l.at-before, longestPause)
		before = l.at
		hurried = append(hurried, line{l.text, now})
	}
	return hurried
}

func class(text string) string {
	switch {
	case strings.HasPrefix(text, "$ "):
		return ` class="prompt"`
	case strings.Contains(text, "SIGKILL"), strings.Contains(text, "WRONG"):
		return ` class="kill"`
	case strings.HasPrefix(text, "ok "), strings.HasPrefix(text, `{"ok":true`), strings.HasPrefix(text, "done"), strings.Contains(text, "runs again"):
		return ` class="good"`
	case strings.Contains(text, "payments/s"):
		return ` class="dim"`
	}
	return ""
}
