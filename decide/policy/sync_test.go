package policy_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/twin"
)

// synced returns an observation of a job of four workers that synchronise in a way, whose steps
// take 110 ms without the exchange, of which so many seconds are in each step.
func synced(sync string, round uint32, exposed float64) sense.Observation {
	const compute = 0.11
	o := sense.Observation{Step: 40, Size: 4, Samples: 1 << 20, First: 128,
		Setting: setting.Setting{Batch: 128, Sync: sync, Round: round},
		Levers:  setting.Levers{Sync: "ssgd", Round: 1, Auto: true},
		Split: sense.Split{Seconds: compute + exposed, Compute: compute, Exposed: exposed,
			Slack: make([]float64, 4)},
		Noise: noise.Estimate{Known: true, Scale: setting.Band{Low: 400, Mid: 512, High: 640}},
		Steps: &sense.StepSeries{}}
	for step := range uint64(40) {
		o.Steps.Add(sense.StepSample{Step: step + 1, Samples: 128, Batch: 128, Size: 4,
			Seconds: compute + exposed, Round: round})
	}
	return o
}

// wanted returns where Sync wants a job to go, or "", and why.
func wanted(o sense.Observation) (to, because string) {
	var twin twin.Twin
	twin.Observe(o)
	d, _ := policy.Sync{}.Decide(o, &twin, nil)
	if d.To != nil {
		_, to = o.Setting.Diff(d.To.Setting)
	}
	return to, d.Because
}

// Where links take most of a step, workers make local steps, and the reason has the numbers; where
// they take little, they average in every step. Between the two everything stays.
func TestSyncFollowsLinks(t *testing.T) {
	to, why := wanted(synced("ssgd", 1, 0.31))
	if !strings.Contains(to, "sync=local") || !strings.Contains(why,
		"links take 310 ms of 420 ms of a step; local with rounds of ") {
		t.Errorf("slow links: %q, %s", to, why)
	}
	if to, why := wanted(synced("ssgd", 1, 0.01)); to != "" || !strings.Contains(why, "surely 0.") {
		t.Errorf("fast links: %q, %s", to, why)
	}
	if to, why := wanted(synced("local", 16, 0.01/16)); to != "round=1,sync=ssgd" {
		t.Errorf("links that are fast again: %q, %s", to, why)
	}
	if to, why := wanted(synced("local", 16, 0.31/16)); strings.Contains(to, "ssgd") {
		t.Errorf("links that stay slow: %q, %s", to, why)
	}
	for exposed := 0.005; exposed < 0.5; exposed *= 1.1 { // no conditions move it to and fro
		there, _ := wanted(synced("ssgd", 1, exposed))
		back, _ := wanted(synced("local", 16, exposed/16))
		if there != "" && strings.Contains(back, "ssgd") {
			t.Errorf("%.3g s: there by %s, back by %s", exposed, there, back)
		}
	}
}

// Sync holds, and says why, where the program states how workers synchronise, and where what it
// rests on is not known.
func TestSyncHolds(t *testing.T) {
	for want, change := range map[string]func(o *sense.Observation){
		"the program states sync=local": func(o *sense.Observation) {
			o.Levers = setting.Levers{Sync: "local", Round: 4}
		},
		`optimizer(…, sync="auto")`:    func(o *sense.Observation) { o.Levers = setting.Levers{} },
		"alone waits for nobody":       func(o *sense.Observation) { o.Size = 1 },
		"where the time of steps goes": func(o *sense.Observation) { o.Split = sense.Split{} },
		"unknown (too few steps): until step 50": func(o *sense.Observation) {
			o.Noise = noise.Estimate{Why: "too few steps"}
		},
		"unknown: they are NaN": func(o *sense.Observation) {
			o.Step, o.Noise = 100, noise.Estimate{NotFinite: true, Why: "they are NaN"}
		},
		"fewer than 3 steps by the setting": func(o *sense.Observation) { o.Steps = nil },
	} {
		o := synced("ssgd", 1, 0.31)
		change(&o)
		if to, why := wanted(o); to != "" || !strings.Contains(why, want) {
			t.Errorf("%q: %q, %s", want, to, why)
		}
	}
	for exposed, want := range map[float64]bool{0.31: false, 1.5: true} { // whatever the noise is
		o := synced("ssgd", 1, exposed)
		o.Step, o.Noise = 50, noise.Estimate{Why: "it is lost"}
		to, why := wanted(o)
		if strings.Contains(to, "sync=local") != want || !strings.Contains(why, "noise is unkn") {
			t.Errorf("unknown noise, %g s exposed: %q, %s", exposed, to, why)
		}
	}
	o := synced("ssgd", 1, 0.31)
	o.Samples = 128 * 20 // an epoch is 20 steps
	if to, why := wanted(o); to == "" || strings.Contains(to, "round=16") {
		t.Errorf("a short epoch: %q, %s", to, why)
	}
}
