package client

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
)

// What an agent would refuse is refused in a job of one too, so that a program which runs alone
// also runs with others.
func TestWrongCallsAreRefusedInAJobOfOne(t *testing.T) {
	job, ctx := joinAlone(t), t.Context()
	x, whole := make([]float32, 4), make([]int64, 2)
	for want, err := range map[string]error{
		"none is no way to reduce": AllReduce(ctx, job, x, collective.None),
		"-1 is not a number":       AllReduce(ctx, job, x, collective.Mean, Weight(-1)),
		"NaN is not a number":      AllReduce(ctx, job, x, collective.Mean, Weight(math.NaN())),
		"mean of i64":              AllReduce(ctx, job, whole, collective.Mean),
		"[3] does not hold the 4":  AllReduce(ctx, job, x, collective.Sum, Shape(3)),
		"[-4] does not hold the 4": AllReduce(ctx, job, x, collective.Sum, Shape(-4)),
		"2 split counts":           AllToAll(ctx, job, x, x, Splits(2, 2)),
		"add up to 3":              AllToAll(ctx, job, x, x, Splits(3)),
		"all_gather of 4":          AllGather(ctx, job, nil, x),
		"gather of 4":              Gather(ctx, job, nil, x, 0),
		"into 3":                   ReduceScatter(ctx, job, x[:3], x, collective.Sum),
		"with rank 1":              Broadcast(ctx, job, x, 1),
	} {
		if err == nil || !strings.Contains(err.Error(), want) || !errors.As(err, new(*CallError)) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// What the system has no memory for is refused in a job of one too, and does not end the process.
// Where the system promises any memory, there is some.
func TestMoreMemoryThanThereIsInAJobOfOne(t *testing.T) {
	job, n := joinAlone(t), maxBytes/4
	x, err := Empty[float32](job, n)
	y, err2 := Shared[float32](job, "x", n)
	for name, got := range map[string]struct {
		length int
		err    error
	}{"Empty": {len(x), err}, "Shared": {len(y), err2}} {
		refused := got.err != nil && strings.Contains(got.err.Error(), "check the shape")
		if !refused && (got.err != nil || got.length != n) {
			t.Errorf("%s: %d elements of %d, %v", name, got.length, n, got.err)
		}
	}
}

// What is right in a job of one is done there.
func TestRightCallsAreDoneInAJobOfOne(t *testing.T) {
	job, ctx := joinAlone(t), t.Context()
	x, out := []float32{1, 2}, make([]float32, 2)
	for _, err := range []error{
		AllReduce(ctx, job, x, collective.Mean, Weight(0), Shape(1, 1, 1, 1, 1, 1, 1, 1, 1, 2)),
		AllReduce[float32](ctx, job, nil, collective.Sum), Broadcast(ctx, job, x, 0),
		Reduce(ctx, job, x, collective.Sum, 0), Gather(ctx, job, out, x, 0),
		Scatter(ctx, job, out, x, 0), AllToAll(ctx, job, out, x, Splits(2)), Barrier(ctx, job),
		AllReduceInto(ctx, job, out, x, collective.Max),
	} {
		if err != nil {
			t.Error(err)
		}
	}
	if out[1] != 2 {
		t.Errorf("the result is %v", out)
	}
}

// A group that a late worker made, while it was a job of one, stays one when the worker has entered
// the job: its calls are none of all ranks.
func TestAGroupOfOneStaysOne(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	job.aside.Store(true)
	g, err := job.Split(0)
	if err != nil {
		t.Fatal(err)
	}
	job.aside.Store(false)
	h := AllReduceAsync(g, make([]float32, 0), collective.Sum)
	if !h.Done() || job.calls.published != 0 {
		t.Error("a call of a group of one was made with the job")
	}
	if err := g.Free(); err != nil {
		t.Fatal(err)
	}
	if err := AllReduceAsync(g, []float32{1}, collective.Sum).Wait(t.Context()); err != errFreed {
		t.Errorf("a call of a freed group: %v", err)
	}
}

// Ranks that no group has are refused, also those that a descriptor would take for others: a
// negative one for any sender, and one of 2^32 for rank 0.
func TestRanksThatNoGroupHasAreRefused(t *testing.T) {
	job, _ := newSilentJob(t, 0)
	defer job.Close()
	ctx, end := context.WithCancel(t.Context())
	end()
	for _, rank := range []int{-1, 1 << 32} {
		for _, err := range []error{RecvFrom(ctx, job, make([]float32, 0), rank),
			Broadcast(ctx, job, make([]float32, 0), rank)} {
			if !errors.As(err, new(*CallError)) || job.calls.published != 0 {
				t.Errorf("rank %d: %v", rank, err)
			}
		}
	}
}
