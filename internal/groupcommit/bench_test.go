package groupcommit_test

import (
	"context"
	"strconv"
	"testing"

	"github.com/oncepay/oncepay/internal/groupcommit"
)

// BenchmarkDo is what the group itself costs: nothing is committed.
func BenchmarkDo(b *testing.B) {
	for _, callers := range []int{1, 256} {
		b.Run(strconv.Itoa(callers), func(b *testing.B) {
			ctx, cancel := context.WithCancel(b.Context())
			g := groupcommit.New(func(_ context.Context, items []int) ([]int, error) { return items, nil }, groupcommit.Options{})
			ended := make(chan error)
			go func() { ended <- g.Run(ctx) }()
			b.ReportAllocs()
			b.SetParallelism(callers) // times GOMAXPROCS
			if callers == 1 {
				for b.Loop() {
					_, _ = g.Do(ctx, 1)
				}
			} else {
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						_, _ = g.Do(ctx, 1)
					}
				})
			}
			cancel()
			if err := <-ended; err != nil {
				b.Error(err)
			}
		})
	}
}
