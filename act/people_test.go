package act_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// What a person has set is measured and stays, however bad it is, also where policies are off, and
// no policy changes it. What cannot be set is refused with its reason.
func TestPeople(t *testing.T) {
	for _, mode := range []act.Mode{act.Off, act.Auto} {
		j := newJob(newLoop(t, mode, policy.Batch{}), 512, batches)
		j.train(t, 1)
		if o, err := j.loop.Propose(setting.Setting{Batch: 256}, "ada"); err != nil ||
			!strings.Contains(o.Change.Why, "fewer than 3 steps") {
			t.Errorf("of a job that has just begun: %+v, %v", o.Change, err)
		}
		j.train(t, 8)
		if _, err := j.loop.Propose(setting.Setting{Batch: 2048}, "ada"); err == nil {
			t.Error("a batch outside of the range is proposed")
		}
		if _, err := j.loop.Propose(setting.Setting{Batch: 512}, "ada"); err == nil {
			t.Error("the batch of now is proposed")
		}
		j.setByPerson(t, setting.Setting{Batch: 32})
		j.train(t, 500)
		if len(j.log) != 2 || j.batch() != 32 {
			t.Fatalf("mode %d: %v", mode, j.phases())
		}
		begin, end := j.log[0].Change, j.log[1].Change
		if begin.Who != "ada@h1" || begin.Predicted.Mid == 0 || begin.Rate == 0 ||
			end.Phase != setting.Kept || end.Measured > 0.3 || end.Measured < 0.1 {
			t.Errorf("%+v, then %+v", begin, end)
		}
		if mode == act.Auto && !j.hasWhyNot("a person has set batch (change 1), and it stays") {
			t.Errorf("%v", j.loop.WhyNots())
		}
	}
	j := newJob(newLoop(t, act.Off), 64, batches)
	j.scale = func(float64) float64 { return 0 }
	j.train(t, 20)
	j.setByPerson(t, setting.Setting{Batch: 128})
	j.train(t, 40)
	if c := j.log[len(j.log)-1].Change; c.Phase != setting.Kept || c.Measured != 0 ||
		!strings.Contains(c.Why, "the noise is unknown; samples a second: 1.7") {
		t.Errorf("without noise: %+v", c)
	}
}

// What a person leaves to policies again they change again.
func TestPeopleLeavePartsToPolicies(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}), 512, batches)
	j.train(t, 20)
	for _, x := range []struct {
		text  string
		begun setting.Phase // of the change
	}{{"batch=32", setting.Entered}, {"batch=auto", setting.Kept}} {
		before := len(j.log)
		next, err := j.state.Setting.WithRequested(x.text)
		if err != nil {
			t.Fatal(err)
		}
		j.setByPerson(t, next)
		j.train(t, 500)
		if c := j.log[before].Change; c.Phase != x.begun || c.Who != "ada@h1" {
			t.Errorf("%s: %+v", x.text, c)
		}
	}
	if len(j.state.Setting.People) > 0 || j.batch() <= 32 {
		t.Errorf("the batch that was left to policies again stays at %d", j.batch())
	}
}
