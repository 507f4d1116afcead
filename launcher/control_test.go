package launcher

import (
	"context"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// joined is the agent of a host that has just joined a job: it knows nothing until told.
// The test sets status before it closes told. Await alone is there: other methods panic.
type joined struct {
	hostAgent
	status agent.Status
	told   chan struct{} // closed by the test when the host knows its status
	asked  chan struct{} // closed when somebody waits for the status
}

// Await returns the empty status if that fits; else it blocks until the test has told j.status, or
// ctx ends. It may be called so once.
func (j *joined) Await(ctx context.Context, fits func(agent.Status) bool) (agent.Status, error) {
	if fits(agent.Status{}) {
		return agent.Status{}, nil
	}
	close(j.asked)
	select {
	case <-j.told:
		return j.status, nil
	case <-ctx.Done():
		return agent.Status{}, context.Cause(ctx)
	}
}

// waiter is a context that tells when somebody waits for its end.
type waiter struct {
	context.Context
	once sync.Once
	asks chan struct{} // closed by the first call of Done
}

// Done tells the test that somebody waits, and returns the channel of the context.
func (w *waiter) Done() <-chan struct{} {
	w.once.Do(func() { close(w.asks) })
	return w.Context.Done()
}

// Who asks a host that has just joined waits until the host knows what the job is and who leads it.
func TestQuestionsOfAHostThatHasJoined(t *testing.T) {
	a := &joined{status: agent.Status{Head: "a"}, told: make(chan struct{}),
		asked: make(chan struct{})}
	l := &launcher{agent: a, registry: newRegistry("b", 0), reporter: newReporter(nil, nil)}
	ctx := &waiter{Context: t.Context(), asks: make(chan struct{})}
	answer := httptest.NewRecorder()
	g := group.New(t.Context())
	g.Go("ask", func(context.Context) error {
		l.answerJob(answer, httptest.NewRequestWithContext(ctx, "GET", api.PathJob, nil))
		return nil
	})
	<-ctx.asks
	j := &jobMessage{}
	j.Spec.Name = "train"
	l.registry.setJob(j)
	<-a.asked
	close(a.told)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	if text := answer.Body.String(); answer.Code != 503 ||
		!strings.Contains(text, "job train is led from host a: ask there") {
		t.Errorf("%d %s", answer.Code, text)
	}
}

// follower is the agent of a host that knows its job. Methods that are not here panic.
type follower struct {
	hostAgent
	status agent.Status
}

// Await returns the status, which has to fit.
func (f follower) Await(_ context.Context, fits func(agent.Status) bool) (agent.Status, error) {
	if !fits(f.status) {
		return f.status, errors.New("nobody leads")
	}
	return f.status, nil
}

// Status returns the status.
func (f follower) Status() agent.Status { return f.status }

// Waits returns that nobody waits.
func (f follower) Waits() map[int]api.Wait { return nil }

// BytesSent returns that nothing was sent.
func (f follower) BytesSent() uint64 { return 0 }

// SlowHosts returns that no host is slow.
func (f follower) SlowHosts() []string { return nil }

// A host is asked for the end of a job that it does not lead, as it has handed over since it was
// found, say: it does not end its own part of the job, and says who leads. One that waits to be
// told that the others are gone ends its part.
func TestStopWhereTheJobIsNotLed(t *testing.T) {
	for what, c := range map[string]struct {
		status agent.Status
		code   int
		says   string
		by     string
	}{
		"another leads": {agent.Status{Head: "a"}, 503, "job train is led from host a: ask there",
			""},
		"nobody leads": {agent.Status{}, 503, "was not told yet which host leads it", ""},
		"it leads":     {agent.Status{Head: "b"}, 200, `"state":"stopping"`, "ada"},
		"it is over":   {agent.Status{Ended: true}, 200, `"job":"train"`, ""},
		"it is stuck":  {agent.Status{Head: "a", Stuck: true}, 200, `"stopped_by":"ada"`, "ada"},
	} {
		l := &launcher{agent: follower{status: c.status}, registry: newRegistry("b", 0),
			reporter: newReporter(nil, nil)}
		j := &jobMessage{}
		j.Spec.Name = "train"
		l.registry.setJob(j)
		answer := httptest.NewRecorder()
		l.answerStop(answer, httptest.NewRequestWithContext(t.Context(), "POST", api.PathStop,
			strings.NewReader(`{"now":true,"who":"ada"}`)))
		text := answer.Body.String()
		if answer.Code != c.code || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d with %q", what, answer.Code, text, c.code, c.says)
		}
		if by := l.registry.stoppedBy(); by != c.by {
			t.Errorf("%s: stopped by %q, want %q", what, by, c.by)
		}
	}
}

