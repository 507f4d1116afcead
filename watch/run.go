// Package watch is what people watch of a run, while it lasts and afterwards: series of what steps
// take, losses and rates, the time line of what happened, and changes with what was predicted and
// measured. A Run takes the files of the directory of a run line by line, and what the launcher
// says; View and Since give what is to be shown. The package reads no files and knows no clock:
// package watch/follow brings it all that.
package watch

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/sense/history"
)

// The parts of a Run, and how lines come into it. Like Run, the types in this file are for one
// goroutine at a time; nothing here does I/O.

// Bounds of what is kept of a run.
const (
	maxMarks   = 5000 // the newest
	maxChanges = 2000 // the newest
	maxMetrics = 24   // names of metrics
	maxName    = 100  // bytes of the name of a metric
	maxOutputs = 256  // workers of which only the output is known, the newest
	maxRecent  = 4096 // points and entries that Since can go back
)

// The names of the files, as notes about them have it.
const (
	fileJob     = "job.json"
	fileSense   = "sense.jsonl"
	fileEvents  = "events.jsonl"
	fileMetrics = "metrics.jsonl"
	fileResult  = "result.json"
)

// Run is what is known of a run. New makes one. One goroutine at a time uses it.
type Run struct {
	dir, epoch, version string // version is that of this program

	name, ranBy string  // of the job; the version of shoal that has run it
	latest      float64 // the newest time in the files of lines
	command     []string
	started     float64
	result      *resultFile
	outputs     []int // workers whose output is in the directory
	whyNot      []control.WhyNot
	answer
	measured
	ledger
	faulty
	news
}

// answer is what the launcher says.
type answer struct {
	live  *control.Job // nil = it does not answer
	heard float64      // when it has answered last; 0 = never
	why   string       // it does not answer
}

// measured is what is kept of measurements.
type measured struct {
	steps, split *Series // of sense.jsonl
	newest       *history.Row
	newestAt     float64 // the time of newest
	hosts        []history.Host
	// samples and stepsTold are sums over all rows that ever were in the file, and upTo is the step
	// of the newest one: a file that was replaced by a smaller one brings rows again.
	samples, stepsTold, upTo uint64

	pace     *Series // steps a second, by what the launcher says
	paceStep uint64  // optimizer steps that were made at paceTime, where paceRounds: of a training
	paceTime float64
	// paceRounds is whether the launcher had told optimizer steps apart from commits then.
	paceRounds bool

	metrics map[string]*metric
	names   []string // of metrics, sorted
}

// ledger is what is kept of events.jsonl.
type ledger struct {
	marks   []Mark
	leftOut int // marks before these
	changes []ChangeView
	ends    map[changeEnd]int  // changes that have ended
	ratios  map[string]float64 // measured over predicted, of the newest change, by policy
}

// faulty is what is wrong with the files.
type faulty struct {
	notes  map[string]string // by file
	faults map[string]*fault // by file
}

// news is what has come lately.
type news struct {
	seq    uint64 // counts all that came before recent
	recent []item
}

// fault counts lines that could not be read.
type fault struct {
	lines int
	first string
	torn  bool
}

// item is something that has come: a point of a series, a mark, or a change.
type item struct {
	series string // "" = it is no point
	time   float64
	values []float64
	mark   *Mark
	change string // name of the change that is new or has gone on
}

// resultFile is what is read of result.json.
type resultFile struct {
	OK        bool      `json:"ok"`
	Error     string    `json:"error"`
	StoppedBy string    `json:"stopped_by"`
	GoesOn    string    `json:"goes_on"`
	Parked    bool      `json:"parked"`
	Started   time.Time `json:"started"`
	Seconds   float64   `json:"seconds"`
	Workers   []Ended   `json:"workers"`
}

// stepColumns are the columns of the series of steps; splitColumns are where their time goes.
var (
	stepColumns = []string{"median", "p10", "p90", "rate", "loss", "workers", "batch", "noise",
		"slack"}
	splitColumns = []string{"data", "compute", "exposed", "optimizer", "rest"}
)

// New returns a run of which nothing is known yet. dir is its directory, version that of this
// program, and epoch a text that no other Run has: updates of one do not fit another.
func New(dir, version, epoch string) *Run {
	r := &Run{dir: dir, version: version, epoch: epoch}
	r.notes, r.faults = map[string]string{}, map[string]*fault{}
	r.metrics, r.pace = map[string]*metric{}, newSeries(false, "steps")
	r.ResetSense()
	r.ResetEvents()
	return r
}

// ResetSense forgets what sense.jsonl had, because the file was replaced by a smaller one. What was
// counted stays. Updates cannot go back beyond this.
func (r *Run) ResetSense() {
	r.steps = newSeries(false, stepColumns...)
	r.split = newSeries(true, splitColumns...)
	r.resetFile(fileSense)
}

// ResetEvents forgets what events.jsonl had, because the file is another one.
func (r *Run) ResetEvents() {
	r.marks, r.changes, r.leftOut = nil, nil, 0
	r.ends, r.ratios = map[changeEnd]int{}, map[string]float64{}
	r.resetFile(fileEvents)
}

