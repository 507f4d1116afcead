package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
)

// Every collective of the Go client is right through a real agent, on arena memory and on foreign
// memory.
func TestEveryCollective(t *testing.T) {
	ctx := context.Background()
	for _, n := range []int{1, 2, 3, 5, 8} {
		runOnHosts(t, n, func(j *client.Job) error {
			for _, arena := range []bool{true, false} {
				if err := everyCollective(ctx, j, arena); err != nil {
					return fmt.Errorf("%d ranks, arena %v: %w", n, arena, err)
				}
			}
			return checkSharedCollectives(ctx, j)
		})
	}
}

// everyCollective makes every collective as one rank and returns what is wrong with the results, in
// arena memory or in its own. Every rank of j must call it, each on a goroutine.
func everyCollective(ctx context.Context, j *client.Job, arena bool) error {
	n, r := j.Size(), j.Rank()
	alloc := func(xs ...int64) []int64 {
		if !arena {
			return slices.Clone(xs)
		}
		b, err := client.Empty[int64](j, len(xs))
		if err != nil {
			panic(err)
		}
		copy(b, xs)
		return b
	}
	expect := func(what string, got, want []int64) error {
		if !slices.Equal(got, want) {
			return fmt.Errorf("%s on rank %d: got %v, want %v", what, r, got, want)
		}
		return nil
	}
	ranks, root := make([]int64, n), n-1
	for i := range ranks {
		ranks[i] = int64(i)
	}
	total := int64(n * (n - 1) / 2)
	x := alloc(int64(r), 1)
	out := alloc(make([]int64, n)...)
	one := alloc(-1)
	scattered := alloc(0)
	var steps []error
	do := func(what string, err error, got []int64, want ...int64) {
		if err != nil {
			err = fmt.Errorf("%s: %w", what, err)
		}
		steps = append(steps, errors.Join(err, expect(what, got, want)))
	}
	do("barrier", client.Barrier(ctx, j), nil)
	do("all_reduce", client.AllReduce(ctx, j, x, collective.Sum), x, total, int64(n))
	copy(one, []int64{int64(r)})
	do("all_gather", client.AllGather(ctx, j, out, one), out, ranks...)
	do("reduce_scatter", client.ReduceScatter(ctx, j, scattered, out, collective.Sum), scattered,
		int64(n*r))
	do("broadcast", client.Broadcast(ctx, j, one, root), one, int64(root))
	copy(one, []int64{int64(r)})
	want := int64(r)
	if r == root {
		want = total
	}
	do("reduce", client.Reduce(ctx, j, one, collective.Sum, root), one, want)
	copy(one, []int64{int64(r)})
	clear(out)
	do("gather", client.Gather(ctx, j, out, one, root), one, int64(r))
	if r == root {
		do("gather", nil, out, ranks...)
	}
	do("scatter", client.Scatter(ctx, j, scattered, out, root), scattered, int64(r))
	for i := range out {
		out[i] = int64(10*r + i)
	}
	back, turned := alloc(make([]int64, n)...), make([]int64, n)
	for i := range turned {
		turned[i] = int64(10*i + r)
	}
	do("all_to_all", client.AllToAll(ctx, j, back, out), back, turned...)
	if n > 1 {
		to, from := (r+1)%n, (r+n-1)%n
		copy(one, []int64{int64(r)})
		var err error
		if r%2 == 0 { // SendTo returns when the other side has it
			err = errors.Join(client.SendTo(ctx, j, one, to, client.Tag(3)),
				client.RecvFrom(ctx, j, scattered, from, client.Tag(3)))
		} else {
			err = errors.Join(client.RecvFrom(ctx, j, scattered, from, client.Tag(3)),
				client.SendTo(ctx, j, one, to, client.Tag(3)))
		}
		do("send and recv", err, scattered, int64(from))
	}
	return errors.Join(steps...)
}

// Ranks that send each other different numbers of elements, none among them, get what was sent.
func TestUnevenAllToAll(t *testing.T) {
	runOnHosts(t, 5, func(j *client.Job) error {
		r := j.Rank()
		var give, want []int64
		counts := make([]int, j.Size())
		for i := range counts {
			counts[i] = (r + i) % 3
			for range counts[i] {
				give, want = append(give, int64(10*r+i)), append(want, int64(10*i+r))
			}
		}
		got := make([]int64, len(want))
		if err := client.AllToAll(context.Background(), j, got, give,
			client.Splits(counts...)); err != nil || !slices.Equal(got, want) {
			return fmt.Errorf("rank %d got %v, want %v: %w", r, got, want, err)
		}
		return nil
	})
}

// Ranks make groups and sum up in them, and submit more calls at once than there are slots.
func TestGroupsAndGrouped(t *testing.T) {
	ctx := context.Background()
	runOnHosts(t, 4, func(j *client.Job) error {
		list := []int{0, 2}
		if j.Rank()%2 == 1 {
			list = []int{3, 1}
		}
		g, err := j.Split(list...)
		if err != nil {
			return err
		}
		x := []float64{float64(j.Rank())}
		if err := client.AllReduce(ctx, g, x, collective.Sum); err != nil {
			return err
		}
		if want := float64(list[0] + list[1]); x[0] != want || g.Size() != 2 ||
			list[g.Rank()] != j.Rank() {
			return fmt.Errorf("rank %d is number %d of %v, sum %v", j.Rank(), g.Rank(), list, x[0])
		}
		// More calls than slots, submitted as one.
		many := make([][]float32, 600)
		handles := make([]*client.Handle, len(many))
		if err := j.Grouped(func() error {
			for i := range many {
				many[i] = []float32{float32(i * j.Rank())}
				handles[i] = client.AllReduceAsync(j, many[i], collective.Max)
			}
			return nil
		}); err != nil {
			return err
		}
		for i, h := range handles {
			if err := h.Wait(ctx); err != nil {
				return err
			}
			if !h.Done() || many[i][0] != float32(3*i) {
				return fmt.Errorf("call %d: %v", i, many[i])
			}
		}
		return nil
	})
}

