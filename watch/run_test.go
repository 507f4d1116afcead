package watch

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/api/control"
)

// senseRow is a row of sense.jsonl at a second of a minute.
func senseRow(second int) []byte {
	return fmt.Appendf(nil, `{"time":"2026-11-26T16:27:%02dZ","step":%d,"steps":10,"span":2,`+
		`"generation":1,"size":2,"batch":64,"samples":640,"loss":0.5,"seconds":{"p10":0.1,`+
		`"median":0.2,"p90":0.3},"split":{"compute":0.15,"exposed":0.01},"slack":[0,0.05]}`,
		second, 10*(second+1))
}

// ledgerEntry is an entry of the ledger about change 1.
func ledgerEntry(phase, more string) []byte {
	return fmt.Appendf(nil, `{"time":"2026-11-26T16:27:30Z","what":"change","generation":1,`+
		`"size":2,"step":50,"because":"","change":{"number":1,"phase":%q,"policy":"batch",`+
		`"step":50,"from":"batch=64","to":"batch=128","because":"the noise is high"%s}}`,
		phase, more)
}

// predicted is the band of that change.
const predicted = `,"predicted":{"low":1.1,"mid":1.2,"high":1.4}`

// fullRun returns a run with something of each file.
func fullRun() *Run {
	r := New("/runs/train", "1.0", "e")
	r.SetJob([]byte(`{"spec":{"name":"train","command":["python3","train.py"]},` +
		`"started":"2026-11-26T16:27:00Z","version":"1.0"}`))
	for i := range 20 {
		r.AddSense(senseRow(i))
	}
	r.AddEvent([]byte(`{"time":"2026-11-26T16:27:01Z","what":"generation","generation":2,` +
		`"size":1,"lost":[1],"step":7,"because":"w1 was killed"}`))
	r.AddEvent([]byte(`{"time":"2026-11-26T16:27:09Z","what":"waited","awaited":[0],"step":9,` +
		`"because":"worker 0 computed for 9 s"}`))
	r.AddEvent(ledgerEntry("entered", predicted))
	r.AddEvent(ledgerEntry("kept", predicted+`,"measured":1.3,"steps":64`))
	r.AddMetrics([]byte(`{"time":"2026-11-26T16:27:02Z","rank":0,"metrics":{"loss":"NaN",` +
		`"step":6}}`))
	return r
}

// A change that is measured is on trial while the run lasts. Where the run is over and its ledger
// has no end of it, it is void, in a view and in the next update, and how it is counted stays.
func TestTrialOfARunThatIsOver(t *testing.T) {
	for _, c := range []struct{ dir, why string }{
		{"/runs/train", "the job ended in its trial"},
		{"/runs/train@h2", "this host left the job in its trial"},
	} {
		r := New(c.dir, "1.0", "e")
		r.AddEvent(ledgerEntry("entered", predicted))
		r.SetLive(&control.Job{Name: "train", State: "training"}, "", 1)
		before := r.View(1)
		if before.Changes[0].Phase != "entered" {
			t.Errorf("a job that runs: %+v", before.Changes)
		}
		r.SetLive(nil, "", 2)
		u, ok := r.Since(before.ID, 2)
		for what, list := range map[string][]ChangeView{"an update": u.Changes,
			"a view": r.View(2).Changes} {
			if !ok || len(list) != 1 || list[0].Phase != "void" || list[0].Why != c.why {
				t.Errorf("%s: %+v", what, list)
			}
		}
		r.SetLive(&control.Job{Name: "train", State: "training"}, "", 3)
		if v := r.View(3); v.Changes[0].Phase != "entered" {
			t.Errorf("a launcher that answers again: %+v", v.Changes)
		}
	}
}

