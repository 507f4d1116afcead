package collective_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/tensor"
)

// squaredNorm returns the sum of the squares of elements.
func squaredNorm(d tensor.DType, b []byte) (sum float64) {
	for _, x := range decode(d, b) {
		sum += x * x
	}
	return sum
}

// isClose reports whether two norms are alike to rounding.
func isClose(got, want float64) bool { return math.Abs(got-want) <= 1e-9*math.Abs(want) }

// normCalls returns the calls of an all-reduce of n elements by some members, drawn: in place or
// not, with or without a shared result, and one member perhaps without weight but with NaN.
func normCalls(rng *rand.Rand, d tensor.DType, op collective.Reduction, members, n int,
	of []int) []*collective.Call {
	calls := sampleCalls(rng, collective.AllReduce, d, op, members, n)
	if rng.IntN(2) == 0 {
		shareOutputs(calls, of)
	}
	if op == collective.Mean && rng.IntN(2) == 0 {
		for _, c := range calls {
			c.Weight = float64(1 + rng.IntN(3))
		}
		calls[0].Weight = 0
		copy(calls[0].In, encode(d, []float64{math.NaN(), math.Inf(1)}))
	}
	return calls
}

// wantNorms returns the squared norms of the inputs that count.
func wantNorms(calls []*collective.Call) (in []float64) {
	total := 0.0
	for _, c := range calls {
		total += c.Weight
	}
	for _, c := range calls {
		x := squaredNorm(c.DType, c.In)
		if c.Reduction == collective.Mean && c.Weight == 0 && total > 0 {
			x = 0
		}
		in = append(in, x)
	}
	return in
}

// Norms are those of the inputs as they were, and of the result as it comes out: on one host by
// several lanes at once, and on several hosts, each of which has those of its members. From parts
// of the chunks, taken in turn, they add up to the same.
func TestNorms(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	for _, d := range []tensor.DType{tensor.F64, tensor.F32, tensor.F16, tensor.BF16} {
		for _, op := range []collective.Reduction{collective.Sum, collective.Mean} {
			for range 3 {
				members, hosts, n := 1+rng.IntN(4), 2+rng.IntN(2), 1+rng.IntN(25_000)
				every, seed := rng.IntN(5), rng.Uint64()
				of := randomHosts(rng, members, hosts)
				if slices.Max(of) == slices.Min(of) { // no Relay adds these up
					of = append([]int{1 - min(of[0], 1)}, of...)
					members++
				}
				once := func(of []int) []*collective.Call {
					return normCalls(rand.New(rand.NewPCG(seed, 1)), d, op, members, n, of)
				}
				checkNorms(t, rng, once, make([]int, members), 1, every)
				checkNorms(t, rng, once, of, hosts, every)
				if t.Failed() {
					t.Fatalf("%v of %d %v by %d members on %d hosts, one of %d chunks", op, n, d,
						members, hosts, every)
				}
			}
		}
	}
}

// checkNorms executes the calls that once returns on hosts, those of member i on host of[i], so
// many times that all chunks are measured equally often, one of `every` at a time, and fails the
// test where the norms are wrong.
func checkNorms(t *testing.T, rng *rand.Rand, once func(of []int) []*collective.Call, of []int,
	hosts, every int) {
	relays := newRelays(hosts)
	var in [][]float64 // by host: sums of all turns, by member
	for range hosts {
		in = append(in, make([]float64, len(of)))
	}
	result, elements := make([]float64, hosts), make([]int, hosts)
	add := func(h int, norms func(in []float64) (float64, int)) {
		r, n := norms(in[h])
		result[h], elements[h] = result[h]+r, elements[h]+n
	}
	var want []float64
	var calls []*collective.Call
	for turn := range 12 { // a multiple of any number of chunks up to 4
		calls = once(of)
		want = wantNorms(calls)
		if hosts > 1 {
			c := spreadOver(t, calls, of, relays)
			c.piece = collective.MinPiece
			c.prepare(collective.Ring{})
			for _, r := range relays {
				r.Measure(every, turn)
			}
			c.exchange(rng)
			for h, r := range relays {
				add(h, r.Norms)
			}
			c.deliver(rng)
			continue
		}
		var run collective.Executor
		run.Prepare(buildSchedule(t, calls), calls)
		run.Measure(every, turn)
		executeOnLanes(t, &run, 3)
		add(0, run.Norms)
	}
	for h := range hosts {
		checkHostNorms(t, h, calls, of, in[h], want, result[h], elements[h], every)
	}
}

// checkHostNorms fails the test where the norms of host h, of inputs and of the result over so many
// elements, are not those of calls. want has the norms of all inputs.
func checkHostNorms(t *testing.T, h int, calls []*collective.Call, of []int, in, want []float64,
	result float64, elements, every int) {
	t.Helper()
	d, n := calls[0].DType, calls[0].InLen()
	here := slices.Index(of, h)
	if every == 0 || here < 0 {
		if elements != 0 || result != 0 {
			t.Errorf("host %d: norms of %d elements, though none were to be taken", h, elements)
		}
		return
	}
	if elements%n != 0 || elements == 0 {
		t.Errorf("host %d: %d elements in all turns, of %d in each", h, elements, n)
		return
	}
	times := float64(elements / n)
	if here >= 0 && !isClose(result, times*squaredNorm(d, calls[here].Out)) {
		t.Errorf("host %d: norm %v of the result, expected %v", h, result/times,
			squaredNorm(d, calls[here].Out))
	}
	for i := range calls {
		expected := times * want[i]
		if of[i] != h {
			expected = 0
		}
		if !isClose(in[i], expected) {
			t.Errorf("host %d: norm %v of input %d, expected %v", h, in[i], i, expected)
		}
	}
}

// executeOnLanes executes all chunks on so many goroutines at once, and returns when all have.
func executeOnLanes(t *testing.T, run *collective.Executor, lanes int) {
	g := group.New(context.Background())
	for lane := range lanes {
		g.Go("lane", func(context.Context) error {
			s := collective.NewScratch()
			for i := lane; i < run.Chunks(); i += lanes {
				run.Chunk(i, s)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// What has no norm is not measured, and the next use of an Executor measures nothing by itself.
func TestNoNorms(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, x := range []struct {
		kind collective.Kind
		d    tensor.DType
		op   collective.Reduction
	}{
		{collective.AllReduce, tensor.I32, collective.Sum},
		{collective.AllReduce, tensor.F32, collective.Max},
		{collective.ReduceScatter, tensor.F32, collective.Sum},
		{collective.AllGather, tensor.F32, collective.Sum},
	} {
		calls := sampleCalls(rng, x.kind, x.d, x.op, 3, 3000)
		var run collective.Executor
		run.Prepare(buildSchedule(t, calls), calls)
		run.Measure(1, 0)
		executeOnLanes(t, &run, 1)
		if _, n := run.Norms(make([]float64, 3)); n != 0 {
			t.Errorf("%v: norms of %d elements", calls[0], n)
		}
	}
	calls := sampleCalls(rng, collective.AllReduce, tensor.F32, collective.Sum, 3, 3000)
	s := buildSchedule(t, calls)
	var run collective.Executor
	run.Prepare(s, calls)
	run.Measure(1, 0)
	run.Prepare(s, calls)
	executeOnLanes(t, &run, 1)
	if _, n := run.Norms(make([]float64, 3)); n != 0 {
		t.Errorf("norms of %d elements without Measure", n)
	}
}