// Who frees groups can make more than there is room for at once.
func TestGroupsAreFreed(t *testing.T) {
	ctx := context.Background()
	runOnHosts(t, 2, func(j *client.Job) error {
		for i := range collective.MaxGroups + 10 {
			g, err := j.Split(1, 0)
			if err != nil {
				return fmt.Errorf("group %d: %w", i, err)
			}
			used := i < 10 || i >= collective.MaxGroups
			if used {
				if err := client.Barrier(ctx, g); err != nil {
					return err
				}
			}
			if err := errors.Join(g.Free(), g.Free()); err != nil {
				return err
			}
			if used && client.Barrier(ctx, g) == nil {
				return errors.New("a group that was freed has a barrier")
			}
		}
		if err := j.Group.Free(); err == nil {
			return errors.New("all ranks were freed")
		}
		return nil
	})
}

// Goroutines of one worker may wait for different collectives at once, in any order.
func TestConcurrentWaiters(t *testing.T) {
	runOnHosts(t, 3, func(j *client.Job) error {
		var handles []*client.Handle
		for i := range 64 {
			handles = append(handles, client.AllReduceAsync(j, []int32{int32(i)}, collective.Sum))
		}
		errs := make(chan error, len(handles))
		for _, h := range slices.Backward(handles) {
			runInBackground(t, func() { errs <- h.Wait(context.Background()) })
		}
		var all []error
		for range handles {
			all = append(all, <-errs)
		}
		return errors.Join(all...)
	})
}

// Ranks whose calls differ all get an error that names both.
func TestMismatchReachesEveryRank(t *testing.T) {
	runOnHosts(t, 3, func(j *client.Job) error {
		x := make([]float32, 12)
		op := collective.Sum
		if j.Rank() == 1 {
			op = collective.Max
		}
		err := client.AllReduce(context.Background(), j, x, op, client.Shape(4, 3))
		if err == nil || !strings.Contains(err.Error(), "all_reduce(f32[4,3], sum)") ||
			!strings.Contains(err.Error(), "rank 1 called all_reduce(f32[4,3], max)") {
			return fmt.Errorf("rank %d got %v", j.Rank(), err)
		}
		return client.AllReduce(context.Background(), j, x, collective.Sum) // and goes on
	})
}

// In a job without steps a worker that leaves fails the calls that wait for it, and is named.
func TestLeavingFailsTheOthersCall(t *testing.T) {
	runOnHosts(t, 2, func(j *client.Job) error {
		if j.Rank() == 1 {
			return j.Close()
		}
		err := client.Barrier(context.Background(), j)
		var failed *client.CallError
		if !errors.As(err, &failed) || !failed.Lost ||
			!strings.Contains(err.Error(),
				"rank 1 has left the job, while rank 0 waits for it in barrier()") {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

// Who waits for others can give up by its context.
func TestContextEndsAWait(t *testing.T) {
	a := startAgent(t, 2)
	j := joinAs(t, a, 0)
	ctx, cancel := context.WithCancel(t.Context())
	h := client.AllReduceAsync(j, []float32{1}, collective.Sum)
	runInBackground(t, cancel)
	if err := h.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// When the agent has ended, calls fail and do not hang.
func TestAgentGone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := startAgentUntil(t, ctx, 2)
	j := joinAs(t, a, 0)
	h := client.AllReduceAsync(j, []float32{1}, collective.Sum)
	runInBackground(t, cancel)
	if err := h.Wait(context.Background()); !errors.Is(err, client.ErrLost) {
		t.Errorf("got %v", err)
	}
	if _, err := client.Empty[float32](j, 1<<23); !errors.Is(err, client.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// A segment that is larger than the memory of the machine is refused.
func TestArenaLargerThanMemory(t *testing.T) {
	j := joinAs(t, startAgent(t, 1), 0)
	_, err := client.Empty[float64](j, 1<<40)
	if err == nil || !strings.Contains(err.Error(), "a segment of 8192.0 GiB does not fit") {
		t.Errorf("got %v", err)
	}
	if x, err := client.Empty[float64](j, 1); err != nil || len(x) != 1 {
		t.Errorf("after it: %v", err)
	}
}

// A step has as many collectives as a worker has slots. One that goes on is told, and does not wait
// for ever.
func TestStepWithoutEnd(t *testing.T) {
	runOnHosts(t, 2, func(j *client.Job) error {
		step := func(parts int) error {
			x := make([]float32, 4*parts)
			var calls []*client.Handle
			err := j.Grouped(func() error {
				for i := range parts - 1 {
					calls = append(calls,
						client.AllReduceAsync(j, x[4*i:4*i+4], collective.Sum, client.More()))
				}
				calls = append(calls,
					client.AllReduceAsync(j, x[4*(parts-1):], collective.Sum, client.EndStep()))
				return nil
			})
			for _, h := range calls {
				err = errors.Join(err, h.Wait(context.Background()))
			}
			return err
		}
		if err := step(collective.MaxStep); err != nil {
			return err
		}
		var refused *client.CallError
		if err := step(collective.MaxStep + 40); !errors.As(err, &refused) ||
			!strings.Contains(err.Error(), "256 collectives") {
			return fmt.Errorf("a step of too many parts: %w", err)
		}
		return step(3)
	})
}