// A view has what the files say, in the words of the ledger.
func TestView(t *testing.T) {
	v := fullRun().View(1)
	if v.Job != "train" || len(v.Notes) != 0 || len(v.Series) != 4 {
		t.Errorf("job %q, notes %q, %d series", v.Job, v.Notes, len(v.Series))
	}
	var kinds, titles []string
	for _, m := range v.Marks {
		kinds, titles = append(kinds, m.Kind), append(titles, m.Title)
	}
	if got := strings.Join(kinds, " "); got != "loss other wait change change" {
		t.Errorf("marks %s: %q", got, titles)
	}
	if titles[0] != "generation 2: 1 worker, lost 1" || titles[1] != "loss is NaN" ||
		titles[2] != "waited for worker 0" {
		t.Errorf("titles %q", titles)
	}
	if m := v.Marks[1]; !m.StepUnknown || m.Text != "as worker 0 has reported at its step 6" {
		t.Errorf("a report as a mark: %+v", m)
	}
	if len(v.Changes) != 1 || v.Changes[0].Inside == nil || !*v.Changes[0].Inside ||
		v.Changes[0].Ended == 0 {
		t.Fatalf("changes %+v", v.Changes)
	}
	if len(v.Coverage) != 1 || v.Coverage[0] != (CoverageView{"batch", 1, 1}) {
		t.Errorf("coverage %+v", v.Coverage)
	}
	rate := v.Series[0].Values[3][0]
	rest := v.Series[1].Values[4][0]
	if rate != 320 || rest < 0.0399 || rest > 0.0401 {
		t.Errorf("rate %v, rest of a step %v", rate, rest)
	}
}

// Of rounds of local steps, the parts of a step and the rest of it are of an optimizer step, and
// the rate counts all samples.
func TestRounds(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	r.AddSense([]byte(`{"time":"2026-11-26T16:27:09Z","step":5,"steps":5,"round":4,"span":10,` +
		`"size":2,"batch":8,"samples":160,"split":{"compute":0.3}}`))
	v := r.View(1)
	if rate, rest := v.Series[0].Values[3][0], v.Series[1].Values[4][0]; rate != 16 || rest != 0.2 {
		t.Errorf("%v samples a second, rest of a step %v", rate, rest)
	}
}

// Lines that are torn, foreign or of something newer are counted, and the rest is shown.
func TestBadLines(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	r.SetJob([]byte(`{"spec":{"name":"x"},"version":"9.0"}`))
	for _, line := range []string{"", "{", "[]", "null", `{"what":3}`, `{"time":7}`, "\x00\xff",
		`{"time":"2026-11-26T16:27:01Z","what":"comet","step":3,"because":"of later"}`} {
		r.AddEvent([]byte(line))
		r.AddSense([]byte(line))
		r.AddMetrics([]byte(line))
	}
	r.AddSense(senseRow(1))
	r.LastLineTorn("sense.jsonl", true)
	r.LineSkipped("events.jsonl", 4<<20)
	v := r.View(1)
	if len(v.Marks) != 1 || v.Marks[0].Kind != "other" || len(v.Series) == 0 {
		t.Errorf("%d marks, %d series", len(v.Marks), len(v.Series))
	}
	all := strings.Join(v.Notes, "\n")
	for _, want := range []string{"of shoal 9.0 and this is 1.0", "8 lines of sense.jsonl",
		"the last line of sense.jsonl is torn", "8 lines of events.jsonl",
		"7 lines of metrics.jsonl"} {
		if !strings.Contains(all, want) {
			t.Errorf("no note says %q:\n%s", want, all)
		}
	}
	if _, err := json.Marshal(v); err != nil {
		t.Error(err)
	}
}

// Who watches from before job.json is there gets a view with what it says.
func TestJobAfterView(t *testing.T) {
	r := New("/runs/train", "1.0", "e")
	before := r.View(1)
	r.SetJob([]byte(`{"spec":{"name":"train","command":["train.py"]},"version":"1.0"}`))
	if _, ok := r.Since(before.ID, 2); ok {
		t.Error("a view from before job.json gets an update, which has no command")
	}
	after := r.View(2)
	if _, ok := r.Since(after.ID, 3); !ok || len(after.Command) != 1 {
		t.Errorf("a view with the command gets no update: %+v", after)
	}
}

