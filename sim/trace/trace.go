// Package trace reads what public clusters have recorded of their jobs, and what was measured of
// the speed of models, for replays of many jobs. Files come in as readers. Whatever is wrong with a
// line is counted by a rule that has a name, and a strict reader refuses it. No file makes a reader
// panic. All functions are pure, and wait only for the readers they are given. The formats:
// docs/formats/trace.md.
package trace

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Trace is what a cluster has recorded of its jobs.
type Trace struct {
	Jobs  []Job // by arrival, and those that arrive together as in the file
	Rows  int   // lines with a job, also those that were left out
	Found []Finding
	// Start is the arrival of the first job on the clock of the file, in milliseconds.
	Start int64
}

// Job is a job of a trace. Times are in milliseconds since the first job arrived.
type Job struct {
	Line       int     // in the file, from 1 on
	Name       string  // different for each job
	Arrived    int64   // at least 0
	Duration   int64   // how long it ran on the GPUs that it asked for; at least 1
	GPUs       int     // what it asked for; at least 1
	Tenant     string  // who asked; "" = the file does not say
	Kind       string  // what is the same for jobs that are the same again; "" = not said
	Model      string  // what it trains; "" = not said
	Batch      int     // samples of a step, over all GPUs; 0 = not said
	Iterations float64 // steps until it is done; 0 = not said
	Deadline   int64   // when it should be done; 0 = no deadline
	Priority   int     // larger comes first
	Value      float64 // what it is worth to be done; 0 = not said
}

// Options say how a trace is read.
type Options struct {
	GPUs   int  // size of the cluster, which no job may exceed; 0 = unknown
	Strict bool // whether defects are refused
}

// Bounds of the numbers of a job.
const (
	mostSeconds = 1e10    // three hundred years
	mostGPUs    = 1 << 20 // of a job
	mostCount   = 1e15    // of iterations, of a value
)

// columns are those of a trace, by index; -1 = the file has none.
type columns struct {
	name, arrived, duration, gpus, gpuTime, tenant, kind, model, batch, iterations, deadline,
	priority, value int
	date bool // whether arrivals and deadlines are dates
}

// Read reads a trace, as text or compressed by gzip. It fails for a file that is no table or lacks
// a column, for one without a job, and, where that is asked for, for one with a defect.
func Read(r io.Reader, o Options) (*Trace, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, err
	}
	c, err := t.traceColumns()
	if err != nil {
		return nil, err
	}
	trace := &Trace{Rows: len(t.rows)}
	seen := map[string]int{}
	for _, row := range t.rows {
		job, rule := c.parseJob(row)
		if rule == "" && o.GPUs > 0 && job.GPUs > o.GPUs {
			rule = LargerThanCluster
		}
		if rule != "" {
			t.found.add(rule, row.line)
			continue
		}
		if n := seen[row.text]; n > 0 {
			t.found.add(RepeatedRow, row.line)
		}
		seen[row.text]++
		if c.gpuTime >= 0 {
			x, rule := number(row.cells[c.gpuTime], math.MaxFloat64)
			want := float64(float64(job.Duration) / 1e3 * float64(job.GPUs))
			if rule != "" || math.Abs(x-want) > max(1e-6*want, 1e-3*float64(job.GPUs)) {
				t.found.add(GPUTime, row.line)
			}
		}
		trace.Jobs = append(trace.Jobs, job)
	}
	if len(trace.Jobs) == 0 {
		found, _ := t.found.list(false)
		return nil, fmt.Errorf("it has no job that can run%s", whyNone(found))
	}
	trace.nameJobs(t.found)
	trace.sort(t.found)
	trace.addRemarks(t, c)
	trace.Found, err = t.found.list(o.Strict)
	if err != nil {
		return nil, err
	}
	return trace, nil
}

// whyNone says what was found in a file of which nothing is left.
func whyNone(found []Finding) string {
	if len(found) == 0 {
		return ": there is no line after the first"
	}
	return ": " + found[0].String()
}

// traceColumns finds the columns of a trace, by the names that public traces give them.
func (t *table) traceColumns() (c columns, err error) {
	c = columns{name: t.column("job_id", "name"), tenant: t.column("tenant", "user", "cluster"),
		kind: t.column("kind"), model: t.column("model_name", "model"),
		batch: t.column("batch_size", "batch"), iterations: t.column("num_iteration", "iterations"),
		deadline: t.column("deadline"), priority: t.column("priority"), value: t.column("value"),
		gpuTime: t.column("gpu_time"), duration: t.column("duration"),
		gpus: t.column("num_gpu", "num_gpus", "gpus")}
	c.arrived = t.column("submission_time", "arrival")
	if c.arrived < 0 {
		c.arrived, c.date = t.column("timestamp"), true
	}
	switch {
	case t.column("interval") >= 0 && t.column("expect_time_list") >= 0:
		return c, fmt.Errorf("this is a trace of Chronus, whose times are in minutes: write " +
			"columns submission_time and duration in seconds")
	case c.arrived < 0:
		return c, t.missingColumn("submission_time", "arrival", "timestamp")
	case c.duration < 0:
		return c, t.missingColumn("duration")
	case c.gpus < 0:
		return c, t.missingColumn("num_gpu", "num_gpus", "gpus")
	}
	return c, nil
}

