package keeper

import (
	"context"
	"encoding/json"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"unicode/utf8"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/pool"
	"github.com/shoal-ml/shoal/setting"
)

// A part that is gone when its keeper comes was lost with the keeper before. One that has lived
// while its keeper did has ended by itself, whoever started it, unless its job says that it has
// lost a host.
func TestLost(t *testing.T) {
	for _, c := range []struct {
		lived  bool
		result string // result.json of the run; "" = there is none
		want   bool
	}{
		{false, "", true}, {true, "", false}, {false, `{"ok":false,"error":"x"}`, false},
		{false, `{"goes_on":"b"}`, true}, {true, `{"lost_host":"b"}`, true}, {true, `{"goes_on":"b"}`, false},
		{false, `{"unstarted":true,"error":"x"}`, true}, {true, `{"unstarted":true}`, false},
	} {
		dir := t.TempDir()
		g := group.New(t.Context())
		p := newPart(newHost(Config{Name: "lab", Host: "here", Slots: 2, Dir: dir}, g), "one")
		p.saved = saved{Attempt: 1, Part: 1, Joins: true, PID: 4194305, Run: dir}
		lock, err := os.Create(filepath.Join(dir, "one"+lockSuffix))
		if err != nil {
			t.Fatal(err)
		}
		if c.lived {
			if err := durable.Flock(lock, syscall.LOCK_EX); err != nil {
				t.Fatal(err)
			}
			if p.look(t.Context()) {
				t.Fatal("it is gone while a process of it lives")
			}
		}
		lock.Close()
		if c.result != "" {
			err := os.WriteFile(filepath.Join(dir, "result.json"), []byte(c.result), 0o600)
			if err != nil {
				t.Fatal(err)
			}
		}
		if x := p.report(p.look(t.Context())).End; x == nil || x.Lost != c.want {
			t.Errorf("%+v: %+v", c, x)
		}
	}
}

// A launcher that has ended well and could not write its result, as on a full disk, has ended its
// job, which is not done again. That is not known of one that was killed or has failed, of one that
// an earlier keeper has started, and where the job was to be parked or has other hosts.
func TestEndWithoutResult(t *testing.T) {
	parks := func(by string, done bool) api.Training {
		return api.Training{ParkStatus: api.ParkStatus{ParkedBy: by, Parked: done}}
	}
	well, failed, killed := syscall.WaitStatus(0), syscall.WaitStatus(1<<8), syscall.WaitStatus(9)
	for _, c := range []struct {
		exit *syscall.WaitStatus
		job  *api.Job
		want pool.End
	}{
		{&well, &api.Job{}, pool.End{Final: true, OK: true}},
		{&well, &api.Job{Hosts: []string{"h1"}}, pool.End{Final: true, OK: true}},
		{&well, &api.Job{StoppedBy: "ada"}, pool.End{Final: true, OK: true, Stopped: "ada"}},
		{&failed, &api.Job{}, pool.End{}}, {&killed, &api.Job{}, pool.End{}},
		{nil, &api.Job{}, pool.End{}}, {&well, nil, pool.End{}},
		{&well, &api.Job{Hosts: []string{"h1", "h2"}}, pool.End{}},
		{&well, &api.Job{Training: parks("ada", false)}, pool.End{}},
		{&well, &api.Job{Training: parks("", true)}, pool.End{}},
	} {
		p := newPart(newHost(Config{Name: "lab", Host: "here", Slots: 2, Dir: t.TempDir()},
			group.New(t.Context())), "one")
		p.saved = saved{Attempt: 1, Part: 1, PID: 4194305, Run: t.TempDir()}
		if p.exit = c.exit; c.job != nil {
			p.job = &control.Job{Job: *c.job}
		}
		c.want.Dir = p.saved.Run
		if x := p.end(); *x != c.want {
			t.Errorf("%+v of %v: %+v, want %+v", c.job, c.exit, *x, c.want)
		}
	}
}

// A launcher takes the reason for the slots that its job gets, whatever that is: a job whose
// launcher refuses slots keeps those that it has.
func TestReasonForSlots(t *testing.T) {
	h := newHost1(t)
	socket, err := rundir.Path()
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(socket, "j"+rundir.ControlSuffix)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan api.Allot, 1)
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			var ask api.Allot
			_ = json.NewDecoder(r.Body).Decode(&ask)
			asked <- ask
			_ = json.NewEncoder(w).Encode(api.Job{})
		})}}
	server.Start()
	t.Cleanup(server.Close)
	p := newPart(newHost(Config{Name: "lab", Dir: h.dir}, nil), "one")
	for text, want := range map[string]string{
		"2 slots for urgent": "2 slots for urgent", "one\n\tline\x1b[31m": "one  line [31m",
		"it was not parked: " + strings.Repeat("ö", 100): "it was not parked: " +
			strings.Repeat("ö", 69) + "…"} {
		p.job = control.AtSocket(socket)
		p.job.Elastic, p.job.Generation = true, 1
		p.allot = pool.Order{Verb: pool.AllotRun, Allot: pool.Slots{"here": 1}, Because: text}
		if err := p.giveSlots(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := (<-asked).Because; got != want || len(got) > member.MaxWho {
			t.Errorf("%q is given as %q, want %q", text, got, want)
		}
	}
}