// What a view and the updates since then have is what a later view has. An ID of another run, or
// from before a file was replaced, needs a view.
func TestSince(t *testing.T) {
	r := fullRun()
	before := r.View(1)
	r.AddSense(senseRow(30))
	r.AddMetrics([]byte(`{"time":"2026-11-26T16:28:02Z","rank":0,"metrics":{"loss":1,"acc":2}}`))
	r.AddEvent(ledgerEntry("reverted", predicted+`,"measured":0.8,"steps":64`))
	u, ok := r.Since(before.ID, 2)
	after := r.View(2)
	if !ok || u.ID != after.ID || u.ID == before.ID {
		t.Fatalf("update %v from %s to %s, the view is %s", ok, before.ID, u.ID, after.ID)
	}
	points := 0
	for _, s := range u.Series {
		points += len(s.Times)
	}
	if points != 4 || len(u.Marks) != 1 || len(u.Changes) != 1 || *u.Changes[0].Inside {
		t.Errorf("%d points, %d marks, changes %+v", points, len(u.Marks), u.Changes)
	}
	if u, ok := r.Since(after.ID, 3); !ok || len(u.Series)+len(u.Marks)+len(u.Changes) != 0 {
		t.Errorf("nothing is new, and the update has %+v, %v", u, ok)
	}
	for _, id := range []string{"", "e", "e-", "e-99999", "f-3", "e--1", "e-x"} {
		if _, ok := r.Since(id, 3); ok {
			t.Errorf("an update since %q", id)
		}
	}
	r.ResetSense()
	if _, ok := r.Since(after.ID, 3); ok {
		t.Error("an update across a file that was replaced")
	}
}

// The state of a run is what its result, its launcher or its silence say.
func TestState(t *testing.T) {
	for _, test := range []struct {
		want string
		make func(r *Run)
		at   string // the host that has joined the job
	}{
		{"killed", func(r *Run) { r.SetLive(nil, "", 5) }, ""},
		{"left", func(r *Run) { r.SetLive(nil, "", 5) }, "@b"},
		{"silent", func(r *Run) { r.SetLive(nil, "it has not answered", 5) }, ""},
		{"elsewhere", func(r *Run) {
			r.SetLive(nil, "job x is led from host b: ask there", 5)
		}, ""},
		{"paused", func(r *Run) { r.SetLive(&control.Job{State: control.Paused}, "", 5) }, ""},
		{"ended", func(r *Run) { r.SetResult([]byte(`{"ok":true,"seconds":3}`)) }, ""},
		{"parked", func(r *Run) { r.SetResult([]byte(`{"ok":true,"parked":true}`)) }, ""},
		{"failed", func(r *Run) { r.SetResult([]byte(`{"error":"w0 failed","seconds":3}`)) }, ""},
		{"left", func(r *Run) { r.SetResult([]byte(`{"ok":true,"goes_on":"b"}`)) }, ""},
	} {
		r := New("/runs/x"+test.at, "1.0", "e")
		test.make(r)
		if s := r.View(9).State; s.Word != test.want || s.Text == "" {
			t.Errorf("%+v, want %s", s, test.want)
		}
	}
}

// Of why a run failed, the state has the line that says it, and not the output of a worker.
func TestStateOfTheFailed(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	r.SetResult([]byte(`{"error":"job x failed: rank 0 exited with code 1\n  output  its last ` +
		`line\n    | secret","seconds":3}`))
	want := "it failed after 3s: job x failed: rank 0 exited with code 1"
	if s := r.View(9).State; s.Text != want {
		t.Errorf("%q, want %q", s.Text, want)
	}
}

// A run without a result lasted until the newest time in its files, and may have ended on a full
// disk; and one whose result cannot be read is not said to have none.
func TestStateOfTheKilled(t *testing.T) {
	r := fullRun()
	if s := r.View(2e9).State; s.Word != "killed" || s.At != 1795710450 ||
		!strings.Contains(s.Text, "the disk had no room") {
		t.Errorf("%+v", s)
	}
	r.SetResult([]byte(`{"ok":`))
	if s := r.View(2e9).State; strings.Contains(s.Text, "no result") {
		t.Errorf("%+v", s)
	}
}

