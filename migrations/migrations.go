// Package migrations holds the schema: one goose file per package, which a copier of the package takes along, and the
// roles that tie them together.
//
// Until the first tag the files are edited in place; after it, only new files are added, and each must be safe in three
// states: not applied, applied with the old programs running, applied with the new ones. A file says in its head which
// programs it serves:
//
//	-- oldest program: 8
//
// A program's version is that of the last file it was built with. Programs from 8 on start on this schema, so that a
// deploy can go on and be taken back while the schema stays. A file without the line serves no older program, and the
// newest program that any file names is the oldest that may start.
package migrations

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"regexp"
	"strconv"
	"strings"
)

// FS holds the SQL files, at its root.
//
//go:embed *.sql
var FS embed.FS

// Version returns the version of the last file.
func Version() int64 {
	all := files()
	return all[len(all)-1].version
}

// Hash identifies the content of all files together: a template database made from them carries it in its name.
func Hash() string {
	h := sha256.New()
	for _, f := range files() {
		fmt.Fprintf(h, "%s %d\n%s", f.name, len(f.text), f.text)
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// file is one file of the schema.
type file struct {
	version int64
	name    string
	text    string
}

// files returns all of them in their order.
func files() (all []file) {
	names, _ := fs.Glob(FS, "*.sql") // sorted; the pattern is well-formed
	for _, name := range names {
		text, _ := FS.ReadFile(name) // embedded: cannot fail
		version, _ := strconv.ParseInt(name[:strings.IndexByte(name, '_')], 10, 64)
		all = append(all, file{version, name, string(text)})
	}
	return all
}

func (f file) hash() string {
	sum := sha256.Sum256([]byte(f.text))
	return hex.EncodeToString(sum[:])
}

var oldestProgram = regexp.MustCompile(`(?m)^-- oldest program: (\d+)$`)

// oldest is the version of the oldest program that the schema serves with this file.
func (f file) oldest() int64 {
	if found := oldestProgram.FindStringSubmatch(f.text); found != nil {
		n, _ := strconv.ParseInt(found[1], 10, 64)
		return n
	}
	return f.version
}

// concurrent reports whether the file runs outside a transaction, because it builds indexes CONCURRENTLY.
func (f file) concurrent() bool { return strings.Contains(f.text, "\n-- +goose NO TRANSACTION\n") }
