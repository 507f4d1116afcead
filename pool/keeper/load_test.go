package keeper

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/store/nats"
)

// BenchmarkSubmits submits 1,000 jobs in a second to a keeper whose record is on the disk, while
// none or 10,000 jobs wait. It reports how long the answers take, in milliseconds: an answer comes
// when the pool has decided and the job is on the disk.
func BenchmarkSubmits(b *testing.B) {
	for _, waiting := range []int{0, 10_000} {
		b.Run(fmt.Sprint(waiting), func(b *testing.B) {
			h := newHost1(b)
			record, err := nats.Open(b.TempDir())
			if err != nil {
				b.Fatal(err)
			}
			defer record.Close()
			if err := syscall.Mkfifo(filepath.Join(h.work, "gate"), 0o600); err != nil {
				b.Fatal(err)
			}
			k := h.start(record)
			<-k.up
			defer func() { k.cancel(); <-k.ended }()
			h.load(2, 0)
			h.until("two jobs that have the slots", func() bool {
				return starts(b, h.work, "job-1") == 1
			})
			h.load(waiting, 0)
			for b.Loop() {
				times := h.load(1000, time.Millisecond)
				b.ReportMetric(times[500], "p50-ms")
				b.ReportMetric(times[990], "p99-ms")
			}
		})
	}
}

// load submits so many jobs, one after each pause, whatever has come of those before, and returns
// in ascending order how many milliseconds their answers took. Without a pause 32 at a time are
// waited for.
func (h *host1) load(jobs int, pause time.Duration) (times []float64) {
	h.t.Helper()
	type answered struct {
		after time.Duration
		err   error
	}
	list, turns := make(chan answered, jobs), make(chan struct{}, 32)
	g := group.New(context.Background())
	began := time.Now()
	for i := range jobs {
		at := began.Add(time.Duration(i) * pause)
		if pause == 0 {
			turns <- struct{}{}
		} else {
			<-time.After(time.Until(at))
		}
		g.Go("submit", func(ctx context.Context) error {
			q := Request{Spec: fmt.Sprintf("name: job-%d\ncommand: [fake]\n", i), Dir: h.work,
				Env: []string{"FAKE=waits"}, Who: "ada"}
			err := Call(ctx, "lab", PathSubmit, q, new(pool.Answer))
			list <- answered{time.Since(at), err}
			if pause == 0 {
				<-turns
			}
			return nil
		})
	}
	for range jobs {
		a := <-list
		if a.err != nil {
			h.t.Fatal(a.err)
		}
		times = append(times, float64(a.after)/float64(time.Millisecond))
	}
	_ = g.Wait()
	slices.Sort(times)
	return times
}
