package signals

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/cables"
	"github.com/shoal-ml/shoal/sense/steps"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// fast is an agent that leads a job of two workers, which are both here and make short steps.
type fast struct {
	signals *Signals
	now     sense.Duration
	endings [2]Ending
	apply   head.Apply
	seen    int // steps of which all is told
}

// The methods of fast implement Agent.

func (f *fast) Now() sense.Duration                       { return f.now }
func (f *fast) Leads() bool                               { return true }
func (f *fast) Levers() setting.Levers                    { return f.apply.Levers }
func (f *fast) GenerationNumber(g topo.Generation) uint64 { return uint64(g) }
func (f *fast) NewestEnding(w topo.WorkerID) (topo.Rank, *Ending) {
	return topo.Rank(w), &f.endings[w]
}

// newFast returns a job that has made no step.
func newFast() *fast {
	data, err := cursor.New(1<<40, 64, 1, true)
	if err != nil {
		panic(err)
	}
	f := &fast{}
	f.signals = New(f)
	var calls []*collective.Posted
	for w := range topo.WorkerID(2) {
		c := collective.Call{Kind: collective.AllReduce, DType: tensor.F32,
			Reduction: collective.Mean, In: make([]byte, 64<<10), Weight: 32,
			Flags: collective.Flags{Step: true}}
		calls = append(calls, &collective.Posted{Worker: w, Ticket: 1, Call: c})
	}
	f.apply = head.Apply{Parts: []head.Part{{Calls: calls}}}
	f.apply.Data = &data
	f.apply.View = topo.View{Generation: 1, Members: make([]topo.Member, 2)}
	return f
}

// makeStep makes a step of this length.
func (f *fast) makeStep(takes sense.Duration) {
	s := f.signals
	if s.SensesStep() {
		f.seen++
		for w := range f.endings {
			f.endings[w] = Ending{Ticket: 1, At: f.now}
		}
	}
	f.now += takes
	f.apply.Steps++
	s.BeginBatch()
	s.AddNorms(f.apply.Parts[0], f)
	s.AddBatch(&f.apply, []error{nil})
}

// Norms are those of an Executor that has measured nothing.
func (f *fast) Norms([]float64) (float64, int) { return 0, 0 }

// Of short steps not each is seen, and yet all are counted, with their time, whatever comes between
// two that are seen: another batch, or steps that take long.
func TestShortSteps(t *testing.T) {
	f := newFast()
	const short, long = sense.Second / 100_000, sense.Second
	f.makeStep(short) // how long the first has taken is not known
	var want sense.Duration
	run := func(n int, takes sense.Duration) (seen int) {
		seen = f.seen
		for range n {
			f.makeStep(takes)
			want += takes
		}
		return f.seen - seen
	}
	if seen := run(2000, short); seen != 2000 {
		t.Errorf("%d of 2000 steps are seen before anybody knows how short they are", seen)
	}
	f.signals.PopStepsNote()
	if seen := run(2003, short); seen != 62 {
		t.Errorf("%d of 2003 short steps are seen, expected one in 32", seen)
	}
	batch := f.apply.Data.Batch
	f.apply.Data.Batch = 2 * batch // from the next step on
	if run(1, short); f.signals.under.Batch != 2*batch {
		t.Fatal("the batch is the old one")
	}
	if seen := run(4, long); seen != 4 {
		t.Errorf("%d of 4 steps with another batch are seen", seen)
	}
	f.signals.PopStepsNote()
	run(2000, short)
	f.signals.PopStepsNote()
	if seen := run(3, long); seen != 0 {
		t.Errorf("%d steps are seen, of three after short ones", seen)
	}
	f.signals.PopStepsNote() // nothing to tell: steps take long
	if seen := run(2, long); seen != 2 {
		t.Errorf("%d of 2 steps are seen that take long", seen)
	}
	look, _, _ := f.signals.NextLook(f.apply.State)
	if look.Observation.Steps != nil {
		t.Error("nothing can change, and there is a look")
	}
	onMesh := f.apply.State
	onMesh.Shape = &head.Shape{}
	for _, decides := range []bool{false, true} {
		f.signals.Decides = decides
		if look, _, ok := f.signals.NextLook(onMesh); ok || look.OnMesh != decides {
			t.Errorf("a job on a mesh, policies decide: %v; a look: %v, %+v", decides, ok, look)
		}
	}
	f.signals.Decides = false
	steps, span, samples := uint64(0), 0.0, uint64(0)
	f.signals.EndRows("h")
	for r := f.signals.AwaitRow(); r != nil; r = f.signals.AwaitRow() {
		steps, span, samples = steps+r.Steps, span+r.Span, samples+r.Samples
	}
	if steps != f.apply.Steps || math.Abs(span-want.Seconds()) > 1e-3 ||
		samples != 4005*batch+(steps-4005)*2*batch {
		t.Errorf("%d steps of %d samples in %v s are kept, of %d in %v", steps, samples, span,
			f.apply.Steps, want.Seconds())
	}
}

