package traffic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/oncepay/oncepay/internal/outbox"
)

// A payment has one event, so a relay cannot get its order wrong. Parcels have many. They stand
// in for another service that writes to the same outbox and commits late, so that its events
// become visible after those with higher ids.
const (
	parcels     = "parcels" // aggregate type
	carriers    = 4         // each has its own parcels, so they move in the order of its commits
	eachCarries = 3
	moves       = 3 // events in one transaction
)

// MoveParcels writes events of parcels as the schema's owner at url until soft ends. It rides out
// outages of the database.
func MoveParcels(
	soft, hard context.Context, url string, brokers []string, topicPrefix string,
) error {
	if err := makeTopic(hard, brokers, topicPrefix+parcels); err != nil {
		return err
	}

	g, hard := errgroup.WithContext(hard)
	for range carriers {
		g.Go(func() error { return carry(soft, hard, url) })
	}

	return g.Wait()
}

func makeTopic(ctx context.Context, brokers []string, name string) error {
	admin, err := kadm.NewOptClient(kgo.SeedBrokers(brokers...))
	if err != nil {
		return fmt.Errorf("make topic %s: %w", name, err)
	}
	defer admin.Close()

	_, err = admin.CreateTopic(ctx, 12, -1, nil, name)
	if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) { // an earlier demo may have made it
		return fmt.Errorf("make topic %s: %w", name, err)
	}
	return nil
}

// carry moves parcels until soft ends. A failed transaction may have committed, so it continues
// with new parcels.
func carry(soft, hard context.Context, url string) error {
	for well := time.Now(); soft.Err() == nil; {
		moved, err := carryOn(soft, hard, url)
		if moved {
			well = time.Now()
		}

		// An outage may last for patience. Then the run has failed.
		if err != nil && (hard.Err() != nil || time.Since(well) > patience) {
			return fmt.Errorf("move a parcel: %w", err)
		}
		if err != nil {
			Pause(soft, 100*time.Millisecond)
		}
	}
	return nil
}

// carryOn moves parcels on one connection until soft ends or a transaction fails, and reports
// whether any was moved.
func carryOn(soft, hard context.Context, url string) (moved bool, err error) {
	connecting, cancel := context.WithTimeout(hard, patience/3)
	defer cancel()

	conn, err := pgx.Connect(connecting, url)
	if err != nil {
		return false, fmt.Errorf("connect to the database: %w", err)
	}
	defer conn.Close(context.WithoutCancel(hard))

	// New ids for each connection: after a failure, the old parcels' next version is unknown.
	var ids [eachCarries]string
	for i := range ids {
		ids[i] = uuid.NewString()
	}

	for n := 0; soft.Err() == nil; n++ {
		version := int64(n/eachCarries)*moves + 1
		err := pgx.BeginFunc(hard, conn, func(tx pgx.Tx) error {
			var events []outbox.Event
			for v := range int64(moves) {
				events = append(events, outbox.Event{
					ID: uuid.Must(uuid.NewV7()), AggregateType: parcels, AggregateID: ids[n%eachCarries],
					AggregateVersion: version + v, Type: "parcel.moved", Payload: []byte(`{}`),
				})
			}

			err := outbox.Append(hard, tx, events)
			Pause(hard, rand.N(50*time.Millisecond)) // meanwhile the others commit higher ids
			return err
		})
		if err != nil {
			return moved, err
		}

		moved = true
		Pause(hard, rand.N(50*time.Millisecond))
	}
	return moved, nil
}

// Pause returns after d, or when ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()

	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
