package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/setting"
)

// scripted is a launcher that answers each request with the next of its answers, and hangs up
// after the last. It serves one request at a time.
type scripted struct {
	answers []string // bodies of answers; one that begins with a digit has that status
	asked   []string // what was asked for, in order
}

// ServeHTTP gives the next answer.
func (s *scripted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == api.PathSet {
		var ask api.Set
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil {
			panic(err)
		}
		s.asked = append(s.asked, ask.Assign)
	}
	if len(s.answers) == 0 {
		panic(http.ErrAbortHandler) // hangs up
	}
	answer := s.answers[0]
	s.answers = s.answers[1:]
	if strings.HasPrefix(answer, "503 ") {
		w.WriteHeader(http.StatusServiceUnavailable)
		answer = fmt.Sprintf(`{"error":%q}`, answer[4:])
	}
	fmt.Fprint(w, answer)
}

// trains is the answer of a job that trains with a batch after so many changes, led from a host of
// two; next is the number of the change that waits, 0 = none does.
func trains(number, batch uint64, head string, next uint64) string {
	j := api.Job{Name: "train", Head: head, Hosts: []string{"a", "b"}, Training: api.Training{
		Setting: &setting.Setting{Number: number, Batch: batch},
		Levers:  &setting.Levers{Batch: setting.Range{From: 64, To: 1024}}}}
	if next > 0 {
		j.NextChange = &setting.Change{Number: next}
	}
	text, err := json.Marshal(j)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// A person who sets the batch hears what came of it, also when the head is lost meanwhile or
// somebody else is faster.
func TestSetWhenSomethingHappensMeanwhile(t *testing.T) {
	for name, x := range map[string]struct {
		answers  []string
		asked    int    // how often the job is asked for the batch
		out, err string // what is printed to out and to notes, and the error, in part
	}{
		"in force at once": {[]string{trains(0, 128, "a", 0), trains(0, 128, "a", 1),
			trains(1, 512, "a", 0)}, 1, "job train has batch=512 after", ""},
		"as it is": {[]string{trains(3, 512, "a", 0)}, 0, "job train has batch=512 already\n", ""},
		"so soon": {[]string{trains(2, 128, "a", 3), trains(3, 512, "a", 0),
			trains(3, 512, "a", 0)}, 0, "job train has batch=512 after", ""},
		"another change waits": {[]string{trains(0, 128, "a", 1), trains(0, 128, "a", 1),
			trains(1, 64, "a", 0), trains(1, 64, "a", 2), trains(2, 512, "a", 0)}, 1,
			"job train has batch=512 after", ""},
		"it ends while another change waits": {[]string{trains(0, 128, "a", 1)}, 0, "",
			"job train has ended before it had batch=512; shoal explain train says how"},
		"the head is lost": {[]string{trains(0, 128, "b", 0), trains(0, 128, "b", 1),
			trains(0, 128, "a", 0), trains(0, 128, "a", 1), trains(1, 512, "a", 0)}, 2,
			"host a, which leads now, is asked again\njob train has batch=512 after", ""},
		"changed again": {[]string{trains(0, 128, "a", 0), trains(0, 128, "a", 1),
			trains(2, 64, "a", 0)}, 1, "",
			"job train now has batch=64 and not batch=512: it was changed again since; shoal " +
				"explain train says why"},
		"somebody is faster": {[]string{trains(0, 128, "a", 0), "503 another change waits",
			trains(0, 128, "a", 1), trains(1, 64, "a", 0), trains(1, 64, "a", 2),
			trains(2, 512, "a", 0)}, 2, "job train has batch=512 after", ""},
		"refused": {[]string{trains(0, 128, "a", 0), "503 no", trains(0, 128, "a", 0)}, 1, "",
			"job train keeps its setting: no"},
		"led from elsewhere": {[]string{trains(0, 128, "a", 0), trains(0, 128, "a", 1),
			"503 job train is led from host b: ask there"}, 1, "",
			"ask there. A change that was not made yet is lost with the host that led"},
		"the launcher is gone": {[]string{trains(0, 128, "a", 0), trains(0, 128, "a", 1)}, 1, "",
			"job train has ended before it had batch=512; shoal explain train says how; if it " +
				"goes on on another host, a change that was not made yet is lost: ask again there"},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "ctl")
			l, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			fake := &scripted{answers: x.answers}
			server := &http.Server{Handler: fake}
			g := group.New(t.Context())
			g.Go("launcher", func(context.Context) error { return server.Serve(l) })
			j := control.AtSocket(socket)
			if err := j.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
			j.Dir = t.TempDir()
			var out strings.Builder
			err = (&setFlags{}).run(t.Context(), &out, &out, j, "batch=512")
			server.Close()
			_ = g.Wait() // that the server was closed
			if (err != nil) != (x.err != "") || err != nil &&
				!strings.Contains(err.Error(), x.err) {
				t.Errorf("error %v, expected %q", err, x.err)
			}
			if !strings.Contains(out.String(), x.out) {
				t.Errorf("printed %q, expected %q", out.String(), x.out)
			}
			if len(fake.asked) != x.asked {
				t.Errorf("asked for %v, expected %d times", fake.asked, x.asked)
			}
		})
	}
}