// follower is fast on a host that does not lead.
type follower struct{ *fast }

// Leads implements Agent.
func (follower) Leads() bool { return false }

// A host that does not lead keeps no rows, and tells the head of its steps: with each look in the
// beginning, and then once a second.
func TestFollowersTellTheHead(t *testing.T) {
	f := newFast()
	f.signals = New(follower{f})
	told := 0
	for range earlyNotes + 5*looksPerNote {
		f.makeStep(sense.Second)
		if f.signals.IsDue() && f.signals.PopStepsNote() != nil {
			told++
		}
	}
	if want := earlyNotes + 5; told != want {
		t.Errorf("the head is told %d times, want %d", told, want)
	}
	f.signals.EndRows("h")
	if r := f.signals.AwaitRow(); r != nil {
		t.Errorf("a row is kept: %s", r.Encode())
	}
}

// What the links of hosts carry comes to the head by notes of their own, which leave what is to be
// told of steps as it is; of hosts that have told nothing, or have left, nothing is known.
func TestLinks(t *testing.T) {
	a := &agentOfTwo{}
	one, other, head1 := New(a), New(a), New(a)
	learn := func(host string, from *Signals) {
		head1.AddNote(head.Note{Host: host, Data: from.PopLinksNote()}, 0)
	}
	one.AddLinkRates(cables.Rates{"h2": 7})
	learn("h1", one)
	if got := head1.CableRates([]string{"h1", "h2"}); !slices.Equal(got, []float64{7, 7}) {
		t.Errorf("by one end: %v", got)
	}
	other.AddLinkRates(cables.Rates{"h1": 9})
	learn("h2", other)
	if got := head1.CableRates([]string{"h2", "h1"}); !slices.Equal(got, []float64{9, 9}) {
		t.Errorf("by both ends: %v", got)
	}
	if got := head1.CableRates([]string{"h3", "h1"}); got != nil {
		t.Errorf("with a host that tells nothing: %v", got)
	}
	if note := one.PopLinksNote(); note != nil {
		t.Errorf("told twice: %s", note)
	}
	one.host.Add(steps.Step{Size: 2, Seconds: 1})
	one.AddLinkRates(cables.Rates{"h2": 7})
	if learn("h1", one); !strings.Contains(string(one.PopStepsNote()), `"steps":1`) {
		t.Error("news of links has taken the note of a step with it")
	}
	one.AddLinkRates(cables.Rates{"h2": 8})
	one.AddLinkRates(cables.Rates{"h3": 3})
	learn("h1", one)
	if x, y := head1.LinkRate("h1", "h2"), head1.LinkRate("h3", "h1"); x != 8 || y != 3 {
		t.Errorf("of two readings the head has %v and %v", x, y)
	}
	one.Blind = true
	if one.AddLinkRates(cables.Rates{"h2": 7}); one.PopLinksNote() != nil {
		t.Error("what is to measure nothing tells of links")
	}
}

// TestPace takes the steps since the job has its mesh; the first one holds the pause of the change.
func TestPace(t *testing.T) {
	f := newFast()
	f.apply.Shape = &head.Shape{Mesh: "dp=2"}
	for range 5 {
		f.makeStep(sense.Second)
	}
	// The job gets the mesh with a batch that ends no step.
	parts := f.apply.Parts
	f.apply.Parts, f.apply.Changed = nil, true
	f.apply.Shape, f.apply.View.Generation = &head.Shape{Mesh: "pp=2"}, 2
	f.signals.AddBatch(&f.apply, nil)
	f.apply.Parts, f.apply.Changed = parts, false
	if p, since := f.signals.Pace(); p.Steps != 0 || since != 5 {
		t.Errorf("%+v since step %d", p, since)
	}
	f.makeStep(9 * sense.Second)
	for range 3 {
		f.makeStep(2 * sense.Second)
	}
	want := sense.Pace{Steps: 3, Batch: 64, First: 2, Median: 2, Third: 2}
	if p, since := f.signals.Pace(); p != want || since != 5 {
		t.Errorf("%+v since step %d; want %+v since step 5", p, since, want)
	}
}
