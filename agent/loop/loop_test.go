package loop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// fakeJob is a job whose steps take 10 ms whatever the batch, and whose gradients are very noisy:
// larger batches pay. A test uses it on one goroutine.
type fakeJob struct {
	step   uint64
	now    setting.Setting
	trial  *setting.Change
	steps  sense.StepSeries
	leads  bool
	closed bool             // nothing is open
	onMesh bool             // it has a mesh, so nothing is open
	batch  setting.Range    // what the program has opened
	size   int              // members
	most   uint64           // members that policies may want; 0 = the size is closed
	alike  bool             // all workers weigh alike
	auto   bool             // policies may change how workers synchronise
	refuse error            // what Change returns; nil = it makes the change
	holds  bool             // a change waits, and is not entered
	waits  bool             // one does
	told   []string         // what people were told
	stays  []act.Stay       // what the head was told
	asked  []setting.Change // what Change was asked for
	news   []act.Entry      // that the loop has not seen
}

// newJob returns a job that is led here.
func newJob() *fakeJob {
	return &fakeJob{leads: true, size: 2, now: setting.Setting{Batch: 64},
		batch: setting.Range{From: 32, To: 1024}}
}

// train makes steps.
func (j *fakeJob) train(steps int) {
	for range steps {
		j.step++
		j.steps.Add(sense.StepSample{Step: j.step, Seconds: 0.01, Samples: j.now.Batch,
			Batch: j.now.Batch, Size: j.size, Generation: 1, Change: j.now.Number})
	}
}

// Look implements Job.
func (j *fakeJob) Look() (Look, bool) {
	if j.closed || j.onMesh {
		return Look{OnMesh: j.onMesh}, false
	}
	entry := j.entry(nil)
	look := Look{Entries: append(j.news, entry), Waits: j.waits}
	look.Observation = sense.Observation{Step: j.step, Size: j.size, Setting: j.now, First: 64,
		Levers: entry.Levers, Steps: &j.steps,
		Now: sense.Duration(j.step) * sense.Second / 100,
		Noise: noise.Estimate{Known: true, Steps: 100, SquaredNorm: 1, Variance: 5000,
			Scale: setting.Band{Low: 4000, Mid: 5000, High: 6000}}}
	j.news = nil
	return look, true
}

// entry returns how the job trains, with a change that begins or ends; nil = none does.
func (j *fakeJob) entry(c *setting.Change) act.Entry {
	levers := setting.Levers{Batch: j.batch, Alike: j.alike, Auto: j.auto}
	if j.most > 0 {
		levers.Size = setting.Range{From: 1, To: j.most}
	}
	return act.Entry{Step: j.step, Setting: j.now, Trial: j.trial, Change: c, Leads: j.leads,
		Levers: levers}
}

// Change implements Job.
func (j *fakeJob) Change(next setting.Setting, c setting.Change) error {
	if j.refuse != nil {
		return j.refuse
	}
	j.asked = append(j.asked, c)
	if j.waits = j.holds; j.holds {
		return nil
	}
	if j.trial = nil; c.Phase == setting.Entered {
		c.Number, c.Step = j.now.Number+1, j.step
		j.trial = &c
	}
	j.now = next.EnteredBy(c, j.now)
	j.news = append(j.news, j.entry(&c))
	return nil
}

// ReportLine implements Job.
func (j *fakeJob) ReportLine(line string) { j.told = append(j.told, line) }

// TellHead implements Job.
func (j *fakeJob) TellHead(s act.Stay) { j.stays = append(j.stays, s) }

// runLooks has a loop look at a job while that makes steps, ten a look.
func runLooks(l *Loop, j *fakeJob, looks int) {
	for range looks {
		j.train(10)
		l.runTurn()
		if users := l.popUserPolicies(); users != nil {
			l.startUsers(users)
		}
	}
}

// newLoop returns a loop of a job, with policies of users; nil = none.
func newLoop(t *testing.T, j *fakeJob, mode act.Mode, users ...decide.Policy) *Loop {
	g := group.New(context.Background())
	t.Cleanup(func() { g.Stop(nil); _ = g.Wait() })
	l := New(j, g)
	l.Drive(mode, func(*group.Group) []decide.Policy { return users })
	return l
}

// Policies change the job on the agent that leads, and the change is measured to its end.
func TestLoopChangesTheJob(t *testing.T) {
	j := newJob()
	l := newLoop(t, j, act.Auto)
	l.runTurn()
	l.startUsers(l.popUserPolicies())
	if l.runTurn(); len(j.told) > 0 {
		t.Errorf("before the first step people were told %q", j.told)
	}
	runLooks(l, j, 60)
	if len(j.asked) < 2 || j.asked[0].Phase != setting.Entered || !j.asked[1].Phase.IsEnd() ||
		j.asked[0].Policy != "batch" || j.now.Batch <= 64 {
		t.Errorf("batch %d after %+v", j.now.Batch, j.asked)
	}
	if len(j.told) != 1 || j.told[0] != "what may change: batch 32–1024, shares of work" {
		t.Errorf("people were told %q", j.told)
	}
}