// A run of months has bounded marks, changes and metrics.
func TestBounds(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	for i := range 3 * maxMarks {
		r.AddEvent(fmt.Appendf(nil, `{"time":"2026-11-26T16:27:30Z","what":"change","step":%d,`+
			`"change":{"number":%[1]d,"phase":"entered","to":"batch=1"}}`, i+1))
		r.AddMetrics(fmt.Appendf(nil, `{"time":"2026-11-26T16:27:30Z","metrics":{"m%d":1}}`, i))
	}
	v := r.View(1)
	if len(v.Marks) > maxMarks || v.LeftOut+len(v.Marks) != 3*maxMarks ||
		len(v.Changes) > maxChanges || len(v.Series) != maxMetrics || len(v.Notes) != 1 {
		t.Errorf("%d marks and %d left out, %d changes, %d series, notes %q", len(v.Marks),
			v.LeftOut, len(v.Changes), len(v.Series), v.Notes)
	}
	if v.Marks[len(v.Marks)-1].Step != 3*maxMarks {
		t.Error("the newest mark is not there")
	}
}

// Metrics are in the text format of Prometheus, with the names of users escaped. What was counted
// goes on from where it was when the file of rows becomes shorter.
func TestWriteMetrics(t *testing.T) {
	r := fullRun()
	now := Seconds(time.Date(2026, 11, 26, 16, 27, 30, 0, time.UTC))
	r.SetLive(&control.Job{Size: 2, Want: 3, Generation: 4}, "", now)
	r.ResetSense() // the file has become smaller: its oldest rows are gone
	for i := range 11 {
		r.AddSense(senseRow(10 + i)) // the last of them is new
	}
	var b strings.Builder
	if err := r.WriteMetrics(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# TYPE shoal_step_seconds gauge\n",
		"\nshoal_step_seconds{part=\"compute\"} 0.15\n", "\nshoal_samples_total 13440\n",
		"\nshoal_slack_seconds{rank=\"1\"} 0.05\n", "\nshoal_workers 2\n",
		"\nshoal_changes_total{policy=\"batch\",end=\"kept\"} 1\n",
		"\nshoal_prediction_ratio{policy=\"batch\"} 1.08", "\nshoal_loss 0.5\n"} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, &b)
		}
	}
	for what, stale := range map[string]func(){
		"no step for long": func() {
			r.SetLive(&control.Job{Size: 2}, "", now+staleSteps+1)
		},
		"another host leads": func() { r.SetLive(nil, "job x is led from host B", now) },
	} {
		stale()
		var b strings.Builder
		err := r.WriteMetrics(&b)
		if err != nil || strings.Contains(b.String(), "shoal_loss") ||
			!strings.Contains(b.String(), "\nshoal_samples_total 13440\n") {
			t.Errorf("%s: %v\n%s", what, err, &b)
		}
	}
	for line := range strings.Lines(b.String()) {
		if !sampleLine.MatchString(line) {
			t.Errorf("no line of the format: %q", line)
		}
	}
	if got := labelText("p", "a\\\"}\n\xff"); got != `p="a\\\"}\n?"` {
		t.Errorf("a label is %s", got)
	}
}

// Steps a second, and steps in all, are optimizer steps, also where a commit is of several.
func TestStepsOfRoundsAreOptimizerSteps(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	live := func(steps, optimizerSteps uint64) *control.Job {
		j := &control.Job{}
		j.Elastic, j.Steps, j.OptimizerSteps = true, steps, optimizerSteps
		return j
	}
	r.SetLive(live(10, 0), "", 1)
	for i := range 3 { // rounds of eight begin
		r.SetLive(live(uint64(10+i), uint64(10+8*i)), "", 2+float64(i))
	}
	if got := fmt.Sprint(r.View(9).Series); !strings.Contains(got, "8 8") {
		t.Errorf("steps a second: %s", got)
	}
	r.AddSense([]byte(strings.NewReplacer(`"steps":10,`, `"steps":10,"round":8,`, `"samples":640`,
		`"samples":4928`).Replace(string(senseRow(9))))) // the last round of an epoch is of 5
	var b strings.Builder
	if err := r.WriteMetrics(&b); err != nil ||
		!strings.Contains(b.String(), "shoal_steps_total 77\n") {
		t.Errorf("%v\n%s", err, &b)
	}
}

