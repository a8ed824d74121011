package testenv

import (
	"context"
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Example gives an executable example, which has no testing.TB, a database like Database's with
// additional tables, and a pool as its owner. done closes the pool and drops the database. Failures
// panic.
func Example(tables string) (pool *pgxpool.Pool, done func()) {
	tb := &exampleTB{}
	pool = Database(tb).Pool(tb, "")

	if _, err := pool.Exec(context.Background(), tables); err != nil {
		panic(fmt.Sprintf("make the tables of an example: %v", err))
	}
	return pool, tb.cleanUp
}

// exampleTB implements as much of testing.TB as this package uses.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                    {}
func (*exampleTB) Log(...any)                 {}
func (*exampleTB) Fatal(args ...any)          { panic(fmt.Sprint(args...)) }
func (*exampleTB) Fatalf(f string, as ...any) { panic(fmt.Sprintf(f, as...)) }
func (*exampleTB) Errorf(f string, as ...any) { panic(fmt.Sprintf(f, as...)) }
func (e *exampleTB) Cleanup(f func())         { e.cleanups = append(e.cleanups, f) }

func (e *exampleTB) cleanUp() {
	// Last in, first out, as in a test: the pool closes before its database is dropped.
	for len(e.cleanups) > 0 {
		last := len(e.cleanups) - 1
		e.cleanups[last]()
		e.cleanups = e.cleanups[:last]
	}
}