// A change that waits for the end of a step is waited for. When the head has dropped it, since the
// job has come to that size by itself or a person has asked for another one, policies decide again.
func TestADroppedChangeIsNotWaitedFor(t *testing.T) {
	j := newJob()
	j.holds = true
	l := newLoop(t, j, act.Auto)
	if runLooks(l, j, 20); len(j.asked) != 1 {
		t.Fatalf("the job was asked for %+v", j.asked)
	}
	j.waits = false
	if runLooks(l, j, 10); len(j.asked) != 2 {
		t.Errorf("after the first change was dropped the job was asked for %+v", j.asked[1:])
	}
	why := l.WhyNots()
	if len(why) == 0 || !strings.Contains(why[len(why)-1].Why, "was ordered, and the job has") {
		t.Errorf("the first change was not made since %+v", why)
	}
}

// People are told that policies may change how workers synchronise, where the program leaves it.
func TestSyncIsTold(t *testing.T) {
	j := newJob()
	j.auto = true
	runLooks(newLoop(t, j, act.Auto), j, 2)
	if len(j.told) != 1 || !strings.HasSuffix(j.told[0], ", how workers synchronise") {
		t.Errorf("people were told %q", j.told)
	}
}

// People are told once that nothing may change in a job on a mesh.
func TestMeshIsTold(t *testing.T) {
	j := newJob()
	j.onMesh = true
	runLooks(newLoop(t, j, act.Auto), j, 2)
	if len(j.told) != 1 || !strings.HasPrefix(j.told[0], "what may change: nothing, since a job") {
		t.Errorf("people were told %q", j.told)
	}
}

// People are told that the batch stays, and why.
func TestClosedBatchIsTold(t *testing.T) {
	j := newJob()
	j.batch = setting.Range{}
	runLooks(newLoop(t, j, act.Auto), j, 2)
	if len(j.told) != 1 || j.told[0] !=
		"what may change: shares of work; the batch stays, as the program gives no range for it" {
		t.Errorf("people were told %q", j.told)
	}
}

// People are told that shares of work are closed, and that they are not equal although they must
// be.
func TestClosedSharesAreTold(t *testing.T) {
	j := newJob()
	j.alike, j.now.Shares = true, []uint16{2, 1}
	runLooks(newLoop(t, j, act.Auto), j, 2)
	if len(j.told) != 1 ||
		!strings.HasPrefix(j.told[0], "what may change: batch 32–1024; shares of work are clo") ||
		!strings.Contains(j.told[0], "unequal now: shoal set JOB shares=1") {
		t.Errorf("people were told %q", j.told)
	}
}

// People are told nothing of shares of work where one worker has all of it, and that stays so.
func TestSharesOfOneWorkerAreNotTold(t *testing.T) {
	for _, x := range []struct {
		mode  act.Mode
		alike bool
		most  uint64
		want  string
	}{
		{act.Auto, false, 0, "what may change: batch 32–1024"},
		{act.Auto, true, 0, "what may change: batch 32–1024"},
		{act.Auto, false, 4, "what may change: batch 32–1024, size 1–4, shares of work"},
		{act.Off, false, 0, ""},
	} {
		j := newJob()
		j.size, j.most, j.alike, j.now.Sync, j.now.Round = 1, x.most, x.alike, "pair", 16
		l := newLoop(t, j, x.mode)
		runLooks(l, j, 2)
		if told := strings.Join(j.told, "\n"); told != x.want {
			t.Errorf("%+v: people were told %q", x, told)
		}
		j.size, j.told = 2, nil
		runLooks(l, j, 2)
		if told := strings.Join(j.told, "\n"); strings.Contains(told, "shares") != (x.most == 0) {
			t.Errorf("%+v: when another one has joined people were told %q", x, told)
		}
	}
}

// Where nobody has policies decide, people are told that work is divided among workers that average
// in pairs, as long as that may be.
func TestSharesOfPairsAreTold(t *testing.T) {
	for sync, want := range map[string]string{"": "", "local": "",
		"hybrid": "shares of work, since", "pair": "shares of work, since"} {
		j := newJob()
		j.now.Sync, j.now.Round = sync, 16
		runLooks(newLoop(t, j, act.Off), j, 2)
		if told := strings.Join(j.told, "\n"); (told != "") != (want != "") ||
			!strings.Contains(told, want) {
			t.Errorf("by %q people were told %q", sync, told)
		}
		j.told, j.alike = nil, true
		if runLooks(newLoop(t, j, act.Off), j, 2); len(j.told) > 0 {
			t.Errorf("by %q people were told %q of parts that are alike", sync, j.told)
		}
	}
}