// A job that waits for workers, and is to have as many as a person sets, is not waited for: nobody
// would start them.
func TestSetSizeOfPausedJob(t *testing.T) {
	j := &control.Job{Job: api.Job{Name: "train", State: api.Paused, Size: 1, Min: 2}}
	j.Setting = &setting.Setting{Batch: 128, Size: 2}
	var out strings.Builder
	err := (&setFlags{json: true}).run(t.Context(), &out, &out, j, "size=2")
	if err == nil || err.Error() != "job train is to have size=2 already, and waits for workers; "+
		"shoal resize train 2 gives it more" {
		t.Error(err)
	}
}

// Shares go on to the members that come with the same step, and are not another change then.
func TestSharesOfOtherMembers(t *testing.T) {
	j := &control.Job{}
	for _, x := range []struct {
		number uint64
		batch  uint64
		shares []uint16
		want   bool
	}{
		{3, 128, []uint16{2, 1, 2}, true},
		{4, 128, []uint16{2, 1, 2}, false}, // another change
		{3, 64, []uint16{2, 1, 2}, false},  // another batch
		{3, 128, []uint16{1, 2}, false},    // the same members
	} {
		j.Setting = &setting.Setting{Number: x.number, Batch: x.batch, Shares: x.shares}
		if got := isOfOthers(j, "batch=128,shares=2:1", 3); got != x.want {
			t.Errorf("%+v: %v", x, got)
		}
	}
}

// A change is said whole, from its lines in the ledger.
func TestChangeText(t *testing.T) {
	c := setting.Change{Number: 3, Phase: setting.Entered, Policy: "batch", Step: 412,
		From: "batch=128", To: "batch=256", Because: "the gradient noise scale is 610 (480–790)",
		Alternatives: []string{"batch=512: 1.2x", "batch=64: 0.8x"},
		Predicted:    setting.Band{Low: 1.18, Mid: 1.31, High: 1.44}}
	begun := ledgerEntry(c, 412)
	c.Phase, c.Measured, c.Steps, c.Rate = setting.Kept, 1.27, 64, 1234.5
	got := changeText(append(begun, ledgerEntry(c, 480)...))
	for _, want := range []string{
		"change 3 at step 412: batch 128 -> 256\n",
		"  by           policy batch, ",
		"  because      the gradient noise scale is 610 (480–790)\n",
		"  instead of   batch=512: 1.2x\n               batch=64: 0.8x\n",
		"  predicted    1.31x goodput, in 80 of 100 cases 1.18 to 1.44\n",
		"  measured     1.27x over 64 steps, as against 1234 samples/s before, as predicted\n",
		"  came of it   kept at step 480\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%s\nhas no %q", got, want)
		}
	}
	c.Phase, c.Measured, c.Why = setting.Reverted, 0.93, "slower"
	got = changeText(append(begun, ledgerEntry(c, 480)...))
	if !strings.Contains(got, "not as predicted\n") ||
		!strings.Contains(got, "  came of it   taken back at step 480: slower\n") {
		t.Error(got)
	}
}

// ledgerEntry is the entry of a ledger about a change after so many steps, alone in a list.
func ledgerEntry(c setting.Change, step uint64) []runs.Entry {
	return []runs.Entry{{Event: agent.Event{What: "change", Step: step, Change: &c}}}
}

// Slow hosts are named, and what policies have not done. Of a run that is over the reasons are in
// its directory.
func TestWhyNotIsPrinted(t *testing.T) {
	j := api.Job{Training: api.Training{Auto: "act", Slow: []string{"host h2 is slow"},
		WhyNot: []api.WhyNot{
			{Policy: "batch", Why: "two", First: 20, Last: 20, Times: 1},
			{Why: "closed", First: 25, Last: 25, Times: 1},
			{Policy: "batch", Why: "three", First: 30, Last: 60, Times: 4},
			{Policy: "batch", Why: "four", First: 70, Last: 70, Times: 1}}}}
	want := `host h2 is slow
its policies change how it trains
  batch changed nothing at commit 20: two
  a person changed nothing at commit 25: closed
  batch changed nothing at 4 decisions, commits 30 to 60: three
  batch changed nothing at commit 70: four
`
	var b strings.Builder
	if err := printWhyNot(&b, j); err != nil || b.String() != want {
		t.Errorf("%v, printed:\n%s", err, b.String())
	}
	b.Reset()
	dir := t.TempDir()
	if err := printKeptWhyNot(&b, dir); err != nil || b.Len() > 0 {
		t.Errorf("%v, of a run without reasons:\n%s", err, b.String())
	}
	text, err := json.Marshal(j.WhyNot)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "why_not.json"), text, 0o600)
	}
	if err = errors.Join(err, printKeptWhyNot(&b, dir)); err != nil ||
		b.String() != "why its policies left things as they were:\n"+whyNotText(j.WhyNot) {
		t.Errorf("%v, of a run that is over:\n%s", err, b.String())
	}
	b.Reset()
	if err := printWhyNot(&b, api.Job{}); err != nil || b.Len() > 0 {
		t.Errorf("%v, of a job without policies:\n%s", err, b.String())
	}
}
