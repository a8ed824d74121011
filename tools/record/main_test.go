package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatACommandPrintedStandsInTheDrawingLineByLine(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.svg")
	var stdout, stderr bytes.Buffer
	script := `for i in $(seq 50); do echo "line $i <&>"; done; printf '%0150d\n' 7`
	if code := run(t.Context(), []string{file, "sh", "-c", script}, &stdout, &stderr); code != 0 {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	drawn, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	texts := textsOf(t, drawn)
	long := strings.Repeat("0", 149) + "7"
	want := strings.Split(strings.TrimSpace(stdout.String()), "\n")
	want = append(want[:50], long[:columns], long[columns:])
	if got := strings.Join(texts[1:], "\n"); got != strings.Join(want, "\n") {
		t.Errorf("drawn:\n%s", got)
	}
}

// textsOf parses an SVG and returns what its text elements say.
func textsOf(t *testing.T, svg []byte) (texts []string) {
	t.Helper()
	inText := false
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return texts
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			if inText = token.Name.Local == "text"; inText {
				texts = append(texts, "")
			}
		case xml.EndElement:
			inText = false
		case xml.CharData:
			if inText {
				texts[len(texts)-1] += string(token)
			}
		}
	}
}

func TestWhatCannotBeRecordedIsOneLineAndLeavesTheOldPicture(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.svg")
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{}, {file}, {file, "no-such-command"}, {file, "false"}, {file + "/below", "true"}} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), args, &stdout, &stderr); code != 1 || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("record %v: exit code %d, %q", args, code, stderr.String())
		}
	}
	if kept, err := os.ReadFile(file); err != nil || string(kept) != "old" {
		t.Errorf("%v %q", err, kept)
	}
}