// parseJob returns the job of a row, or the rule by which it is left out. Its times are on the
// clock of the file; a job without a deadline has the least int64 as its Deadline.
func (c *columns) parseJob(row row) (job Job, rule Rule) {
	job = Job{Line: row.line, Name: strconv.Itoa(row.line), Deadline: math.MinInt64}
	// cell returns the text of a column; "" = there is none.
	cell := func(column int) string {
		if column < 0 {
			return ""
		}
		return strings.TrimSpace(row.cells[column])
	}
	// read returns the number of a column, 0 where it may be absent and is.
	read := func(column int, most float64, needed bool) (x float64) {
		text := cell(column)
		if rule != "" || text == "" && !needed {
			return 0
		}
		x, rule = number(text, most)
		return x
	}
	if c.date {
		job.Arrived, rule = parseDate(cell(c.arrived))
	} else {
		job.Arrived = milliseconds(read(c.arrived, mostSeconds, true))
	}
	duration, gpus := read(c.duration, mostSeconds, true), read(c.gpus, mostGPUs, true)
	job.Duration, job.GPUs = milliseconds(duration), int(gpus)
	job.Batch = int(read(c.batch, mostCount, false))
	job.Iterations = read(c.iterations, mostCount, false)
	job.Value = read(c.value, mostCount, false)
	switch text := cell(c.deadline); {
	case text == "" || rule != "":
	case c.date:
		job.Deadline, rule = parseDate(text)
	default:
		job.Deadline = milliseconds(read(c.deadline, mostSeconds, true))
	}
	if text := cell(c.priority); text != "" && rule == "" {
		n, err := strconv.ParseInt(text, 10, 32) // it may be below zero
		if err != nil {
			rule = NoNumber
		}
		job.Priority = int(n)
	}
	job.Tenant, job.Kind, job.Model = cell(c.tenant), cell(c.kind), cell(c.model)
	if name := cell(c.name); name != "" {
		job.Name = name
	}
	switch {
	case rule != "":
	case gpus != math.Trunc(gpus):
		rule = NoNumber
	case gpus == 0:
		rule = NoGPUs
	case job.Duration == 0:
		rule = NoTime
	}
	return job, rule
}

// milliseconds returns seconds as the nearest number of milliseconds.
func milliseconds(seconds float64) int64 { return int64(math.Floor(float64(seconds*1e3) + 0.5)) }

// nameJobs gives jobs that share a name names of their own.
func (t *Trace) nameJobs(found findings) {
	taken := map[string]bool{}
	for i := range t.Jobs {
		job := &t.Jobs[i]
		if taken[job.Name] {
			found.add(RepeatedName, job.Line)
			for taken[job.Name] {
				job.Name += "#" + strconv.Itoa(job.Line)
			}
		}
		taken[job.Name] = true
	}
}

// sort orders the jobs by arrival and has the clock begin with the first one.
func (t *Trace) sort(found findings) {
	latest := int64(math.MinInt64)
	for i := range t.Jobs {
		if t.Jobs[i].Arrived < latest {
			found.add(Unsorted, t.Jobs[i].Line)
		}
		latest = max(latest, t.Jobs[i].Arrived)
	}
	slices.SortStableFunc(t.Jobs, func(a, b Job) int { return cmp.Compare(a.Arrived, b.Arrived) })
	t.Start = t.Jobs[0].Arrived
	for i := range t.Jobs {
		job := &t.Jobs[i]
		job.Arrived -= t.Start
		if job.Deadline == math.MinInt64 {
			job.Deadline = 0
		} else {
			job.Deadline = max(job.Deadline-t.Start, 1) // 0 would be no deadline
		}
	}
}

// addRemarks adds what has to be known of the trace, beside its defects.
func (t *Trace) addRemarks(file *table, c columns) {
	if t.Start != 0 && !c.date {
		file.found.add(StartsLate, 0)
	}
	if c.deadline >= 0 && c.iterations >= 0 && c.batch >= 0 && file.column("job_id") >= 0 {
		file.found.addSeveral(Generated, 0, len(t.Jobs))
	}
	var used = []int{c.name, c.arrived, c.duration, c.gpus, c.gpuTime, c.tenant, c.kind, c.model,
		c.batch, c.iterations, c.deadline, c.priority, c.value}
	if unused := len(file.head) - len(slices.DeleteFunc(used, func(i int) bool {
		return i < 0
	})); unused > 0 {
		file.found.addSeveral(UnusedColumns, 0, unused)
	}
	shortest, all := int64(math.MaxInt64), 0.0
	work := make([]float64, len(t.Jobs))
	for i := range t.Jobs {
		job := &t.Jobs[i]
		shortest = min(shortest, job.Duration)
		work[i] = job.work()
		all += work[i]
		if job.Deadline > 0 && job.Deadline < job.Arrived+job.Duration {
			file.found.add(TightDeadline, job.Line)
		}
	}
	if len(t.Jobs) >= 100 {
		if shortest >= 600_000 {
			file.found.addSeveral(CutShort, 0, len(t.Jobs))
		}
		slices.SortFunc(work, func(a, b float64) int { return cmp.Compare(b, a) })
		longest, count := 0.0, len(work)/100
		for _, w := range work[:count] {
			longest += w
		}
		if longest > all/2 {
			file.found.addSeveral(LongJobs, 0, count)
		}
	}
}

// Work returns the GPU-milliseconds of all jobs.
func (t *Trace) Work() (sum float64) {
	for i := range t.Jobs {
		sum += t.Jobs[i].work()
	}
	return sum
}

// work returns the GPU-milliseconds of a job.
func (j *Job) work() float64 { return float64(float64(j.Duration) * float64(j.GPUs)) }
