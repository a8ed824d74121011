# Draws what demo-check prints, from its first kill to its verdict, as a terminal:
#
#	awk -f tools/terminal.awk OUTPUT > docs/demo.svg
#
# To keep the picture short, it shows two seconds after each restart and leaves out the others.
BEGIN {
	columns = 80
	lineHeight = 17
	top = 28

	draw("$ make demo-check", "#7ee787")
}

/SIGKILL/ { begun = 1; draw($0, "#ff7b72"); next }
/^ *pay\/s +made/ { if (!header++) draw($0, "#8b949e"); next }
!begun || /^{/ { next }
/^ *[0-9]+s    [a-z]/ { next } # progress of the count
/runs again/ { seconds = 2; draw($0, "#7ee787"); next }
/^ *[0-9]+s +[0-9]+ / { if (seconds-- > 0) draw($0, "#8b949e"); next }
/^(WRONG|none) / { draw($0, "#ff7b72"); next }
/^ok |nothing lost|books balance/ { draw($0, "#7ee787"); next }
/never happen/ { draw($0, "#8b949e"); next }
{ draw($0, "#c9d1d9") }

function draw(text, colour) {
	if (length(text) > columns) columns = length(text)
	gsub(/&/, "\\&amp;", text)
	gsub(/</, "\\&lt;", text)
	# Columns stay aligned in every viewer: not all of them keep plain spaces.
	gsub(/  /, "\\&#160;\\&#160;", text)
	sub(/^ /, "\\&#160;", text)
	lines++
	body = body sprintf("<text x=\"16\" y=\"%d\" fill=\"%s\">%s</text>\n", top + lines * lineHeight, colour, text)
}

END {
	width = columns * 7.83 + 32 # of 13 px monospace, and a margin
	height = top + lines * lineHeight + 16
	printf "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\"\n", width, height, width, height
	print " role=\"img\" aria-label=\"A terminal: six kills, and what was counted afterwards\""
	print " font-family=\"ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace\" font-size=\"13\">"
	print "<rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>"
	print "<g fill=\"#30363d\"><circle cx=\"20\" cy=\"17\" r=\"6\"/><circle cx=\"40\" cy=\"17\" r=\"6\"/><circle cx=\"60\" cy=\"17\" r=\"6\"/></g>"
	printf "%s</svg>\n", body
}
