package structure

import "strings"

// commands returns the code blocks of a Markdown text: what is indented by four columns and begins
// a paragraph or a list's, and what is fenced.
func commands(text string) (blocks []string) {
	var block strings.Builder
	before, fence, margin := "", false, 0
	flush := func() {
		if block.Len() > 0 {
			blocks = append(blocks, strings.TrimRight(block.String(), "\n"))
		}
		block.Reset()
	}
	for line := range strings.Lines(text + "\n") {
		line = strings.TrimRight(line, "\n")
		spaces := len(line) - len(strings.TrimLeft(line, " "))
		switch {
		case strings.HasPrefix(strings.TrimSpace(line), "```"):
			fence = !fence
			flush()
		case fence:
			block.WriteString(line + "\n")
		case block.Len() == 0 && before == "" && spaces >= 4:
			margin = spaces
			block.WriteString(line[margin:] + "\n")
		case block.Len() > 0 && (line == "" || spaces >= margin):
			block.WriteString(line[min(margin, len(line)):] + "\n")
		default:
			flush()
		}
		before = line
	}
	flush()
	return blocks
}