// ResetMetrics forgets what metrics.jsonl had, because the file is another one.
func (r *Run) ResetMetrics() {
	r.metrics, r.names = map[string]*metric{}, nil
	r.resetFile(fileMetrics)
}

// resetFile forgets what was wrong with a file, and what updates had of it.
func (r *Run) resetFile(file string) {
	delete(r.faults, file)
	delete(r.notes, "part of "+file)
	r.requireView()
}

// requireView has whoever asks for an update later be told that a whole view is needed.
func (r *Run) requireView() {
	r.seq += uint64(len(r.recent)) + 1
	r.recent = nil
}

// setNote keeps what is to be said about a file, or about a part of one; "" = nothing any more.
func (r *Run) setNote(file, text string) {
	if text == "" {
		delete(r.notes, file)
		return
	}
	r.notes[file] = text
}

// FileMissing says that a file is not there.
func (r *Run) FileMissing(file string) {
	r.setNote(file, map[string]string{
		fileJob: "there is no job.json: what was run is not known",
		fileSense: "there is no sense.jsonl: the job has taken one step at most, or for less " +
			"than ten seconds, or this host has not led it, or its version of shoal writes none",
		fileEvents:  "there is no events.jsonl: what happened to the job is not known",
		fileMetrics: "there is no metrics.jsonl: what workers reported is not known",
	}[file])
}

// FileFound says that a file of lines is there, and can be read.
func (r *Run) FileFound(file string) { r.setNote(file, "") }

// FileUnreadable says that a file is there and cannot be read.
func (r *Run) FileUnreadable(file string, err error) {
	r.setNote(file, fmt.Sprintf("%s cannot be read: %v", file, err))
}

// FilePartlyRead says that only so many bytes of a file were read, as it is very long: parts in
// equal distances, or its end.
func (r *Run) FilePartlyRead(file string, size, read int64, endOnly bool) {
	which := "in equal distances"
	if endOnly {
		which = "at its end"
	}
	r.setNote("part of "+file, fmt.Sprintf("%s has %.1f MB, of which %.1f MB %s were read", file,
		float64(size)/1e6, float64(read)/1e6, which))
}

// LineSkipped says that a line of a file is too long to be one of its lines.
func (r *Run) LineSkipped(file string, limit int) {
	r.countBadLine(file, fmt.Errorf("a line of more than %d MiB", limit>>20))
}

// LastLineTorn says whether the last line of a file has no end, and will get none.
func (r *Run) LastLineTorn(file string, torn bool) {
	if f := r.faults[file]; f != nil {
		f.torn = torn
	} else if torn {
		r.faults[file] = &fault{torn: true}
	}
}

// countBadLine counts a line of a file that cannot be read; err says why, and is kept of the first.
func (r *Run) countBadLine(file string, err error) {
	f := r.faults[file]
	if f == nil {
		f = &fault{}
		r.faults[file] = f
	}
	if f.lines++; f.first == "" {
		f.first = err.Error()
	}
}

// SetJob takes job.json.
func (r *Run) SetJob(text []byte) {
	var record struct {
		Spec struct {
			Name    string   `json:"name"`
			Command []string `json:"command"`
		} `json:"spec"`
		Started time.Time `json:"started"`
		Version string    `json:"version"`
	}
	if err := json.Unmarshal(text, &record); err != nil {
		r.FileUnreadable(fileJob, err)
		return
	}
	r.setNote(fileJob, "")
	r.name, r.command, r.ranBy = record.Spec.Name, record.Spec.Command, record.Version
	r.started = Seconds(record.Started)
	r.requireView() // updates have nothing of this
	if r.ranBy != r.version {
		ranBy := firstNonEmpty(r.ranBy, "of a version that it does not tell")
		r.setNote(fileJob, fmt.Sprintf("the run is of shoal %s and this is %s: what only that one "+
			"writes is not shown", ranBy, r.version))
	}
}

// SetResult takes result.json.
func (r *Run) SetResult(text []byte) {
	var f resultFile
	if err := json.Unmarshal(text, &f); err != nil {
		r.FileUnreadable(fileResult, err)
		return
	}
	r.setNote(fileResult, "")
	r.result = &f
	if r.started == 0 {
		r.started = Seconds(f.Started)
	}
}

// SetWhyNot takes why_not.json. What is none of it is left out.
func (r *Run) SetWhyNot(text []byte) {
	var list []control.WhyNot
	if json.Unmarshal(text, &list) == nil {
		r.whyNot = list
	}
}

// LacksWorkers reports whether neither a result nor the launcher says which workers there are.
func (r *Run) LacksWorkers() bool { return r.result == nil && r.live == nil }

// SetOutputs takes the numbers of the workers whose output is in the directory of the run, which
// are shown where LacksWorkers.
func (r *Run) SetOutputs(workers []int) { r.outputs = workers }

// HasResult reports whether the run is known to be over.
func (r *Run) HasResult() bool { return r.result != nil }