// Where workers average in pairs no more, people are told that their shares stay, and how unequal
// ones become equal.
func TestSharesOfPairsStay(t *testing.T) {
	j := newJob()
	j.now.Sync, j.now.Round = "pair", 16
	l := newLoop(t, j, act.Off)
	runLooks(l, j, 2)
	j.now.Sync, j.now.Round, j.now.Shares = "ssgd", 1, []uint16{3, 1}
	runLooks(l, j, 2)
	if len(j.told) != 2 || !strings.HasPrefix(j.told[1], "what may change: nothing") ||
		!strings.Contains(j.told[1], "unequal now: shoal set JOB shares=1") {
		t.Errorf("people were told %q", j.told)
	}
}

// Who does not lead changes nothing, nor does who is not to decide; who watches says what it would.
func TestLoopHoldsBack(t *testing.T) {
	for _, x := range []struct {
		name  string
		mode  act.Mode
		leads bool
		tells bool
	}{{"follower", act.Auto, false, false}, {"off", act.Off, true, false},
		{"watch", act.Watch, true, true}} {
		j := newJob()
		j.leads = x.leads
		runLooks(newLoop(t, j, x.mode), j, 60)
		if len(j.asked) > 0 || x.tells != (len(j.told) > 0) ||
			x.tells && !strings.Contains(j.told[1], "would change batch 64 -> ") {
			t.Errorf("%s: asked for %v, told %q", x.name, j.asked, j.told)
		}
	}
}

// What the head refuses is not asked for again at once; that another host leads now is no refusal.
func TestRefusalsAreTaken(t *testing.T) {
	for _, why := range []error{errors.New("the job is paused"), head.ErrNotHead} {
		j := newJob()
		j.refuse = why
		l := newLoop(t, j, act.Auto)
		runLooks(l, j, 30)
		noted := false
		for _, w := range l.WhyNots() {
			noted = noted || strings.Contains(w.Why, "the job is paused")
		}
		if noted != (why != head.ErrNotHead) {
			t.Errorf("%v: noted %v: %+v", why, noted, l.WhyNots())
		}
	}
}

// badPolicy panics, and has the batch.
type badPolicy struct{ levers []string }

// The methods of badPolicy implement decide.Policy.

func (badPolicy) Name() string       { return "bad" }
func (p badPolicy) Levers() []string { return p.levers }
func (badPolicy) Decide(sense.Observation, decide.Twin, []byte) (decide.Decision, []byte) {
	panic(errors.New("the policy ./bad.py: it has ended"))
}

// A policy of a user takes the place of that of shoal; one that fails three times is asked no more,
// which is told, and changes nothing.
func TestUsersPolicies(t *testing.T) {
	j := newJob()
	runLooks(newLoop(t, j, act.Auto, badPolicy{[]string{"batch"}}), j, 60)
	if len(j.asked) > 0 || len(j.told) != 4 ||
		!strings.Contains(j.told[1], "bad left things as they are: ") ||
		!strings.Contains(j.told[1], "it has ended") ||
		!strings.Contains(j.told[3], "not asked any more") {
		t.Errorf("asked for %v, told %q", j.asked, j.told)
	}
	j = newJob()
	bad := badPolicy{[]string{"batch"}}
	runLooks(newLoop(t, j, act.Auto, bad, bad), j, 60)
	if len(j.told) != 2 || !strings.Contains(j.told[0], "only the policies of shoal decide") ||
		len(j.asked) == 0 {
		t.Errorf("with two for one lever: asked for %v, told %q", j.asked, j.told)
	}
}

// A worker that ends by itself in the first step of a larger batch has it taken back at once, also
// where the loop has not looked at the job since the change.
func TestLostInTheFirstStep(t *testing.T) {
	j := newJob()
	l := newLoop(t, j, act.Auto)
	for len(j.asked) == 0 {
		runLooks(l, j, 1)
	}
	l.WorkerFailed("worker 1 ended with code 1")
	if n := len(j.asked); n != 2 || j.asked[1].Phase != setting.Reverted || j.now.Batch != 64 {
		t.Errorf("batch %d after %+v", j.now.Batch, j.asked)
	}
}