// A metric is shown of one worker, however rarely workers report it and whoever of them comes
// first; and of another one when that is silent.
func TestMetricsOfOneWorker(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	begin := time.Date(2026, 11, 26, 16, 27, 0, 0, time.UTC)
	// report adds a report of a worker, which reports its number.
	report := func(minute, worker int) {
		r.AddMetrics(fmt.Appendf(nil, `{"time":%q,"rank":%d,"metrics":{"acc":%[2]d}}`,
			begin.Add(time.Duration(minute)*time.Minute).Format(time.RFC3339), worker))
	}
	report(0, 1)
	for minute := range 20 {
		report(minute, minute%3)
		report(minute, (minute+1)%3)
		report(minute, (minute+2)%3)
	}
	s := r.View(1).Series[0]
	if s.Worker != 0 || s.Points != 21 || slices.Max(s.Values[0][1:]) != 0 {
		t.Errorf("of worker %d: %v", s.Worker, s.Values[0])
	}
	for minute := range 5 {
		report(20+minute, 2)
	}
	if s = r.View(1).Series[0]; s.Worker != 2 || s.Points != 24 {
		t.Errorf("after worker 0 was lost, of worker %d: %v", s.Worker, s.Values[0])
	}
}

// Of more metrics than are shown, the same ones are whoever reads the report.
func TestWhichMetricsAreShown(t *testing.T) {
	text := []byte(`{"time":"2026-11-26T16:27:02Z","rank":0,"metrics":{"m":1`)
	for i := range 40 {
		text = fmt.Appendf(text, `,"m%02d":%[1]d`, i)
	}
	text = append(text, "}}"...)
	var first []string
	for range 20 {
		r := New("/runs/x", "1.0", "e")
		r.AddMetrics(text)
		if first == nil {
			first = r.names
		}
		if len(r.names) != maxMetrics || !slices.Equal(r.names, first) {
			t.Fatalf("%d metrics are shown, %v and %v", len(r.names), first, r.names)
		}
	}
}

// What could not be read at first and could then is not said to be unreadable any more.
func TestResultThatCanBeReadAtLast(t *testing.T) {
	r := New("/runs/x", "1.0", "e")
	if r.SetResult([]byte(`{"ok":`)); len(r.View(1).Notes) == 0 || r.HasResult() {
		t.Fatal("half a result is one")
	}
	r.SetResult([]byte(`{"ok":true}`))
	if list := r.View(1).Notes; len(list) > 0 || !r.HasResult() {
		t.Errorf("notes %q", list)
	}
}

// sampleLine matches a line of the text format.
var sampleLine = regexp.MustCompile(`^(# (HELP|TYPE) [a-z_]+ .*|[a-z_]+` +
	`({([a-z]+="([^"\\\n]|\\["\\n])*",?)+})? [0-9.e+-]+)\n$`)

// Whatever lines the files of a run have, it is shown, and can be sent.
func FuzzRun(f *testing.F) {
	f.Add(senseRow(1))
	f.Add(ledgerEntry("kept", predicted+`,"measured":1.3,"steps":64`))
	f.Add([]byte(`{"time":"2026-11-26T16:27:02Z","rank":0,"metrics":{"loss":1e308,"x":"-Inf"}}`))
	f.Add([]byte(`{"ok":true,"seconds":1e308,"started":"9999-12-31T23:59:59Z","workers":[{}]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		r := fullRun()
		id := r.View(1).ID
		for range 3 {
			r.AddEvent(line)
			r.AddSense(line)
			r.AddMetrics(line)
		}
		r.SetWhyNot(line)
		u, ok := r.Since(id, 2)
		if _, err := json.Marshal(u); err != nil || !ok {
			t.Fatalf("an update: %v, %v", ok, err)
		}
		r.SetJob(line)
		r.SetResult(line)
		if _, err := json.Marshal(r.View(2)); err != nil {
			t.Fatal(err)
		}
		if err := r.WriteMetrics(&strings.Builder{}); err != nil {
			t.Fatal(err)
		}
	})
}