// SetLive takes what the launcher has said at a time. A nil job is none: why says why it does not
// answer, and "" that it has ended.
func (r *Run) SetLive(j *control.Job, why string, now float64) {
	r.live, r.why = j, why
	if j == nil {
		return
	}
	r.heard, r.name = now, j.Name
	if r.started == 0 {
		r.started = Seconds(j.Started)
	}
	if len(j.WhyNot) > 0 {
		r.whyNot = j.WhyNot
	}
	if !j.Elastic {
		return
	}
	made, rounds := cmp.Or(j.OptimizerSteps, j.Steps), j.OptimizerSteps > 0
	if r.paceTime > 0 && now > r.paceTime && made >= r.paceStep && rounds == r.paceRounds {
		r.addPoint("pace", r.pace, now,
			[]float64{float64(made-r.paceStep) / (now - r.paceTime)})
	}
	r.paceStep, r.paceTime, r.paceRounds = made, now, rounds
}

// addPoint adds a point to a series, and to what is recent.
func (r *Run) addPoint(name string, s *Series, t float64, values []float64) {
	s.add(t, values)
	r.latest = max(r.latest, t)
	r.keepRecent(item{series: name, time: t, values: values})
}

// keepRecent adds what has come to r.recent, which updates are made of, and drops the oldest where
// that has become too much.
func (r *Run) keepRecent(i item) {
	r.recent = append(r.recent, i)
	if len(r.recent) > 2*maxRecent {
		drop := len(r.recent) - maxRecent
		r.seq += uint64(drop)
		r.recent = slices.Clone(r.recent[drop:])
	}
}

// AddSense takes a line of sense.jsonl, and keeps nothing of its memory. One that cannot be read is
// counted, and told to those who watch.
func (r *Run) AddSense(line []byte) {
	row, err := history.Parse(line)
	if err != nil {
		r.countBadLine(fileSense, err)
		return
	}
	t, err := time.Parse(time.RFC3339, row.Time)
	if err != nil {
		r.countBadLine(fileSense, fmt.Errorf("a row without a time"))
		return
	}
	made := row.Made(r.newest)
	if row.Step > r.upTo {
		r.samples += row.Samples
		r.stepsTold += made
		r.upTo = row.Step
	}
	r.newest, r.newestAt = &row, Seconds(t)
	if row.Hosts != nil {
		r.hosts = row.Hosts
	}
	nan := math.NaN()
	mean := nan
	if row.Span > 0 {
		mean = row.Span / float64(made)
	}
	values := []float64{nan, nan, nan, nan, nan, float64(row.Size), nan, nan, nan}
	if q := row.Seconds; q != nil {
		values[0], values[1], values[2] = q.Median, q.P10, q.P90
		mean = q.Median
	}
	if row.Span > 0 && row.Samples > 0 {
		values[3] = float64(row.Samples) / row.Span
	}
	if row.Loss != nil {
		values[4] = *row.Loss
	}
	if row.Batch > 0 {
		values[6] = float64(row.Batch)
	}
	if row.Noise != nil && row.Noise.Scale != nil {
		values[7] = row.Noise.Scale.Mid
	}
	if len(row.Slack) > 0 {
		values[8] = slices.Max(row.Slack)
	}
	r.addPoint("steps", r.steps, Seconds(t), values)
	if s := row.Split; s != nil {
		rest := mean - s.Data - s.Compute - s.Exposed - s.Optimizer
		r.addPoint("split", r.split, Seconds(t),
			[]float64{s.Data, s.Compute, s.Exposed, s.Optimizer, max(rest, 0)})
	}
}

// addMark adds a mark to the time line.
func (r *Run) addMark(m Mark) {
	if len(r.marks) >= maxMarks {
		drop := maxMarks / 8
		r.leftOut += drop
		r.marks = slices.Clone(r.marks[drop:])
	}
	r.marks = append(r.marks, m)
	r.latest = max(r.latest, m.Time)
	r.keepRecent(item{mark: &m})
}

// allNotes returns what is missing, torn or foreign, in an order that stays.
func (r *Run) allNotes() []string {
	list := []string{}
	for _, file := range []string{fileJob, fileSense, fileEvents, fileMetrics,
		"metrics", fileResult} {
		for _, about := range []string{file, "part of " + file} {
			if n := r.notes[about]; n != "" {
				list = append(list, n)
			}
		}
		f := r.faults[file]
		if f == nil {
			continue
		}
		if f.lines > 0 {
			list = append(list, fmt.Sprintf("left out: %s of %s, which cannot be read; the "+
				"first: %s", plural.Of(f.lines, "line"), file, f.first))
		}
		if f.torn {
			list = append(list, fmt.Sprintf("the last line of %s is torn, and left out", file))
		}
	}
	return list
}

// Seconds returns a time in seconds since 1970, with milliseconds; 0 for none.
func Seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1e3
}

// firstNonEmpty returns the first text, or the second where that is empty.
func firstNonEmpty(text, other string) string {
	if strings.TrimSpace(text) == "" {
		return other
	}
	return text
}
