package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// A worker of shoal bench, in a process of its own. The goroutine of that process runs what is
// here.

// number is an element type that Go can add up.
type number interface {
	float64 | float32 | int64 | int32
}

const (
	// a prime: a block of the result that lies in the wrong place does not pass
	poolSize    = 262139 // elements
	fewestCalls = 8      // that are measured of a size
	mostCalls   = 500    // that are measured of a size
)

// payload is what the buffers hold: random whole numbers in [-512, 511], whose sums are exact in
// every type and order. A buffer repeats one pool; each rank starts at a place of its own, drawn
// anew for each call by the same seeded generator on all ranks. One goroutine uses it.
type payload[T number] struct {
	draw   *rand.Rand
	pool   []T   // twice the same, so that poolSize elements follow every start
	want   []T   // memory of holdsSum
	starts []int // by rank, the element of the pool with which its buffer begins
}

// newPayload returns the payload of one rank; all ranks draw the same numbers.
func newPayload[T number](ranks int) *payload[T] {
	p := &payload[T]{draw: rand.New(rand.NewPCG(1, 1)), pool: make([]T, 2*poolSize),
		want: make([]T, poolSize), starts: make([]int, ranks)}
	for i := range poolSize {
		p.pool[i] = T(p.draw.IntN(1024) - 512)
	}
	copy(p.pool[poolSize:], p.pool)
	return p
}

// fill draws where each rank starts, and writes the values of the given rank into x. All ranks must
// call it equally often.
func (p *payload[T]) fill(x []T, rank int) {
	for r := range p.starts {
		p.starts[r] = p.draw.IntN(poolSize)
	}
	period := p.pool[p.starts[rank]:][:poolSize]
	for part := range slices.Chunk(x, poolSize) {
		copy(part, period)
	}
}

// holdsSum reports whether every element of x is the sum over what the ranks were filled with last.
func (p *payload[T]) holdsSum(x []T) bool {
	want := p.want[:min(len(x), poolSize)]
	clear(want)
	for _, start := range p.starts {
		for i, v := range p.pool[start:][:len(want)] {
			want[i] += v
		}
	}
	for part := range slices.Chunk(x, poolSize) {
		if !slices.Equal(part, want[:len(part)]) {
			return false
		}
	}
	return true
}

// callCounts returns how many calls warm up and how many are measured, for a size in bytes and the
// time of one call: as many as 512 MiB hold buffers and two seconds hold calls, within bounds.
func callCounts(bytes int64, call time.Duration) (warmUp, measured int) {
	most := min(mostCalls, max(fewestCalls, int((512<<20)/(bytes+1))))
	return 3 + most/10, min(most, max(fewestCalls, int(2*time.Second/max(call, 1))))
}

// benchWorker measures on one rank. One goroutine uses it; its methods wait for the other ranks.
type benchWorker[T number] struct {
	job     *client.Job // of runBenchWorker, which closes it
	payload *payload[T]
	correct bool // whether all results of this size were right so far
}

// timeCall refills x, waits for the other ranks, and times one all-reduce into out. It checks the
// result when the others have theirs, since until then they need the processors more. All ranks
// call it together.
func (w *benchWorker[T]) timeCall(ctx context.Context, out, x []T) (time.Duration, error) {
	w.payload.fill(x, w.job.Rank())
	if err := client.Barrier(ctx, w.job); err != nil {
		return 0, err
	}
	start := time.Now()
	err := client.AllReduceInto(ctx, w.job, out, x, collective.Sum)
	took := time.Since(start)
	if err == nil {
		err = client.Barrier(ctx, w.job)
	}
	w.correct = w.payload.holdsSum(out) && w.correct
	return took, err
}

