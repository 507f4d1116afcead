package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// tally is what a soak did to its jobs, and what their workers found. The goroutine of a job's
// faults adds to it, and that of the test when the job has ended.
type tally struct {
	faults     map[string]int // by kind
	steps      int            // of all jobs together
	found      map[string]int // by finding, all of which should be 0
	exceptions []string       // lines of workers that tell of an error
}

// newTally returns an empty tally.
func newTally() *tally { return &tally{faults: map[string]int{}, found: map[string]int{}} }

// findings are what the audit of a worker reports and what should be 0.
var findings = []string{"steps_lost", "samples_lost", "samples_repeated", "steps_unequal"}

// add adds the last report of a member: its findings and the number of its last step.
func (c *tally) add(report map[string]float64) {
	for _, what := range findings {
		c.found[what] += int(report[what])
	}
	c.steps += int(report["step"])
}

// String returns the tally as a table.
func (c *tally) String() string {
	var b strings.Builder
	total := 0
	for _, kind := range slices.Sorted(maps.Keys(c.faults)) {
		total += c.faults[kind]
		fmt.Fprintf(&b, "%6d  %s\n", c.faults[kind], kind)
	}
	fmt.Fprintf(&b, "%6d  faults in %d steps\n", total, c.steps)
	for _, what := range findings {
		fmt.Fprintf(&b, "%6d  %s\n", c.found[what], strings.ReplaceAll(what, "_", " "))
	}
	fmt.Fprintf(&b, "%6d  exceptions seen by workers", len(c.exceptions))
	return b.String()
}
