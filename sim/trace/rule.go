package trace

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/plural"
)

// Rule is the name of something about a file that its reader has noticed, and of what the reader
// did about it.
type Rule string

// Defects: what is wrong with lines of a file. A strict reader refuses them.
const (
	// CutGzip: the compressed file ends early or is damaged. What comes before that is read.
	CutGzip Rule = "cut gzip"
	// ByteOrderMark: the file begins with a mark of its encoding. The mark is skipped.
	ByteOrderMark Rule = "byte order mark"
	// CRLF: lines end with CR LF. They are read as if they ended with LF.
	CRLF Rule = "CR LF"
	// Cells: a line has another number of cells than the first line. It is left out.
	Cells Rule = "cells"
	// NoNumber: a cell has no finite number, or no time. The line is left out.
	NoNumber Rule = "no number"
	// Negative: a number is below zero. The line is left out.
	Negative Rule = "negative"
	// TooLarge: a number is beyond all use. The line is left out.
	TooLarge Rule = "too large"
	// NoGPUs: a job asks for no GPU. It is left out.
	NoGPUs Rule = "no GPUs"
	// NoTime: a job takes no time. It is left out.
	NoTime Rule = "no time"
	// LargerThanCluster: a job asks for more GPUs than the cluster has. It is left out.
	LargerThanCluster Rule = "larger than the cluster"
	// Unsorted: a job arrives before one above it. Jobs are sorted by their arrival.
	Unsorted Rule = "unsorted"
	// RepeatedRow: a line is the same as one above it in all cells. Both jobs are kept.
	RepeatedRow Rule = "repeated row"
	// RepeatedName: a job has the name of one above it. It gets the number of its line added.
	RepeatedName Rule = "repeated name"
	// GPUTime: the GPU time of a job is not its duration times its GPUs. The duration counts.
	GPUTime Rule = "GPU time"
	// BeyondMemory: settings were measured that do not fit into the memory that the source of the
	// profile states. They are left out.
	BeyondMemory Rule = "beyond memory"
)

// Notes: what has to be known about a file that is as it was meant to be.
const (
	// StartsLate: the first job does not arrive at time 0. The clock is shifted.
	StartsLate Rule = "starts late"
	// Generated: models, batches, iterations and deadlines of this kind of file were drawn at
	// random by those who published it.
	Generated Rule = "generated"
	// CutShort: no job is shorter than 600 s; shorter ones are apparently cut at the source.
	CutShort Rule = "cut at 600 s"
	// TightDeadline: a job reaches its deadline with more GPUs than it asks for, or not at all.
	TightDeadline Rule = "tight deadline"
	// LongJobs: a hundredth of the jobs has more than half of all GPU time, so it dominates means.
	LongJobs Rule = "long jobs"
	// UnusedColumns: the file has columns of which the reader knows nothing.
	UnusedColumns Rule = "unused columns"
	// NotMeasured: a cell of a table of speeds is blank, 0 or nan, which all mean that nothing was
	// measured there. It is never a speed of zero.
	NotMeasured Rule = "not measured"
	// Falls: a model is slower on more GPUs.
	Falls Rule = "falls"
	// LowerIsBetter: the metric of an application improves as it falls.
	LowerIsBetter Rule = "lower is better"
)

// rules are all rules with what is said of the lines that they are about. The order is that of
// reports.
var rules = []struct {
	rule Rule
	note bool
	text string
}{
	{CutGzip, false, "the compressed file is cut or damaged: what comes before is read"},
	{ByteOrderMark, false, "begins with a byte order mark, which is skipped"},
	{CRLF, false, "end with CR LF, read as LF"},
	{Cells, false, "have another number of cells than the first line: left out"},
	{NoNumber, false, "have a cell without a finite number or a time: left out"},
	{Negative, false, "have a number below zero: left out"},
	{TooLarge, false, "have a number that is too large: left out"},
	{NoGPUs, false, "ask for no GPU: left out"},
	{NoTime, false, "take no time: left out"},
	{LargerThanCluster, false, "ask for more GPUs than the cluster has: left out"},
	{Unsorted, false, "arrive before a job above them: sorted by arrival"},
	{RepeatedRow, false, "repeat another line in all cells: kept"},
	{RepeatedName, false, "repeat a name: the number of the line is added to it"},
	{GPUTime, false, "have a GPU time other than duration times GPUs: the duration counts"},
	{BeyondMemory, false, "are beyond the memory that the source states: left out"},
	{StartsLate, true, "the first job arrives after time 0: the clock is shifted"},
	{Generated, true, "have models, batches, iterations and deadlines drawn at random"},
	{CutShort, true, "none is shorter than 600 s: cut at the source"},
	{TightDeadline, true, "have a deadline that needs more GPUs than they ask for, or none"},
	{LongJobs, true, "a hundredth of the jobs has most GPU time: medians say more than means"},
	{UnusedColumns, true, "columns that are not used"},
	{NotMeasured, true, "cells without a measured speed: interpolated between others, or left out"},
	{Falls, true, "cells are slower than one with fewer GPUs"},
	{LowerIsBetter, true, "files whose metric improves as it falls"},
}

// Finding is what a rule has found in a file.
type Finding struct {
	Rule  Rule   `json:"rule"`
	Note  bool   `json:"note"`  // whether the file is as it was meant to be
	Count int    `json:"count"` // lines, or what else the rule counts
	Line  int    `json:"line"`  // first of them, from 1 on; 0 = the file as a whole
	Text  string `json:"text"`  // what was found and what was done about it
}

// String returns the finding as a line for people.
func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %d: %s", f.Rule, f.Count, f.Text)
	}
	return fmt.Sprintf("%s: %s, the first is line %d: %s", f.Rule, plural.Of(f.Count, "line"),
		f.Line, f.Text)
}

// findings counts what was found.
type findings map[Rule]*Finding

// add counts something that a rule has found in a line; 0 = the file as a whole.
func (f findings) add(rule Rule, line int) { f.addSeveral(rule, line, 1) }

// addSeveral counts several things, the first of which is in a line.
func (f findings) addSeveral(rule Rule, line, count int) {
	if at := f[rule]; at != nil {
		at.Count += count
		at.Line = min(at.Line, line)
		return
	}
	f[rule] = &Finding{Rule: rule, Count: count, Line: line}
}

// list returns what was found in the order of rules. A strict reader gets an error for the defect
// that comes first in the file.
func (f findings) list(strict bool) ([]Finding, error) {
	var all []Finding
	for _, r := range rules {
		if at := f[r.rule]; at != nil {
			at.Note, at.Text = r.note, r.text
			all = append(all, *at)
		}
	}
	if !strict {
		return all, nil
	}
	defects := slices.DeleteFunc(slices.Clone(all), func(f Finding) bool { return f.Note })
	if len(defects) == 0 {
		return all, nil
	}
	slices.SortStableFunc(defects, func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
	return nil, fmt.Errorf("%s; mend the file, or read it without --strict, which counts such "+
		"lines", defects[0])
}