// measure returns the metrics of one size: bytes, iterations, calls (with those that warm up),
// median_us, p99_us, verified (0 or 1). All ranks call it together. The bounds of the calls follow
// from bytes, the size of x; out may be x.
func (w *benchWorker[T]) measure(ctx context.Context, out, x []T, bytes int64) (map[string]float64,
	error) {
	w.correct = true
	var last time.Duration
	warmUp, _ := callCounts(bytes, 1)
	for range warmUp {
		var err error
		if last, err = w.timeCall(ctx, out, x); err != nil {
			return nil, err
		}
	}
	slowest := []float64{float64(last)}
	if err := client.AllReduce(ctx, w.job, slowest, collective.Max); err != nil {
		return nil, err
	}
	_, n := callCounts(bytes, time.Duration(slowest[0]))
	us := make([]float64, n, n+1)
	for i := range us {
		took, err := w.timeCall(ctx, out, x)
		if err != nil {
			return nil, err
		}
		us[i] = float64(took) / 1e3
	}
	wrong := 0.0
	if !w.correct {
		wrong = 1
	}
	us = append(us, wrong)
	if err := client.AllReduce(ctx, w.job, us, collective.Max); err != nil {
		return nil, err
	}
	wrong, us = us[n], us[:n]
	slices.Sort(us)
	return map[string]float64{
		"bytes": float64(bytes), "iterations": float64(n), "calls": float64(warmUp + n),
		"verified":  1 - wrong,
		"median_us": (us[(n-1)/2] + us[n/2]) / 2, "p99_us": us[(99*n+99)/100-1],
	}, nil
}

// runBenchWorker joins the job and measures every size, together with the other ranks; rank 0
// reports. It runs in the process of one rank, on one goroutine, and blocks until all sizes are
// measured. sizes are in bytes.
func runBenchWorker[T number](ctx context.Context, dtype tensor.DType, sizes []int64, foreign,
	shared bool) error {
	job, err := client.Join(ctx)
	if err != nil {
		return err
	}
	defer job.Close()
	elements := int(slices.Max(sizes)) / dtype.Size()
	var buf []T
	if foreign {
		buf = make([]T, elements)
	} else if buf, err = client.Empty[T](job, elements); err != nil {
		return err
	}
	out := buf
	if shared {
		if out, err = client.Shared[T](job, "result", elements); err != nil {
			return err
		}
	}
	w := &benchWorker[T]{job: job, payload: newPayload[T](job.Size())}
	for _, bytes := range sizes {
		n := int(bytes) / dtype.Size()
		metrics, err := w.measure(ctx, out[:n], buf[:n], bytes)
		if err != nil {
			return err
		}
		if job.Rank() == 0 {
			if err := job.Report(metrics); err != nil {
				return err
			}
		}
	}
	return nil
}

// newBenchWorkerCommand returns the hidden command that `shoal bench allreduce` starts for each
// rank.
func newBenchWorkerCommand() *cobra.Command {
	var dtype string
	var foreign, shared bool
	cmd := &cobra.Command{Use: "allreduce-worker BYTES…", Hidden: true, Args: cobra.MinimumNArgs(1)}
	cmd.Flags().StringVar(&dtype, "dtype", "f32", "")
	cmd.Flags().BoolVar(&foreign, "foreign", false, "")
	cmd.Flags().BoolVar(&shared, "shared", false, "")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		d, err := tensor.ParseDType(dtype)
		if err != nil {
			return err
		}
		sizes := make([]int64, len(args))
		for i, arg := range args {
			if sizes[i], err = strconv.ParseInt(arg, 10, 64); err != nil {
				return err
			}
		}
		ctx := cmd.Context()
		switch d {
		case tensor.F64:
			return runBenchWorker[float64](ctx, d, sizes, foreign, shared)
		case tensor.F32:
			return runBenchWorker[float32](ctx, d, sizes, foreign, shared)
		case tensor.I64:
			return runBenchWorker[int64](ctx, d, sizes, foreign, shared)
		case tensor.I32:
			return runBenchWorker[int32](ctx, d, sizes, foreign, shared)
		}
		return fmt.Errorf("no benchmark for %v", d)
	}
	return cmd
}
