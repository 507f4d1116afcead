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

// staleSteps is for how many seconds the newest row tells of the steps of now: rows come each ten
// seconds, or with each step if that is longer.
const staleSteps = 60.0

// WriteMetrics writes what is known of a run in the text format of Prometheus, version 0.0.4: the
// newest row of its steps, as long as this host leads the job and it makes steps, and what was
// counted. What is not known is left out.
func (r *Run) WriteMetrics(w io.Writer) error {
	t := &exposition{}
	if r.live != nil && r.newest != nil &&
		r.heard-r.newestAt <= max(staleSteps, 3*r.newest.Span) {
		r.writeSteps(t)
	}
	t.beginFamily("shoal_steps_total", "counter", "Optimizer steps that sense.jsonl has told of.")
	t.addSample("", float64(r.stepsTold))
	t.beginFamily("shoal_samples_total", "counter", "Samples of these steps.")
	t.addSample("", float64(r.samples))
	if j := r.live; j != nil {
		t.beginFamily("shoal_workers", "gauge", "Members of the job.")
		t.addSample("", float64(j.Size))
		t.beginFamily("shoal_workers_wanted", "gauge", "Members that the job should have.")
		t.addSample("", float64(j.Want))
		t.beginFamily("shoal_generation", "gauge", "Number of the membership.")
		t.addSample("", float64(j.Generation))
		t.beginFamily("shoal_committed_steps", "gauge", "Steps that are committed.")
		t.addSample("", float64(j.Steps))
	}
	r.writeChanges(t)
	_, err := io.WriteString(w, t.text.String())
	return err
}

// writeSteps writes what the newest row says of steps.
func (r *Run) writeSteps(t *exposition) {
	row := r.newest
	t.beginFamily("shoal_step_seconds", "gauge", "Seconds of a step, in the mean of the newest "+
		"row of sense.jsonl, by part; whole is the median.")
	if s := row.Split; s != nil {
		t.addSample(labelText("part", "data"), s.Data)
		t.addSample(labelText("part", "compute"), s.Compute)
		t.addSample(labelText("part", "exposed"), s.Exposed)
		t.addSample(labelText("part", "optimizer"), s.Optimizer)
	}
	if q := row.Seconds; q != nil {
		t.addSample(labelText("part", "whole"), q.Median)
	}
	if len(row.Slack) > 0 {
		t.beginFamily("shoal_slack_seconds", "gauge", "Seconds a step that a worker waits for the "+
			"slowest one.")
		for rank, s := range row.Slack {
			t.addSample(labelText("rank", strconv.Itoa(rank)), s)
		}
	}
	if row.Batch > 0 {
		t.beginFamily("shoal_batch_samples", "gauge", "Samples of a step, over all workers.")
		t.addSample("", float64(row.Batch))
	}
	if row.Loss != nil {
		t.beginFamily("shoal_loss", "gauge", "Mean of the losses that workers tell.")
		t.addSample("", *row.Loss)
	}
	if n := row.Noise; n != nil && n.Scale != nil {
		t.beginFamily("shoal_noise_scale_samples", "gauge", "The gradient noise scale.")
		t.addSample("", n.Scale.Mid)
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
		t.beginFamily("shoal_changes_total", "counter", "Changes of the setting and of routes "+
			"that have ended.")
	}
	for _, e := range slices.SortedFunc(maps.Keys(r.ends), func(a, b changeEnd) int {
		return cmp.Or(cmp.Compare(a.policy, b.policy), cmp.Compare(a.phase, b.phase))
	}) {
		labels := labelText("policy", e.policy) + "," + labelText("end", string(e.phase))
		t.addSample(labels, float64(r.ends[e]))
	}
	if len(r.ratios) > 0 {
		t.beginFamily("shoal_prediction_ratio", "gauge", "What was measured of the newest change "+
			"of a policy, over what was predicted.")
	}
	for _, p := range slices.Sorted(maps.Keys(r.ratios)) {
		t.addSample(labelText("policy", p), r.ratios[p])
	}
}

// exposition is a text of metrics.
type exposition struct {
	text strings.Builder
	name string // of the family
}

// beginFamily begins the samples of a metric: its name, what kind Prometheus takes it for, and the
// help.
func (t *exposition) beginFamily(name, kind, help string) {
	t.name = name
	fmt.Fprintf(&t.text, "# HELP %s %s\n# TYPE %[1]s %[3]s\n", name, help, kind)
}

// addSample adds a sample of the metric that beginFamily has begun; labels are without braces, "" =
// none.
func (t *exposition) addSample(labels string, x float64) {
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

// labelText returns a label; names of policies come from users.
func labelText(name, value string) string {
	return name + `="` + escapes.Replace(strings.ToValidUTF8(value, "?")) + `"`
}