// A host that has joined a job, and leads it now, says with which name the job was started, and
// keeps that in the files of its run.
func TestNameWithWhichAJobWasStarted(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	parent := t.TempDir()
	l, err := newLauncher(RunConfig{Dir: parent}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.place.Close()
	l.agent = follower{status: agent.Status{Head: "b"}}
	l.registry.setHost("b")
	err = l.setJob(jobMessage{Spec: job.Spec{Name: "train-2"}, Asked: "train"}, "", "@b")
	if err != nil {
		t.Fatal(err)
	}
	defer l.reporter.directory().Close()
	answer := httptest.NewRecorder()
	l.answerJob(answer, httptest.NewRequestWithContext(t.Context(), "GET", api.PathJob, nil))
	if text := answer.Body.String(); !strings.Contains(text, `"job":"train-2"`) ||
		!strings.Contains(text, `"requested_name":"train"`) {
		t.Errorf("it says %s", text)
	}
	r, err := runs.ReadRecord(filepath.Join(parent, "train-2@b"))
	if err != nil || r.Asked != "train" {
		t.Errorf("its files have %+v %v", r, err)
	}
}

// suspecter is the agent of a host that is told that others are gone.
type suspecter struct {
	hostAgent
	suspected []string
}

// SuspectHost notes who is said to be gone.
func (s *suspecter) SuspectHost(host string) { s.suspected = append(s.suspected, host) }

// A host is told that another one of its run is gone; what is said of another run is refused.
func TestLost(t *testing.T) {
	a := &suspecter{}
	l := &launcher{agent: a, registry: newRegistry("b", 0), reporter: newReporter(nil, nil)}
	for body, code := range map[string]int{
		`{"host":"a","dir":"","who":"the operator"}`: 200,
		`{"host":"c","dir":"/runs/other","who":"x"}`: 409,
		`{"hosts":["c"]}`: 400,
	} {
		answer := httptest.NewRecorder()
		l.answerLost(answer, httptest.NewRequest("POST", api.PathLost, strings.NewReader(body)))
		if answer.Code != code {
			t.Errorf("%s: %d %s, want %d", body, answer.Code, answer.Body, code)
		}
	}
	if len(a.suspected) != 1 || a.suspected[0] != "a" {
		t.Errorf("suspected are %q", a.suspected)
	}
}

// Who waits in vain is told what is missing.
func TestQuestionsThatNobodyCanAnswer(t *testing.T) {
	l := &launcher{registry: newRegistry("b", 0), reporter: newReporter(nil, nil)}
	ask := func(ctx context.Context, want string) {
		t.Helper()
		answer := httptest.NewRecorder()
		l.answerJob(answer, httptest.NewRequestWithContext(ctx, "GET", api.PathJob, nil))
		if text := answer.Body.String(); answer.Code != 503 || !strings.Contains(text, want) {
			t.Errorf("%d %s, want %q", answer.Code, text, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ask(ctx, "was not told yet what it is")
	j := &jobMessage{}
	j.Spec.Name = "train"
	l.registry.setJob(j)
	a := &joined{told: make(chan struct{}), asked: make(chan struct{})}
	l.agent = a
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	g := group.New(t.Context())
	g.Go("give up", func(context.Context) error {
		<-a.asked
		cancel()
		return nil
	})
	ask(ctx, "has joined job train, and was not told yet which host leads it")
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// unparkable is the agent of a job that cannot be parked, and has made seven steps. Park and Status
// alone are there: other methods panic.
type unparkable struct {
	hostAgent
	meanwhile func() // what happens while it is asked
}

// Status has the steps alone.
func (u *unparkable) Status() (s agent.Status) {
	s.Steps = 7
	return s
}

// Park refuses to park the job, after what happens meanwhile.
func (u *unparkable) Park(string) error {
	u.meanwhile()
	return errors.New("the job is ending")
}

// A wish to park the job that is refused leaves what has come of an earlier one, or still does.
func TestRefusedParkChangesNothing(t *testing.T) {
	sealed := func(l *launcher) { l.registry.shutdown.park.setOutcome(&parkMessage{Steps: 7}) }
	nothing := func(*launcher) {}
	for what, c := range map[string]struct {
		before, meanwhile func(*launcher)
		want              api.ParkStatus
	}{
		"nobody has asked before": {nothing, nothing, api.ParkStatus{}},
		"it is being parked": {func(l *launcher) { l.registry.requestPark("ada", 5) }, nothing,
			api.ParkStatus{ParkedBy: "ada"}},
		"it is parked": {sealed, nothing, api.ParkStatus{Parked: true}},
		"it could not be parked": {func(l *launcher) {
			l.registry.shutdown.park.setOutcome(&parkMessage{Problem: "no checkpoint"})
		}, nothing, api.ParkStatus{ParkError: "no checkpoint"}},
		"what it said controls no terminal": {func(l *launcher) {
			l.registry.shutdown.park.setOutcome(&parkMessage{Problem: "\x1b[2Jno\nroom"})
		}, nothing, api.ParkStatus{ParkError: `\x1b[2Jno\nroom`}},
		"it is parked meanwhile": {func(l *launcher) { l.registry.requestPark("ada", 5) }, sealed,
			api.ParkStatus{Parked: true}},
		"it could not be parked meanwhile": {
			func(l *launcher) { l.registry.requestPark("ada", 5) }, func(l *launcher) {
				l.registry.shutdown.park.setOutcome(&parkMessage{Steps: 6, Problem: "no room"})
			}, api.ParkStatus{ParkError: "no room"}},
	} {
		l := &launcher{registry: newRegistry("a", 0)}
		l.agent = &unparkable{meanwhile: func() { c.meanwhile(l) }}
		c.before(l)
		answer := httptest.NewRecorder()
		l.answerPark(answer, httptest.NewRequestWithContext(t.Context(), "POST", api.PathPark,
			strings.NewReader(`{"who":"bob"}`)))
		if text := answer.Body.String(); answer.Code != 409 ||
			!strings.Contains(text, "the job is ending") {
			t.Errorf("%s: %d %s", what, answer.Code, text)
		}
		if got := l.registry.describePark(); got != c.want {
			t.Errorf("%s: %+v, want %+v", what, got, c.want)
		}
	}
}

// While the head is asked to park the job, nobody else asks: of two wishes that are both refused,
// the one that came first would stay.
func TestOneWishToParkAtATime(t *testing.T) {
	l := &launcher{registry: newRegistry("a", 0)}
	l.agent = &unparkable{meanwhile: func() {
		if l.parkAsked.TryLock() {
			l.parkAsked.Unlock()
			t.Error("somebody else can ask meanwhile")
		}
	}}
	if l.askToPark("ada") == nil || l.registry.describePark() != (api.ParkStatus{}) {
		t.Errorf("%+v", l.registry.describePark())
	}
}

// What a worker says late of a wish that has come to nothing is not taken for what has come of a
// new one; that a checkpoint is sealed always counts.
func TestALateReportOfAnEarlierParkIsNotOfTheNext(t *testing.T) {
	r := newRegistry("a", 0)
	say := func(steps uint64, problem string, want api.ParkStatus) {
		t.Helper()
		r.shutdown.park.setOutcome(&parkMessage{Steps: steps, Problem: problem})
		if got := r.describePark(); got != want {
			t.Errorf("after %d steps a worker says %q: %+v, want %+v", steps, problem, got, want)
		}
	}
	r.requestPark("ada", 6)
	say(7, "no room", api.ParkStatus{ParkError: "no room"})
	r.requestPark("bob", 7)
	say(7, "no room", api.ParkStatus{ParkedBy: "bob"}) // another worker, of the same checkpoint
	say(8, "still none", api.ParkStatus{ParkError: "still none"})
	r.requestPark("cid", 8)
	say(8, "", api.ParkStatus{Parked: true})
}

// Of a job that is asked to end, too, people hear that too few hosts are left for its step to end.
func TestStateOfStuckJob(t *testing.T) {
	for _, c := range []struct {
		by     string
		parked bool
		want   api.State
	}{{"", false, api.Stuck}, {"ada", false, api.Stuck}, {"", true, api.Parked}} {
		j := api.Job{Generation: 3, StoppedBy: c.by}
		j.Parked = c.parked
		if got := stateOf(&j, true, true); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// A paused job that is to be parked is being parked, but on a mesh it waits for others first.
func TestStateOfPausedJob(t *testing.T) {
	for _, c := range []struct {
		by, mesh string
		parked   bool
		want     api.State
	}{
		{"", "", false, api.Paused}, {"ada", "", false, api.Parking},
		{"ada", "dp=4", false, api.Paused}, {"", "", true, api.Parked},
	} {
		j := api.Job{Generation: 3, Paused: true, MeshStatus: api.MeshStatus{Mesh: c.mesh}}
		j.ParkedBy, j.Parked = c.by, c.parked
		if got := stateOf(&j, false, true); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
}
