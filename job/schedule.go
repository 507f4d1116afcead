package job

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/state/layout"
)

// What a spec says to a pool, which shares hosts among jobs. A job that has hosts for itself
// ignores it. Nothing here does I/O.

// Preempt says what a pool may do to a running job for another one.
type Preempt string

// The values of Preempt.
const (
	PreemptShrink Preempt = ""      // it may get fewer workers, not below its min; written "shrink"
	PreemptNever  Preempt = "never" // it keeps what it has
	PreemptPark   Preempt = "park"  // it may also be ended at a checkpoint, and go on later
)

// Schedule is how a job stands among others in a pool. The zero value of a field means its default.
type Schedule struct {
	Tenant   string `json:"tenant,omitempty"`   // whose job it is; default: nobody's
	Priority int    `json:"priority,omitempty"` // a higher one goes first; default 0
	// how long after it is submitted the job should have ended, such as 6h or 1h30m; default: any
	Deadline string `json:"deadline,omitempty"`
	// what the result is worth if it comes in time, and what the job may cost, in money; default:
	// money does not count
	Value  float64 `json:"value,omitempty"`
	Budget float64 `json:"budget,omitempty"`
	// how many optimizer steps the training has in all; default: its program says that, or nobody
	Steps uint64 `json:"steps,omitempty"`
	Sizes []int  `json:"sizes,omitempty"` // numbers of workers that it can have; default: each
	// mesh with which the job begins with so many workers, as dp=2,tp=2; default: its program says
	Meshes  map[int]string `json:"meshes,omitempty"`
	Preempt Preempt        `json:"preempt,omitempty"` // what may be done to it for other jobs
}

// MaxPriority bounds priorities in both directions.
const MaxPriority = 1000

// scheduleKeys are the keys of a schedule, with an example of each for error messages.
var scheduleKeys = []struct{ name, example string }{
	{"tenant", "tenant: vision"},
	{"priority", "priority: 10"},
	{"deadline", "deadline: 6h"},
	{"value", "value: 40"},
	{"budget", "budget: 12.5"},
	{"steps", "steps: 2000"},
	{"sizes", "sizes: [1, 2, 4]"},
	{"meshes", `meshes: {4: "dp=2,tp=2"}`},
	{"preempt", "preempt: park"},
}

// checkScheduleKeys returns an Error for a schedule, as it is in the file, that is none or has a
// key that no schedule has; nil otherwise.
func checkScheduleKeys(written any) error {
	fields, is := written.(map[string]any)
	if !is {
		return &Error{"schedule", "it has keys of its own; write it like this: schedule: " +
			"{priority: 10}"}
	}
	names := scheduleKeyNames()
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(names, key) {
			return &Error{"schedule", fmt.Sprintf("there is no key %s%s; known are %s", key,
				spelling.Meant(key, names), strings.Join(names, ", "))}
		}
	}
	return nil
}

// scheduleKeyNames lists the keys that a schedule may have.
func scheduleKeyNames() (names []string) {
	for _, k := range scheduleKeys {
		names = append(names, k.name)
	}
	return names
}

// exampleOf returns how a key of a schedule is written; path is schedule.KEY with what may follow.
func exampleOf(path string) string {
	for _, k := range scheduleKeys {
		if word := "schedule." + k.name; path == word || strings.HasPrefix(path, word+".") {
			return "schedule: {" + k.example + "}"
		}
	}
	return "schedule: {priority: 10}"
}

// DeadlineAfter returns how long after it is submitted a job should have ended; 0 = any time.
func (s *Schedule) DeadlineAfter() (time.Duration, error) {
	if s == nil || s.Deadline == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(s.Deadline)
	if err != nil || d < time.Millisecond {
		return 0, &Error{"schedule", fmt.Sprintf("deadline: %q is no time in which a job can "+
			"end; give hours, minutes or seconds, such as 6h or 1h30m", s.Deadline)}
	}
	return d, nil
}

// Goal returns how many optimizer steps the training has in all; 0 = the schedule does not say it.
func (s *Schedule) Goal() uint64 {
	if s == nil {
		return 0
	}
	return s.Steps
}

// MeshesBySize returns the meshes with which the job begins, by its number of workers; others begin
// with what their program states. The map is not altered.
func (s *Schedule) MeshesBySize() map[int]string {
	if s == nil {
		return nil
	}
	return s.Meshes
}

// checkSchedule returns what is wrong with the schedule of a job as an *Error; nil = nothing.
func (s Spec) checkSchedule() error {
	c := s.Schedule
	if c == nil {
		return nil
	}
	if _, err := c.DeadlineAfter(); err != nil {
		return err
	}
	const most = 1e12
	least, last := max(1, s.Min), max(s.Max, s.Workers)
	switch {
	case len(c.Tenant) > maxName || strings.ContainsFunc(c.Tenant, isControl):
		return &Error{"schedule", fmt.Sprintf("tenant: %q is no name; give up to %d letters",
			c.Tenant, maxName)}
	case c.Priority < -MaxPriority || c.Priority > MaxPriority:
		return &Error{"schedule", fmt.Sprintf("priority: %d is not between %d and %d", c.Priority,
			-MaxPriority, MaxPriority)}
	case !(c.Value >= 0 && c.Value <= most):
		return &Error{"schedule", fmt.Sprintf("value: %v is no money", c.Value)}
	case !(c.Budget >= 0 && c.Budget <= most):
		return &Error{"schedule", fmt.Sprintf("budget: %v is no money", c.Budget)}
	case c.Steps >= 1<<53:
		return &Error{"schedule", fmt.Sprintf("steps: no training has %d steps", c.Steps)}
	case !slices.Contains([]Preempt{PreemptShrink, PreemptNever, PreemptPark, "shrink"},
		c.Preempt):
		return &Error{"schedule", fmt.Sprintf("preempt: %q is nothing that can be done to a "+
			"job%s; there are never, shrink and park", c.Preempt,
			spelling.Meant(string(c.Preempt), []string{"never", "shrink", "park"}))}
	}
	fits := len(c.Sizes) == 0
	for _, n := range c.Sizes {
		if n < 1 || n > MaxWorkers {
			return &Error{"schedule", fmt.Sprintf("sizes: %d is not a number of workers; give 1 "+
				"to %d", n, MaxWorkers)}
		}
		fits = fits || n >= least && n <= last
	}
	if !fits {
		return &Error{"schedule", fmt.Sprintf("sizes: none of %v is between the least number of "+
			"workers, %d, and the largest, %d", c.Sizes, least, last)}
	}
	for _, n := range slices.Sorted(maps.Keys(c.Meshes)) {
		if n < 1 || n > MaxWorkers || len(c.Sizes) > 0 && !slices.Contains(c.Sizes, n) {
			return &Error{"schedule", fmt.Sprintf("meshes: %d is not a number of workers that the "+
				"job can have", n)}
		}
		mesh, err := layout.ParseMesh(c.Meshes[n])
		if err == nil && c.Meshes[n] != "" && mesh.Ranks() != n {
			err = fmt.Errorf("mesh %s is for %s, and stands at %d", c.Meshes[n],
				plural.Of(mesh.Ranks(), "worker"), n)
		}
		if err != nil {
			return &Error{"schedule", "meshes: " + err.Error()}
		}
	}
	return nil
}

// isControl reports whether a character cannot be shown.
func isControl(r rune) bool { return r < ' ' || r == 0x7f }
