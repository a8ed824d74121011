package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// The files of a day. Each has the names of its columns in the first line.
const (
	paymentsFile = "payments.csv.gz"
	refundsFile  = "refunds.csv.gz"
	commandsFile = "payment_commands.csv.gz"
	entriesFile  = "ledger_entries.csv.gz"
	manifestFile = "manifest.json"
)

// files says what goes where. Refunds and commands leave with their payment, by the primary key and
// refunds_payment: a range of ids is a range of time. In the order of the table, so that deleting goes
// through it once.
var files = []struct{ name, query, sum string }{
	{paymentsFile, `SELECT * FROM payments WHERE processed_at >= {from} AND processed_at < {until} AND NOT ` + isOpen, "amount_minor"},
	{refundsFile, `SELECT * FROM refunds WHERE payment_id >= first_id({from}) AND payment_id < first_id({until})`, "amount_minor"},
	{commandsFile, `SELECT * FROM payment_commands WHERE payment_id >= first_id({from}) AND payment_id < first_id({until})`, "0"},
	{entriesFile, selectLeaving, "amount_minor"},
}

// manifest says what the archive of a day holds.
type manifest struct {
	Day      string `json:"day"`
	Database string `json:"database"` // the server's system_identifier, a slash, and the name
	Files    []file `json:"files"`
}

// file is one of them, as it was read back.
type file struct {
	Name        string `json:"name"`
	Rows        int64  `json:"rows"`
	AmountMinor string `json:"amount_minor"` // sum of the column of this name, of all currencies
	Bytes       int64  `json:"bytes"`
	SHA256      string `json:"sha256"`
}

func (m manifest) file(name string) file {
	i := slices.IndexFunc(m.Files, func(f file) bool { return f.Name == name })
	if i < 0 {
		return file{}
	}
	return m.Files[i]
}

func dayFolder(dir string, day time.Time) string {
	return filepath.Join(dir, day.Format(time.DateOnly))
}

// copyOut writes the rows of query to a file, and returns what it holds when it is read back.
func copyOut(ctx context.Context, tx pgx.Tx, folder, name, query string) (file, error) {
	path := filepath.Join(folder, name)
	err := writeFile(path, func(out io.Writer) error {
		packed, _ := gzip.NewWriterLevel(out, gzip.BestSpeed) // the level is a right one
		command := "COPY (" + query + ") TO STDOUT WITH (FORMAT csv, HEADER)"
		_, err := tx.Conn().PgConn().CopyTo(ctx, packed, command)
		return errors.Join(err, packed.Close())
	})
	if err != nil {
		return file{}, err
	}
	return readBack(path, nil)
}

// writeFile writes a file to the disk. Nobody else may read it: it has the payments of all tenants.
func writeFile(path string, write func(io.Writer) error) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(write(out), out.Sync(), out.Close())
}

// syncFolder puts names of files on the disk, too: a file that is there has none after a power cut.
func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// readBack reads a file to its end and says what it holds. Each row goes to each, by its columns.
func readBack(path string, each func(row map[string]string) error) (f file, err error) {
	in, err := os.Open(path)
	if err != nil {
		return f, err
	}
	defer in.Close()

	hash := sha256.New()
	packed := io.TeeReader(in, hash)
	rows, err := gzip.NewReader(packed)
	if err != nil {
		return f, fmt.Errorf("read %s: %w", path, err)
	}
	sum, err := f.count(csv.NewReader(rows), each)
	if err != nil {
		return f, fmt.Errorf("read %s: %w", path, err)
	}
	if _, err := io.Copy(io.Discard, packed); err != nil {
		return f, err
	}

	at, err := in.Stat()
	if err != nil {
		return f, err
	}
	f.Name, f.Bytes, f.AmountMinor = filepath.Base(path), at.Size(), sum.String()
	f.SHA256 = hex.EncodeToString(hash.Sum(nil))
	return f, nil
}

func (f *file) count(rows *csv.Reader, each func(map[string]string) error) (*big.Int, error) {
	rows.ReuseRecord = true
	sum, amount := new(big.Int), new(big.Int) // of all currencies: may be more than an int64
	header, err := rows.Read()
	if err != nil {
		return nil, err
	}
	header = slices.Clone(header)
	amounts := slices.Index(header, "amount_minor")

	row := make(map[string]string, len(header))
	for {
		cells, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return nil, err
		}

		f.Rows++
		if amounts >= 0 {
			if _, ok := amount.SetString(cells[amounts], 10); !ok {
				return nil, fmt.Errorf("row %d: %q is no amount", f.Rows, cells[amounts])
			}
			sum.Add(sum, amount)
		}
		if each == nil {
			continue
		}
		for i, name := range header {
			row[name] = cells[i]
		}
		if err := each(row); err != nil {
			return nil, err
		}
	}
}

// write writes the manifest and returns its hash.
func (m manifest) write(folder string) ([]byte, error) {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}

	text = append(text, '\n')
	err = writeFile(filepath.Join(folder, manifestFile), func(out io.Writer) error {
		_, err := out.Write(text)
		return err
	})
	hash := sha256.Sum256(text)
	return hash[:], err
}

// readManifest reads the manifest of a day, which must have the hash that the database has.
func readManifest(folder string, hash []byte) (m manifest, err error) {
	text, err := os.ReadFile(filepath.Join(folder, manifestFile))
	if err != nil {
		return m, fmt.Errorf("%w: --to must be the folder that the day was copied to", err)
	}
	if sum := sha256.Sum256(text); !bytes.Equal(sum[:], hash) {
		return m, fmt.Errorf("%s is not the manifest that was written: nothing was deleted of this day", folder)
	}
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("read the manifest of %s: %w", folder, err)
	}
	return m, nil
}
