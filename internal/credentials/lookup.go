package credentials

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	// Ids per query and the pause after each query: at most 5,000 ids a second, which cost Postgres
	// a few percent of a processor. An id looked up while nothing else is waits for neither. Not more
	// at a time: those who waited wake up together, and all other requests queue behind them.
	lookupBatch = 25
	lookupPause = 5 * time.Millisecond
	// How many ids never seen before may wait, 0.2 s at most. Further ones get ErrBusy.
	maxStrangers = 1000
	// How long a query may take before the next one is tried on another connection.
	lookupTimeout = 2 * time.Second
)

// lookups reads credentials for a Verifier, one query at a time for all ids that wait.
//
// Anyone can invent a well-formed token. A query for each would delay everyone's requests, and a
// quota would lock a new client out among a thousand strangers. So strangers wait together, and a
// new client with them; ids seen before go ahead of them.
type lookups struct {
	db    *pgxpool.Pool
	now   func() time.Time
	found func(id string, r *row, read time.Time)

	mu        sync.Mutex
	waiting   map[string]*lookup // in known or strangers, not yet queried
	known     []string
	strangers []string
	running   bool
}

// lookup is a question and, once done is closed, its answer.
type lookup struct {
	done chan struct{}
	row  *row // nil: there is no valid credential with that id
	err  error
}

// ask queues id for a query that has not begun yet, or returns ErrBusy.
func (l *lookups) ask(id string, known bool) (*lookup, error) {
	l.mu.Lock()
	defer l.mu.Unlock()

	// One look-up answers all who ask for the same id.
	if asked := l.waiting[id]; asked != nil {
		return asked, nil
	}

	switch {
	case known:
		l.known = append(l.known, id)
	case len(l.strangers) >= maxStrangers:
		return nil, ErrBusy
	default:
		l.strangers = append(l.strangers, id)
	}

	asked := &lookup{done: make(chan struct{})}
	l.waiting[id] = asked
	if !l.running { // run ends when nothing waits
		l.running = true
		go l.run()
	}
	return asked, nil
}

func (l *lookups) run() {
	for {
		batch := l.next()
		if len(batch) == 0 {
			return
		}
		l.answer(batch)
		<-time.After(lookupPause)
	}
}

// next takes the ids of the next query, known ones first.
func (l *lookups) next() map[string]*lookup {
	l.mu.Lock()
	defer l.mu.Unlock()

	batch := map[string]*lookup{}

	// Who asks for one of them from now on waits for the next query, which sees a later state.
	for _, queue := range []*[]string{&l.known, &l.strangers} {
		n := min(len(*queue), lookupBatch-len(batch))
		for _, id := range (*queue)[:n] {
			batch[id] = l.waiting[id]
			delete(l.waiting, id)
		}
		*queue = (*queue)[n:]
	}

	l.running = len(batch) > 0
	return batch
}

// By primary key, twice for each id.
const readCredentials = `
SELECT c.id, k.tenant_id, k.id, c.scopes, c.secret_hash, coalesce(m.state = 'left', false)
FROM credentials c JOIN clients k ON k.id = c.client_id
LEFT JOIN tenant_moves m ON m.tenant_id = k.tenant_id
WHERE c.id = ANY ($1::text[]) AND c.revoked_at IS NULL`

// answer looks up a batch and releases those who wait for it.
func (l *lookups) answer(batch map[string]*lookup) {
	ctx, cancel := context.WithTimeout(context.Background(), lookupTimeout)
	defer cancel()

	ids := make([]string, 0, len(batch))
	for id := range batch {
		ids = append(ids, id)
	}

	read := l.now()
	rows, _ := l.db.Query(ctx, readCredentials, ids) // ForEachRow returns the error

	var r row
	var hash []byte
	who := &r.identity
	columns := []any{&who.CredentialID, &who.TenantID, &who.ClientID, &who.Scopes, &hash, &r.left}
	_, err := pgx.ForEachRow(rows, columns, func() error {
		found := r
		copy(found.hash[:], hash)
		batch[who.CredentialID].row = &found
		return nil
	})

	// After an error none of the rows counts: the answer is unknown, not a refusal.
	for id, asked := range batch {
		if err != nil {
			asked.row, asked.err = nil, fmt.Errorf("look up credentials: %w", err)
		} else {
			l.found(id, asked.row, read)
		}
		close(asked.done)
	}
}
