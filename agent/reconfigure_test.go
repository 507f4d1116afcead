package agent_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/topo"
)

// TestReconfigureScenarios are the scenarios of c10d's tests of reconfigure, under their names.
// There every rank is told the handles of the next group and calls reconfigure with an identifier;
// here nobody calls anything: workers are ordered, released and lost while they train, and find
// themselves in the next generation. Each begins with 3 workers, unless it says otherwise.
func TestReconfigureScenarios(t *testing.T) {
	for _, scenario := range []struct {
		name string
		play func(t *testing.T)
	}{
		{"basic", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}})
		}},
		{"then_all_reduce", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}, each: checkSum})
		}},
		{"then_send_recv", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}, each: checkRing})
		}},
		{"shrink_exclude_last_rank", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}},
				phase{size: 2, members: []int{0, 1}, each: allOf(checkSum, checkBroadcast)})
		}},
		{"shrink_exclude_middle_rank", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}},
				phase{dies: 1, members: []int{0, 2}, each: checkSum})
		}},
		{"scale_down_up", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}}, phase{size: 1, members: []int{0}},
				phase{size: 3, members: []int{0, 3, 4}, each: checkSum},
				phase{size: 1, members: []int{0}})
		}},
		{"single_to_all", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}}, phase{size: 1, members: []int{0}},
				phase{size: 3, members: []int{0, 3, 4}, each: checkSum})
		}},
		{"identity", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}},
				phase{size: 3, members: []int{0, 1, 2}, each: allOf(checkSum, checkNeverChanged)})
		}},
		{"late_join", func(t *testing.T) {
			runPhases(t, 1, phase{members: []int{0}, each: checkSum},
				phase{size: 3, members: []int{0, 1, 2}, each: checkSum})
		}},
		{"merge_split", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}, each: checkSplit},
				phase{members: []int{0, 1, 2}, each: checkSum})
		}},
		// What cuts a collective short is the loss of a worker in it; the others get their result,
		// and another one may come.
		{"after_abort", func(t *testing.T) {
			runPhases(t, 3, phase{members: []int{0, 1, 2}, each: checkSum},
				phase{dies: 2, members: []int{0, 1}, each: checkSum},
				phase{size: 3, members: []int{0, 1, 3}, each: checkSum})
		}},
		// There is no timeout to run out: who comes late is waited for.
		{"after_timeout", checkLateRankIsAwaited},
		// The identifier is a worker's number, which nobody takes twice.
		{"rejects_reused_uuid", checkNumberIsTakenOnce},
	} {
		t.Run(scenario.name, scenario.play)
	}
}

// phase is a membership that a scenario comes to.
type phase struct {
	size    int   // ask for so many members before; 0 = nobody asks
	dies    int   // this worker is lost in the step before; 0 = nobody, so that worker 0 lives
	members []int // numbers: those that stay by rank, and then those that come, in any order
	// each runs in the first step of the phase, on the goroutine of each member; nil = nothing
	// does.
	each func(j *client.Job) error
}

// recast is a job that goes through phases: members gather their numbers in every step, and so
// agree in which phase they are.
type recast struct {
	*elasticJob
	phases []phase
	over   chan struct{} // closed when the last phase was reached

	mu   sync.Mutex  // guards what follows
	at   map[int]int // phases by the step that began them
	next int         // the phase that comes next
}

// runPhases runs a job of n workers through phases, and fails the test if it does not come to
// the last one.
func runPhases(t *testing.T, n int, phases ...phase) {
	t.Helper()
	f := &recast{elasticJob: newElasticJob(t, n, client.Data{Samples: 1 << 20, Batch: 8}),
		phases: phases,
		over:   make(chan struct{}), at: map[int]int{}}
	for number := range n {
		f.startWorker(number, fmt.Sprintf("token-%d", number))
	}
	for running := true; running; {
		select {
		case number := <-f.started:
			token := f.agent.ExpectWorker(number, true)
			f.agent.WorkerStarted(number)
			f.startWorker(number, token)
		case <-f.over:
			running = false
		case <-f.group.Context().Done():
			running = false
		}
	}
	if err := f.group.Wait(); err != nil {
		t.Fatal(err)
	}
	if f.next != len(phases) {
		t.Fatalf("%d of %d phases were reached: %+v", f.next, len(phases), f.events)
	}
}