// What a person has set stays, also where another agent comes to lead, whose policies only then
// begin to run, and that of a host that has joined since.
func TestPersonsChangeOutlivesHead(t *testing.T) {
	for _, joins := range []bool{false, true} {
		j := newJob()
		j.leads = false
		l := newLoop(t, j, act.Auto)
		runLooks(l, j, 10)
		c := setting.Change{Number: 1, Phase: setting.Entered, Who: "ada", From: "batch=64",
			To: "batch=128"}
		for _, c.Phase = range []setting.Phase{setting.Entered, setting.Kept} {
			if err := j.Change(setting.Setting{Batch: 128}, c); err != nil {
				t.Fatal(err)
			}
			runLooks(l, j, 10)
		}
		if joins {
			l = newLoop(t, j, act.Auto)
		}
		j.leads = true
		runLooks(l, j, 60)
		if len(j.asked) != 2 {
			t.Errorf("joins: %t; policies have changed what a person has set: %+v", joins, j.asked)
		}
	}
}

// Nobody waits for policies that are long in starting, and nobody decides until they have.
func TestStartHoldsNobodyUp(t *testing.T) {
	j := newJob()
	l := newLoop(t, j, act.Auto)
	release := make(chan struct{})
	l.Drive(act.Auto, func(*group.Group) []decide.Policy { <-release; return nil })
	j.train(10)
	l.runTurn()
	users := l.popUserPolicies()
	l.group.Go("start", func(context.Context) error { l.startUsers(users); return nil })
	for range 30 {
		j.train(10)
		l.runTurn()
	}
	if c := l.Predict(setting.Setting{Batch: 128}, "ada"); !c.Predicted.IsKnown() ||
		len(j.asked)+len(l.WhyNots()) > 0 {
		t.Errorf("before policies run: asked for %v, left %v, predicted %+v", j.asked, l.WhyNots(),
			c)
	}
	close(release)
	for len(j.asked) == 0 {
		runLooks(l, j, 1)
	}
}

// watchedJob is a job of which only one look is taken at a time.
type watchedJob struct {
	*fakeJob
	l    *Loop
	free bool // somebody else could have looked meanwhile, and told the loop first
}

// Look implements Job.
func (j *watchedJob) Look() (Look, bool) {
	if j.l.mu.TryLock() {
		j.l.mu.Unlock()
		j.free = true
	}
	return j.fakeJob.Look()
}

// The loop learns what has become of the job in the order in which it has, whoever looks.
func TestLooksAreInOrder(t *testing.T) {
	j := &watchedJob{fakeJob: newJob()}
	j.l = New(j, nil)
	j.l.runTurn()
	if j.free {
		t.Error("two looks at once may be taken in the wrong order")
	}
}

// A person's change has a prediction, as far as one can be made, and always who asked.
func TestPredict(t *testing.T) {
	j := newJob()
	l := newLoop(t, j, act.Off)
	for _, steps := range []int{0, 100} {
		j.train(steps)
		c := l.Predict(setting.Setting{Batch: 128}, "ada@host")
		if c.Phase != setting.Entered || c.Who != "ada@host" ||
			c.Predicted.IsKnown() != (steps > 0) {
			t.Errorf("after %d steps: %+v", steps, c)
		}
	}
	j.closed = true
	if c := l.Predict(setting.Setting{Batch: 128}, "ada@host"); c.Who != "ada@host" ||
		c.Predicted.IsKnown() { // by the steps of before
		t.Errorf("of a closed job: %+v", c)
	}
	if got := fmt.Sprint(len(j.asked)); got != "0" {
		t.Errorf("a prediction has changed the job %s times", got)
	}
}

// What workers say that keep their way to synchronise is told to the agent that leads, which may
// have no workers, until the setting has their way. The agent that leads tells nobody.
func TestWorkersThatStayAreToldToTheHead(t *testing.T) {
	for _, leads := range []bool{false, true} {
		j := newJob()
		j.leads, j.auto = leads, true
		j.now = setting.Setting{Batch: 64, Sync: "local", Round: 4, Number: 3}
		l := newLoop(t, j, act.Off)
		runLooks(l, j, 2)
		want := act.Stay{Number: 3, Sync: setting.Ssgd, Why: "rank 2 has another anchor"}
		l.WorkersStayed(want)
		runLooks(l, j, 2)
		if leads {
			if len(j.stays) > 0 {
				t.Errorf("the head has told itself %+v", j.stays)
			}
			continue
		}
		if len(j.stays) != 2 || j.stays[0] != want || j.stays[1] != want {
			t.Fatalf("the head was told %+v", j.stays)
		}
		j.now = setting.Setting{Batch: 64, Sync: setting.Ssgd, Round: 1, Number: 4}
		runLooks(l, j, 2)
		if len(j.stays) != 2 {
			t.Errorf("the setting has their way, and the head was told once more: %+v", j.stays)
		}
	}
}
