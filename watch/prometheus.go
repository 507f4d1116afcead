package watch

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/setting"
)

// What is known of a run as metrics for Prometheus. Like all of Run, the methods are for one
// goroutine at a time. They change nothing of it, and only WriteMetrics writes to anything but
// memory.

// WriteMetrics writes what is known of a run in the text format of Prometheus, version 0.0.4: the
// newest row of its steps, and what was counted. What is not known is left out.
func (r *Run) WriteMetrics(w io.Writer) error {
	t := &exposition{}
	r.writeSteps(t)
	t.family("shoal_steps_total", "counter", "Steps that sense.jsonl has told of.")
	t.sample("", float64(r.stepsTold))
	t.family("shoal_samples_total", "counter", "Samples of these steps.")
	t.sample("", float64(r.samples))
	if j := r.live; j != nil {
		t.family("shoal_workers", "gauge", "Members of the job.")
		t.sample("", float64(j.Size))
		t.family("shoal_workers_wanted", "gauge", "Members that the job should have.")
		t.sample("", float64(j.Want))
		t.family("shoal_generation", "gauge", "Number of the membership.")
		t.sample("", float64(j.Generation))
		t.family("shoal_committed_steps", "gauge", "Steps that are committed.")
		t.sample("", float64(j.Steps))
	}
	r.writeChanges(t)
	_, err := io.WriteString(w, t.text.String())
	return err
}

// writeSteps writes what the newest row says of steps.
func (r *Run) writeSteps(t *exposition) {
	row := r.newest
	if row == nil {
		return
	}
	t.family("shoal_step_seconds", "gauge", "Seconds of a step, in the mean of the newest row of "+
		"sense.jsonl, by part; whole is the median.")
	if s := row.Split; s != nil {
		t.sample(label("part", "data"), s.Data)
		t.sample(label("part", "compute"), s.Compute)
		t.sample(label("part", "exposed"), s.Exposed)
		t.sample(label("part", "optimizer"), s.Optimizer)
	}
	if q := row.Seconds; q != nil {
		t.sample(label("part", "whole"), q.Median)
	}
	if len(row.Slack) > 0 {
		t.family("shoal_slack_seconds", "gauge", "Seconds a step that a worker waits for the "+
			"slowest one.")
		for rank, s := range row.Slack {
			t.sample(label("rank", strconv.Itoa(rank)), s)
		}
	}
	if row.Batch > 0 {
		t.family("shoal_batch_samples", "gauge", "Samples of a step, over all workers.")
		t.sample("", float64(row.Batch))
	}
	if row.Loss != nil {
		t.family("shoal_loss", "gauge", "Mean of the losses that workers tell.")
		t.sample("", *row.Loss)
	}
	if n := row.Noise; n != nil && n.Scale != nil {
		t.family("shoal_noise_scale_samples", "gauge", "The gradient noise scale.")
		t.sample("", n.Scale.Mid)
	}
}

// changeEnd is how changes of a policy have ended.
type changeEnd struct {
	policy string
	phase  setting.Phase
}

// writeChanges writes how changes have ended, and how true the newest prediction of each policy
// was.
func (r *Run) writeChanges(t *exposition) {
	if len(r.ends) > 0 {
		t.family("shoal_changes_total", "counter", "Changes of the setting and of routes that "+
			"have ended.")
	}
	for _, e := range slices.SortedFunc(maps.Keys(r.ends), func(a, b changeEnd) int {
		return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.phase, b.phase))
	}) {
		t.sample(label("policy", e.policy)+","+label("end", string(e.phase)), float64(r.ends[e]))
	}
	if len(r.ratios) > 0 {
		t.family("shoal_prediction_ratio", "gauge", "What was measured of the newest change of a "+
			"policy, over what was predicted.")
	}
	for _, p := range slices.Sorted(maps.Keys(r.ratios)) {
		t.sample(label("policy", p), r.ratios[p])
	}
}

// exposition is a text of metrics.
type exposition struct {
	text strings.Builder
	name string // of the family
}

// family begins the samples of a metric: its name, what kind Prometheus takes it for, and the help.
func (t *exposition) family(name, kind, help string) {
	t.name = name
	fmt.Fprintf(&t.text, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, help, kind)
}

// sample adds a sample of the metric that family has begun; labels are without braces, "" = none.
func (t *exposition) sample(labels string, x float64) {
	t.text.WriteString(t.name)
	if labels != "" {
		t.text.WriteString("{" + labels + "}")
	}
	value := strconv.FormatFloat(x, 'g', -1, 64)
	switch {
	case math.IsInf(x, 1):
		value = "+Inf"
	case math.IsInf(x, -1):
		value = "-Inf"
	}
	t.text.WriteString(" " + value + "\n")
}

// escapes are what a label must not have as it is.
var escapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)

// label returns a label; names of policies come from users.
func label(name, value string) string {
	return name + `="` + escapes.Replace(strings.ToValidUTF8(value, "?")) + `"`
}
