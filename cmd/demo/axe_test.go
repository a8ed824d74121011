package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// axe-core finds what makes a page hard to use with a screen reader or a keyboard, or hard to read.
const (
	axeVersion   = "4.14.1"
	axeIntegrity = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ==" // as npm publishes it
)

// axeCore returns its source, which is downloaded once. Without a network the empty text comes back,
// in CI the test fails.
func axeCore(t *testing.T) string {
	t.Helper()
	source, err := readAxe()
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatalf("axe-core: %v", err)
	case err != nil:
		t.Logf("NO AXE-CORE: names and 360 pixels are tested, the rest of accessibility is not: %v", err)
	}
	return source
}

func readAxe() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	kept := filepath.Join(cache, "oncepay", "axe-core-"+axeVersion+".tgz")
	packed, err := os.ReadFile(kept)
	if errors.Is(err, os.ErrNotExist) {
		if packed, err = downloadAxe(); err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(kept), 0o700), os.WriteFile(kept, packed, 0o600))
		}
	}
	if err != nil {
		return "", err
	}

	sum := sha512.Sum512(packed)
	if got := base64.StdEncoding.EncodeToString(sum[:]); got != axeIntegrity {
		return "", fmt.Errorf("%s is another file: delete it", kept)
	}
	unzipped, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", err
	}
	for files := tar.NewReader(unzipped); ; {
		file, err := files.Next()
		if err != nil {
			return "", err
		}
		if file.Name == "package/axe.min.js" {
			source, err := io.ReadAll(files)
			return string(source), err
		}
	}
}

func downloadAxe() ([]byte, error) {
	client := &http.Client{Timeout: time.Minute}
	answer, err := client.Get("https://registry.npmjs.org/axe-core/-/axe-core-" + axeVersion + ".tgz")
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New("npm answers " + answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// violation is a rule that the page breaks.
type violation struct {
	ID, Help string
	Nodes    []struct{ Target []any }
}

// hasNoViolation: axe-core finds none in the page as it is now.
func (b *browser) hasNoViolation(state string) {
	b.t.Helper()
	if b.axe == "" {
		return
	}
	if !value[bool](b, `typeof axe === 'object'`) {
		value[string](b, b.axe+"; ''")
	}
	found := get(b, chromedp.Evaluate[[]violation](`axe.run().then((found) => found.violations)`,
		func(p *runtime.EvaluateParams) { await := true; p.AwaitPromise = &await }))
	for _, v := range found {
		var at []string
		for _, n := range v.Nodes {
			at = append(at, fmt.Sprint(n.Target...))
		}
		b.t.Errorf("%s: %s: %s, at %s", state, v.ID, v.Help, strings.Join(at, ", "))
	}
}
