package signals

import (
	"math"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// Only what a step averages is taken for its gradient: no losses, no running means, no sums of what
// is compressed, no calls aside of the step.
func TestIsGradient(t *testing.T) {
	for name, change := range map[string]func(c *collective.Call){
		"":             func(*collective.Call) {},
		"sample":       func(c *collective.Call) { c.Tag = arena.Sample },
		"far":          func(c *collective.Call) { c.In, c.Far = nil, &collective.Far{In: 64} },
		"last part":    func(c *collective.Call) { c.More, c.Step = false, true },
		"no step":      func(c *collective.Call) { c.More = false },
		"no gradient":  func(c *collective.Call) { c.Tag = arena.NoGradient },
		"sum":          func(c *collective.Call) { c.Reduction = collective.Sum },
		"integers":     func(c *collective.Call) { c.DType = tensor.I32 },
		"short":        func(c *collective.Call) { c.In = c.In[:252] },
		"other member": func(c *collective.Call) { c.Kind = collective.Reduce },
	} {
		c := collective.Call{Kind: collective.AllReduce, DType: tensor.F32, Weight: 8,
			Reduction: collective.Mean, In: make([]byte, 256),
			Flags: collective.Flags{More: true}}
		change(&c)
		want := name == "" || name == "sample" || name == "far" || name == "last part"
		if isGradient(&c) != want {
			t.Errorf("%q: taken for a gradient is %v", name, !want)
		}
	}
}

// alone is an agent that leads a job, and has no workers.
type alone struct{}

// The methods of alone implement Agent.

func (alone) Now() sense.Duration                             { return sense.Second }
func (alone) Leads() bool                                     { return true }
func (alone) Levers() setting.Levers                          { return setting.Levers{Save: true} }
func (alone) GenerationNumber(topo.Generation) uint64         { return 1 }
func (alone) NewestEnding(topo.WorkerID) (topo.Rank, *Ending) { return 0, nil }

// Work cannot be divided unequally while more is summed up beside the calls of a step than in them,
// as torch's own DistributedDataParallel does, in each step or in some; losses and counters do not
// count, nor what is made for a step beside it.
func TestWorkersWeighAlike(t *testing.T) {
	call := func(elements int, flags collective.Flags) collective.Call {
		return collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
			Reduction: collective.Sum, In: make([]byte, 4*elements), Flags: flags}
	}
	last := collective.Flags{Step: true}
	for name, x := range map[string]struct {
		calls []collective.Call
		every uint64 // they are made in one of so many steps, and else only the last one is
		want  bool
	}{
		"ours":          {[]collective.Call{call(500, collective.Flags{More: true})}, 1, false},
		"torch's own":   {[]collective.Call{call(500, collective.Flags{})}, 1, true},
		"at times":      {[]collective.Call{call(500, collective.Flags{})}, 8, true},
		"a loss":        {[]collective.Call{call(10, collective.Flags{})}, 1, false},
		"first average": {[]collective.Call{call(500, collective.Flags{Aside: true})}, 1, false},
		"ours and other": {[]collective.Call{call(900, last), call(500, collective.Flags{})}, 1,
			false},
	} {
		s := New(alone{})
		state := head.State{Levers: setting.Levers{Save: true}}
		for state.Steps = 1; state.Steps <= 200; state.Steps++ {
			if state.Steps%x.every == 0 {
				for i := range x.calls {
					s.AddCall(&x.calls[i])
				}
			}
			end := call(1, last)
			s.AddCall(&end)
			s.AddBatch(&head.Apply{State: state, Parts: []head.Part{{Calls: []*collective.Posted{
				{Call: end}}}}}, []error{nil})
		}
		if got := s.Levers(state); got.Alike != x.want || !got.Save {
			t.Errorf("%s: %+v", name, got)
		}
		if state.Steps += 100; s.Levers(state).Alike {
			t.Errorf("%s: it counts for ever", name)
		}
	}
}

// normsOfTwo is an executor that has measured 64 elements of two members.
type normsOfTwo struct{}

// Norms implements what AddNorms asks of an Executor.
func (normsOfTwo) Norms(in []float64) (float64, int) {
	in[0], in[1] = in[0]+4, in[1]+4
	return 3, 64
}

// A step that ends with a barrier has averaged its gradients from device to device: the agent knows
// how noisy they are by a sample, which it takes for no more than that, and who is slow by what
// workers tell.
func TestStepsFromDeviceToDevice(t *testing.T) {
	a := &agentOfTwo{}
	s := New(a)
	for number := uint64(1); number <= 40; number++ {
		a.now = sense.Duration(number) * sense.Second
		a.endings = [2]Ending{
			{Ticket: number, At: a.now, Told: arena.Told{Compute: 700_000}},
			{Ticket: number, At: a.now, Told: arena.Told{Data: 100_000, Compute: 800_000}},
		}
		sample, end := head.Part{}, head.Part{}
		for w := range topo.WorkerID(2) {
			sample.Calls = append(sample.Calls, &collective.Posted{Worker: w, Call: collective.Call{
				Kind: collective.AllReduce, DType: tensor.F32, Reduction: collective.Mean,
				Tag: arena.Sample, Weight: 8, In: make([]byte, 256),
				Flags: collective.Flags{More: true}}})
			end.Calls = append(end.Calls, &collective.Posted{Worker: w, Ticket: number,
				Call: collective.Call{Kind: collective.Barrier,
					Flags: collective.Flags{Step: true}}})
		}
		s.BeginBatch()
		s.AddNorms(sample, normsOfTwo{})
		if s.rows.gradients != 0 {
			t.Fatal("a sample is taken for all that is averaged")
		}
		s.AddBatch(&head.Apply{Parts: []head.Part{sample, end}, State: stateAfter(number, 16)},
			[]error{nil, nil})
		s.AddNote(head.Note{Host: "h1", Data: s.PopStepsNote()}, 0)
	}
	o := s.observe(stateAfter(40, 16))
	// |G|² + trΣ/8 = 4 and |G|² + trΣ/16 = 3
	estimator := s.job.Noise()
	if n := estimator.Estimate(); !n.Known || math.Abs(n.SquaredNorm-2) > 1e-6 ||
		math.Abs(n.Variance-16) > 1e-6 {
		t.Errorf("noise: %+v", n)
	}
	if x := o.Split; math.Abs(x.Exposed-0.1) > 1e-6 || len(x.Slack) != 2 ||
		math.Abs(x.Slack[0]-0.2) > 1e-6 || x.Slack[1] > 1e-6 {
		t.Errorf("split: %+v", x)
	}
}
