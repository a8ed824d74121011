package outbox_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/oncepay/oncepay/internal/outbox"
	"github.com/oncepay/oncepay/internal/testenv"
)

// A parcel moves, and an event says so: both, or neither. Nothing else is needed here; a Relay, in a process of its own,
// publishes what was committed.
func ExampleAppend() {
	db, done := testenv.Example(`CREATE TABLE parcels (id text PRIMARY KEY, place text NOT NULL CHECK (place <> ''), version bigint NOT NULL DEFAULT 1)`)
	defer done()

	routes := http.NewServeMux()
	routes.HandleFunc("PUT /parcels/{id}/place", func(w http.ResponseWriter, r *http.Request) {
		place, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 100)) // before the transaction: a client may be slow
		if err != nil {
			http.Error(w, "the body cannot be read or is too large", http.StatusBadRequest)
			return
		}
		id, ctx := r.PathValue("id"), context.WithoutCancel(r.Context()) // a client that leaves must not cancel a COMMIT
		err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			// First the parcel's row, which stays locked until the end, then its event: so its events keep their order.
			var version int64
			if err := tx.QueryRow(ctx, `INSERT INTO parcels (id, place) VALUES ($1, $2)
				ON CONFLICT (id) DO UPDATE SET place = excluded.place, version = parcels.version + 1
				RETURNING version`, id, string(place)).Scan(&version); err != nil {
				return err
			}
			payload, err := json.Marshal(map[string]string{"parcel": id, "place": string(place)})
			if err != nil {
				return err
			}
			return outbox.Append(ctx, tx, []outbox.Event{{
				ID: uuid.Must(uuid.NewV7()), AggregateType: "parcels", AggregateID: id, AggregateVersion: version,
				Type: "parcel.moved", Payload: payload,
			}})
		})
		if err != nil {
			http.Error(w, "nothing is known to have moved", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent) // after COMMIT, never before
	})
	server := httptest.NewServer(routes)
	defer server.Close()

	put(server.URL+"/parcels/p1/place", "Rome")
	put(server.URL+"/parcels/p1/place", "") // refused by the table
	put(server.URL+"/parcels/p2/place", "Oslo")
	put(server.URL+"/parcels/p1/place", "Paris")
	// What a Relay would read: keyed by aggregate, in the order of the commits.
	rows, _ := db.Query(context.Background(), `SELECT aggregate_id, aggregate_version, event_type, convert_from(payload, 'utf8') FROM outbox_events ORDER BY id`)
	var key, event, payload string
	var version int
	if _, err := pgx.ForEachRow(rows, []any{&key, &version, &event, &payload}, func() error {
		fmt.Println(key, version, event, payload)
		return nil
	}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// 204
	// 503
	// 204
	// 204
	// p1 1 parcel.moved {"parcel":"p1","place":"Rome"}
	// p2 1 parcel.moved {"parcel":"p2","place":"Oslo"}
	// p1 2 parcel.moved {"parcel":"p1","place":"Paris"}
}

func put(url, body string) {
	request, _ := http.NewRequestWithContext(context.Background(), http.MethodPut, url, strings.NewReader(body))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer response.Body.Close()
	fmt.Println(response.StatusCode)
}
