package act_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/act"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/setting"
)

// What no trial shows is made and kept at once, with what is predicted of it and the reason why
// nothing was measured, by a policy and by a person; it holds up no other change.
func TestStepsBetweenCheckpoints(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Batch{}, policy.Checkpoint{}), 64, batches)
	j.state.Levers.Save = true
	j.saves = sense.Saves{Cost: 0.5, Writing: 1, Count: 1}
	j.train(t, 1500)
	var saves []act.Order
	for i, o := range j.log {
		if c := o.Change; c.Policy == "checkpoint" {
			saves = append(saves, o)
			if c.Phase == setting.Entered && (c.Predicted.Mid < 1.05 || c.Predicted.Mid > 1.1 ||
				j.log[i+1].Change.Phase != setting.Kept || j.log[i+1].Change.Number != c.Number) {
				t.Errorf("%+v, then %+v", c, j.log[i+1].Change)
			}
		}
	}
	if len(saves) != 2 || j.batch() != 440 {
		t.Errorf("batch %d: %v %v", j.batch(), j.phases(), j.loop.WhyNots())
	}
	if c := saves[1].Change; c.Why != "what checkpoints cost and save shows in hours, so no trial "+
		"measures it" || c.Measured != 0 || c.Steps != 0 {
		t.Errorf("%+v", c)
	}
	if s := j.state.Setting.Save; s < 100 || s > 1500 { // 60 s and more, of steps of 50 ms and more
		t.Errorf("save=%d", s)
	}

	before := len(j.log)
	o, err := j.loop.Propose(setting.Setting{Batch: j.batch(), Save: 7, Rate: j.state.Setting.Rate},
		"ada")
	if err != nil || !o.Change.Predicted.IsKnown() {
		t.Fatalf("%+v, %v", o, err)
	}
	j.waiting = &o
	j.train(t, 800)
	if c := j.log[before+1].Change; c.Phase != setting.Kept || j.state.Setting.Save != 7 ||
		!j.hasWhyNot("a person has set save") {
		t.Errorf("%v %v", j.phases()[before:], j.loop.WhyNots())
	}
}

// Checkpoints that would save less of the time than what counts as the same stay as they are.
func TestStepsBetweenCheckpointsThatMatterLittle(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Checkpoint{}), 64, batches)
	j.state.Levers.Save = true
	j.state.Setting.Save = 1600 // 93 s, where 60 s are best, which saves 0.16 %
	j.saves = sense.Saves{Cost: 0.5, Writing: 1, Count: 1}
	j.train(t, 300)
	if len(j.log) > 0 || !j.hasWhyNot("may bring 1.002x, and a change must bring 1.005x") {
		t.Errorf("%v %v", j.phases(), j.loop.WhyNots())
	}
}

// As long as nothing is known of checkpoints, nothing is predicted of the steps between them.
func TestStepsBetweenUnknownCheckpoints(t *testing.T) {
	j := newJob(newLoop(t, act.Auto, policy.Checkpoint{}), 64, batches)
	j.state.Levers.Save = true
	j.train(t, 200)
	o, err := j.loop.Propose(setting.Setting{Batch: 64, Save: 7}, "ada")
	if err != nil || o.Change.Predicted.IsKnown() || len(j.log) > 0 ||
		!strings.Contains(j.loop.WhyNots()[0].Why, "no checkpoint was made yet") {
		t.Errorf("%+v, %v: %v %v", o, err, j.phases(), j.loop.WhyNots())
	}
}