// An agent that could not be started was not lost with anything: three such starts in a row are the
// failure of the job.
func TestNotStartedIsNotLost(t *testing.T) {
	g := group.New(t.Context())
	p := newPart(newHost(Config{Name: "lab", Host: "here", Slots: 2, Dir: t.TempDir()}, g), "one")
	p.saved = saved{Attempt: 1, Part: 1, Joins: true}
	p.failed = os.ErrPermission
	if x := p.report(true).End; x == nil || x.Final || x.Lost {
		t.Errorf("%+v", x)
	}
}

// However much a launcher says when it fails, in whatever characters, the record of its job is one
// that the next keeper reads, and its report one that other keepers take.
func TestLongLastWords(t *testing.T) {
	h := newHost1(t)
	k := h.start(h.record)
	<-k.up
	if _, err := h.submit("one", "raves"); err != nil {
		t.Fatal(err)
	}
	h.until("the end of the job", func() bool { return h.job("one").State == pool.Failed })
	said := h.job("one").Error
	if n := utf8.RuneCountInString(said); n != maxWhy+1 ||
		!strings.HasPrefix(said, "ö\ufffd\x1bö") || !strings.HasSuffix(said, "…") {
		t.Errorf("%d characters: %.40q", n, said)
	}
	r := &pool.Report{Host: "here", Jobs: []pool.JobReport{{Job: "one", Attempt: 1,
		Refused: shorten(strings.Repeat("ö\xff\x1b", 200_000), maxRefused),
		End:     &pool.End{Error: said}}}}
	b, err := (&message{Report: r}).encode()
	if err == nil {
		_, err = decodeMessage(b)
	}
	if err != nil {
		t.Error(err)
	}
	k.cancel()
	if err := <-k.ended; err != nil {
		t.Fatal(err)
	}
	k = h.start(h.record)
	select {
	case <-k.up:
	case err := <-k.ended:
		t.Fatal(err)
	}
	if v := h.job("one"); v.Error != said {
		t.Errorf("the next keeper reads %.40q", v.Error)
	}
}

// A report of a step that takes no time that can be ends the link: the inverse of it may be no
// number that the record can have.
func TestReportOfPace(t *testing.T) {
	for pace, fine := range map[float64]bool{0: true, 1e-6: true, 86400: true, 1e-320: false,
		math.MaxFloat64: false, -1: false} {
		b, err := (&message{Report: &pool.Report{Host: "here", Jobs: []pool.JobReport{{Job: "one",
			Attempt: 1, Part: 1, Live: true, Led: &pool.Led{Pace: pace}}}}}).encode()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeMessage(b); (err == nil) != fine {
			t.Errorf("a step that takes %g s: %v", pace, err)
		}
	}
}

// A text is cut between characters, and only where it is too long.
func TestShorten(t *testing.T) {
	for _, c := range []struct {
		text string
		most int
		want string
	}{
		{"", 0, ""}, {"a", 0, "…"}, {"öö", 2, "öö"}, {"ööö", 2, "öö…"}, {"\xc3", 1, "\ufffd"},
		{"ö\xff\xffö", 3, "ö\ufffd…"},
	} {
		if got := shorten(c.text, c.most); got != c.want {
			t.Errorf("%q, at most %d: %q, want %q", c.text, c.most, got, c.want)
		}
	}
}

// The pool counts optimizer steps, and a launcher tells what one of these takes, also of rounds.
func TestPaceIsOfAnOptimizerStep(t *testing.T) {
	j := &control.Job{}
	j.Elastic, j.Pace, j.Setting = true, &api.Pace{Median: 0.25}, &setting.Setting{Round: 16}
	if got := led(j).Pace; got != 0.25 {
		t.Errorf("a step takes %v s, want 0.25", got)
	}
}

// The steps of a job are its commits, or what workers report where its program makes them by
// itself; a report that cannot be counts for nothing.
func TestStepsOfAJob(t *testing.T) {
	for i, c := range []struct {
		elastic bool
		steps   uint64
		reports []float64
		want    uint64
	}{
		{true, 7, []float64{12}, 7}, {false, 0, []float64{3, 12, 11}, 12}, {false, 0, nil, 0},
		{false, 0, []float64{-1, 0.5, 1e300}, 0}, {false, 2, []float64{1}, 2},
	} {
		j := &control.Job{}
		j.Elastic, j.Steps = c.elastic, c.steps
		for _, step := range c.reports {
			j.Workers = append(j.Workers, api.Worker{Metrics: api.Metrics{"step": step}})
		}
		if got := led(j).Steps; got != c.want {
			t.Errorf("case %d: %d steps, want %d", i, got, c.want)
		}
	}
}

// A keeper that begins says nothing of its host before it has found the jobs there, however long
// their launchers take to answer: the head would take them for gone, and end them.
func TestNothingIsReportedBeforeJobsAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g := group.New(ctx)
		host := newHost(Config{}, g)
		made := 0
		g.Go("reports", func(ctx context.Context) error {
			return host.reports(ctx, func() { made++ })
		})
		host.tell()
		synctest.Wait()
		if made > 0 {
			t.Errorf("%d reports were made", made)
		}
		close(host.found)
		synctest.Wait()
		if made != 1 {
			t.Errorf("%d reports were made then", made)
		}
		cancel()
		if err := g.Wait(); err != nil {
			t.Error(err)
		}
	})
}
