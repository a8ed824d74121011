package relay

import (
	"context"
	"fmt"
)

// Publisher sends messages to a broker, for one term of one leader.
type Publisher interface {
	// Publish sends batch and waits. Nil means: every message is durable, messages of one aggregate
	// are in the order of the batch, and next, which is behind the batch, is kept on the broker's
	// side: with the batch (exactly-once) or some batches later. An empty batch keeps next at once.
	//
	// A BatchError says what became of a part of it. After any error but one that is Unsent,
	// the Publisher is closed and not used again.
	Publish(ctx context.Context, batch []Message, next Progress) error
	Close()
}

// BatchError says that the broker took some of a batch before an outage, or all but the progress; or
// that it refuses a message for what it is, too large or invalid, so that retrying is useless.
type BatchError struct {
	Durable int   // how many at the beginning of the batch are durable; some behind them may be
	Refused bool  // the broker refused, and nothing else failed
	Index   int   // the first of the batch that was refused
	Unsent  bool  // it was refused before anything of the batch was sent
	Ahead   []int // those behind Index that are durable although it is not
	Err     error
}

func (e *BatchError) Error() string {
	if e.Refused {
		return fmt.Sprintf("event %d of a batch was refused: %v", e.Index+1, e.Err)
	}
	return e.Err.Error()
}

func (e *BatchError) Unwrap() error { return e.Err }

// TopicError says that a topic is missing, or that the relay may not write to it. It is an outage:
// the relay skips nothing and waits until the topic is usable.
type TopicError struct {
	Topic string
	Err   error
}

func (e *TopicError) Error() string { return fmt.Sprintf("topic %s: %v", e.Topic, e.Err) }

func (e *TopicError) Unwrap() error { return e.Err }

// PartitionsError says that a topic's partitions are not as many as when its events were sent: an
// aggregate's next event would go to another partition than the ones before it.
type PartitionsError struct {
	Topic     string
	Sent, Now int32
	GoingOn   bool // with Now: all events that were sent are acknowledged
}

func (e *PartitionsError) Error() string {
	text := fmt.Sprintf("it has %d partitions now, its events were sent with %d", e.Now, e.Sent)
	if e.GoingOn {
		return text + "; they are all acknowledged, so the relay goes on with the new number"
	}
	return text + ": see \"More partitions\" in docs/operating.md"
}

// BrokerError says that a term ended because of the broker and not the database: it cannot be
// reached, does not answer, or did not take a batch. It may wrap a TopicError or a BatchError.
type BrokerError struct{ Err error }

func (e *BrokerError) Error() string { return e.Err.Error() }

func (e *BrokerError) Unwrap() error { return e.Err }