// startWorker lets a worker join, and train on a goroutine until the phases are over or it dies.
// Only the test's goroutine may call it, as joinAs.
func (f *recast) startWorker(number int, token string) {
	j := joinWithToken(f.t, f.agent, number, token)
	f.group.Go(fmt.Sprintf("worker %d", number), func(ctx context.Context) error {
		err := f.train(ctx, j, number)
		if errors.Is(err, errDies) {
			f.agent.WorkerLost(number, "was killed by SIGKILL")
			return nil
		}
		f.agent.WorkerFinished(number, "exited with code 0")
		return err
	})
}

// train is the training of a worker, on its goroutine, which does in each step what the phase asks
// for; errDies if that is to die.
func (f *recast) train(ctx context.Context, j *client.Job, number int) error {
	t, err := client.Train(j, f.data, client.StateOf("p", make([]float64, 8)))
	if err != nil {
		return err
	}
	for g := make([]float64, 8); t.Next(ctx); {
		workerIDs := make([]int64, j.Size())
		if err := client.AllGather(ctx, j, workerIDs, []int64{int64(number)}); err != nil {
			return err
		}
		k, begins, err := f.phaseOf(t.Step(), workerIDs)
		if err != nil {
			return err
		}
		if begins {
			if each := f.phases[k].each; each != nil {
				if err := each(j); err != nil {
					return fmt.Errorf("phase %d, worker %d: %w", k, number, err)
				}
			}
			if err := f.bringAbout(k+1, number, j.Rank()); err != nil {
				return err
			}
		}
		if err := client.Commit(ctx, t, g); err != nil {
			return err
		}
		if begins && k == len(f.phases)-1 {
			break
		}
	}
	return errors.Join(t.Err(), j.Close())
}

// phaseOf reports whether a step with these members begins a phase, and which; the first who asks
// in a step decides, and the job is in that phase from then on. As many members as the phase has,
// and others, are an error.
func (f *recast) phaseOf(step int, workerIDs []int64) (k int, begins bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if k, begins = f.at[step]; begins {
		return k, true, nil
	}
	if f.next == len(f.phases) {
		return 0, false, nil
	}
	if got, want := f.sortNew(workerIDs), f.phases[f.next].members; !slices.Equal(got, want) {
		if len(got) == len(want) {
			err = fmt.Errorf("phase %d has the members %d, not %d", f.next, got, want)
		}
		return 0, false, err
	}
	k = f.next
	f.at[step], f.next = k, k+1
	if f.next == len(f.phases) {
		close(f.over)
	}
	return k, true, nil
}

// sortNew returns the numbers of members by rank, with those behind the members that stay sorted:
// workers that come together take their ranks in the order in which they ask.
func (f *recast) sortNew(workerIDs []int64) []int {
	var numbers []int
	for _, id := range workerIDs {
		numbers = append(numbers, int(id))
	}
	if f.next > 0 {
		before := f.phases[f.next-1].members
		stay := slices.IndexFunc(numbers, func(n int) bool { return !slices.Contains(before, n) })
		if stay >= 0 {
			slices.Sort(numbers[stay:])
		}
	}
	return numbers
}

// bringAbout has a member do what leads to phase k: ask for a size, or die, which is errDies. After
// the last phase it does nothing.
func (f *recast) bringAbout(k, number, rank int) error {
	if k == len(f.phases) {
		return nil
	}
	if to := f.phases[k]; to.size > 0 && rank == 0 {
		return f.agent.Resize(to.size, "the test")
	} else if to.dies > 0 && to.dies == number {
		return errDies
	}
	return nil
}

// The checks with a client.Job return what is wrong, block until all ranks have called them, and
// run on the goroutines of workers.

// checkNeverChanged checks that the membership has never changed; it does not block.
func checkNeverChanged(j *client.Job) error {
	if g := j.Generation(); g != 1 {
		return fmt.Errorf("asked for the size that it has, the job has come to generation %d", g)
	}
	return nil
}

// allOf returns a function that runs checks, one after the other, until one fails.
func allOf(fs ...func(j *client.Job) error) func(j *client.Job) error {
	return func(j *client.Job) error {
		for _, f := range fs {
			if err := f(j); err != nil {
				return err
			}
		}
		return nil
	}
}

// smallTensor is a tensor of four elements that are x.
func smallTensor(x float32) []float32 { return []float32{x, x, x, x} }

