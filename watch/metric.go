package watch

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/shoal-ml/shoal/api"
)

// What a Run takes from metrics.jsonl, which has what workers report. Like all of Run, the methods
// are for one goroutine at a time; nothing here does I/O.

// A metric is shown of one worker, until that has said nothing of it for silence seconds while
// another one has reported it outrun times: workers that report rarely do not take turns.
const (
	silence = 30
	outrun  = 3
)

// metric is a metric that workers report, by one of them at a time.
type metric struct {
	series *Series
	worker int
	last   float64     // when that worker has reported it
	others map[int]int // reports of other workers since then, by worker
	wrong  bool        // the last report was no number, which has been marked
}

// AddMetrics takes a line of metrics.jsonl, and keeps nothing of its memory. One that cannot be
// read is counted, and told to those who watch.
func (r *Run) AddMetrics(line []byte) {
	var report struct {
		Time    time.Time   `json:"time"`
		Rank    int         `json:"rank"`
		Metrics api.Metrics `json:"metrics"`
	}
	if err := json.Unmarshal(line, &report); err != nil {
		r.countBadLine(fileMetrics, err)
		return
	}
	t := Seconds(report.Time)
	if t <= 0 {
		r.countBadLine(fileMetrics, fmt.Errorf("a report without a time"))
		return
	}
	for _, name := range slices.Sorted(maps.Keys(report.Metrics)) {
		x := report.Metrics[name]
		m := r.metrics[name]
		if m == nil {
			if len(r.metrics) >= maxMetrics || len(name) > maxName {
				r.setNote("metrics", fmt.Sprintf("of the metrics that workers report, %d are shown",
					len(r.metrics)))
				continue
			}
			m = &metric{series: newSeries(false, name), worker: report.Rank,
				others: map[int]int{}}
			r.metrics[name] = m
			r.names = append(r.names, name)
			slices.Sort(r.names)
		}
		if !m.acceptReport(report.Rank, t) {
			continue
		}
		before := m.wrong
		m.wrong = math.IsNaN(x) || math.IsInf(x, 0)
		if m.wrong && !before {
			text := fmt.Sprintf("as worker %d has reported", report.Rank)
			if at, told := report.Metrics["step"]; told {
				text += fmt.Sprintf(" at its step %.0f", at)
			}
			r.insertMark(Mark{Time: t, StepUnknown: true, Kind: "other",
				Title: fmt.Sprintf("%s is %v", name, x), Text: text})
		}
		r.addPoint("metric "+name, m.series, t, []float64{x})
	}
}

// insertMark adds a mark that the ledger does not have before what came later: at first all of the
// ledger is read before the metrics.
func (r *Run) insertMark(m Mark) {
	r.addMark(m)
	for i := len(r.marks) - 1; i > 0 && r.marks[i-1].Time > m.Time; i-- {
		r.marks[i-1], r.marks[i] = r.marks[i], r.marks[i-1]
	}
}

// acceptReport reports whether a report of a worker at a time is shown, and counts it. It may be
// the first one of the worker that is followed from now on.
func (m *metric) acceptReport(worker int, t float64) bool {
	if worker != m.worker && (worker > m.worker || m.series.points > 1) {
		if len(m.others) < maxRecent {
			m.others[worker]++
		}
		if m.others[worker] < outrun || t <= m.last+silence {
			return false
		}
	}
	m.worker, m.last = worker, t
	clear(m.others)
	return true
}