// checkSum makes an all-reduce on the whole job and checks the sum.
func checkSum(j *client.Job) error { return checkSumOf(j, j.Rank(), j.Size()) }

// checkSumOf makes an all-reduce of the ranks of r, as rank of size, and checks the sum.
func checkSumOf(r client.Ranks, rank, size int) error {
	x := smallTensor(float32(rank + 1))
	err := client.AllReduce(context.Background(), r, x, collective.Sum)
	if want := smallTensor(float32(size * (size + 1) / 2)); err == nil && !slices.Equal(x, want) {
		err = fmt.Errorf("rank %d of %d has the sum %v, not %v", rank, size, x, want)
	}
	return err
}

// checkBroadcast makes a broadcast of rank 0 and checks what arrives.
func checkBroadcast(j *client.Job) error {
	x := smallTensor(float32(42 * max(0, 1-j.Rank())))
	err := client.Broadcast(context.Background(), j, x, 0)
	if err == nil && !slices.Equal(x, smallTensor(42)) {
		err = fmt.Errorf("rank %d has received %v", j.Rank(), x)
	}
	return err
}

// checkRing sends to the next rank, receives from the one before, and checks what arrives.
func checkRing(j *client.Job) error {
	next, before := (j.Rank()+1)%j.Size(), (j.Rank()+j.Size()-1)%j.Size()
	x := smallTensor(float32(math.NaN()))
	send := func() error {
		return client.SendTo(context.Background(), j, smallTensor(float32(j.Rank())), next)
	}
	receive := func() error { return client.RecvFrom(context.Background(), j, x, before) }
	turns := []func() error{send, receive}
	if j.Rank()%2 > 0 {
		slices.Reverse(turns)
	}
	err := errors.Join(turns[0](), turns[1]())
	if err == nil && !slices.Equal(x, smallTensor(float32(before))) {
		err = fmt.Errorf("rank %d has received %v", j.Rank(), x)
	}
	return err
}

// checkSplit makes a group of rank 0 and one of ranks 1 and 2, of a job of three, and checks a sum
// in each.
func checkSplit(j *client.Job) error {
	ranks := []int{0}
	if j.Rank() > 0 {
		ranks = []int{1, 2}
	}
	g, err := j.Split(ranks...)
	if err != nil {
		return err
	}
	if !slices.Contains(g.Ranks(), topo.Rank(j.Rank())) || g.Size() != len(ranks) {
		return fmt.Errorf("rank %d is in the group %v", j.Rank(), g.Ranks())
	}
	return checkSumOf(g, g.Rank(), g.Size())
}

// checkLateRankIsAwaited checks that an all-reduce ends only when the last rank has called, and
// that this changes nothing in the job.
func checkLateRankIsAwaited(t *testing.T) {
	a := startAgent(t, 3)
	jobs := []*client.Job{joinAs(t, a, 0), joinAs(t, a, 1), joinAs(t, a, 2)}
	runTogether(t, jobs, checkSum)
	var early []*client.Handle
	for _, j := range jobs[1:] {
		early = append(early, client.AllReduceAsync(j, smallTensor(1), collective.Sum))
	}
	for range 1000 {
		runtime.Gosched()
		if early[0].Done() || early[1].Done() {
			t.Fatal("a sum is there without one of the ranks")
		}
	}
	x := smallTensor(1)
	if err := client.AllReduce(t.Context(), jobs[0], x, collective.Sum); err != nil ||
		!slices.Equal(x, smallTensor(3)) {
		t.Fatal(x, err)
	}
	for _, h := range early {
		if err := h.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	runTogether(t, jobs, checkSum)
	if s := a.Status(); s.Generation != 1 || s.Size != 3 {
		t.Errorf("the job has changed: %+v", s)
	}
}

// checkNumberIsTakenOnce checks that a second worker cannot join as a rank that has joined.
func checkNumberIsTakenOnce(t *testing.T) {
	a := startAgentWithOrders(t, t.Context(), 2, agent.Orders{})
	jobs := []*client.Job{joinAs(t, a, 0), joinAs(t, a, 1)}
	// as rank 1 again
	if j, err := client.Join(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "a rank joins once") ||
		!strings.Contains(err.Error(), "is a job of one without SHOAL_SOCKET in its env") {
		t.Errorf("a second one has joined: %v, %v", j, err)
	}
	runTogether(t, jobs, checkSum)
}
