package watch

import (
	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
)

// View is a run as pages, tables and reports show it. Times are seconds since 1970, and 0 is not
// known. Texts come from users and programs: who shows them must escape them.
type View struct {
	// ID names what the view has; Run.Since goes by it.
	ID      string   `json:"id"`
	Made    float64  `json:"made"` // when the view was made
	Job     string   `json:"job"`  // "" = not known
	Dir     string   `json:"dir"`
	Command []string `json:"command"`
	Version string   `json:"version"` // of shoal, which has run it
	Started float64  `json:"started"`
	State   State    `json:"state"`
	// Notes say what is missing, torn or foreign.
	Notes    []string       `json:"notes"`
	Series   []SeriesView   `json:"series"`
	Marks    []Mark         `json:"marks"` // in the order of the ledger
	LeftOut  int            `json:"left_out"`
	Changes  []ChangeView   `json:"changes"` // in the order in which they were entered
	Coverage []CoverageView `json:"coverage"`
	Newest   *history.Row   `json:"newest,omitempty"` // the last row of sense.jsonl
	Hosts    []history.Host `json:"hosts"`
	// Need is what somebody must do before the job goes on, or has the workers that it wants; "" =
	// nothing.
	Need string `json:"need,omitempty"`
	// Live is the job as its launcher tells it; nil = it does not run, or does not answer.
	Live   *control.Job     `json:"live,omitempty"`
	WhyNot []control.WhyNot `json:"why_not"`
	Ended  []Ended          `json:"ended"` // workers that do not run, or of which it is not known
}

// State is how the run is.
type State struct {
	// Word is the state of a running job as its launcher has it, or "ended", "parked", "failed",
	// "left" (the job goes on elsewhere), "elsewhere", "silent", "killed".
	Word string  `json:"word"`
	Text string  `json:"text"` // the same as a sentence
	Over bool    `json:"over"` // nothing more will come
	At   float64 `json:"at"`   // when it ended, or was heard of last; 0 = not known
}

// Ended says how a worker ended.
type Ended struct {
	Rank int    `json:"rank"` // number of the worker
	How  string `json:"how"`
}

// Mark is something that happened, as the ledger has it.
type Mark struct {
	Time float64 `json:"time"`
	Step uint64  `json:"step"`
	// OptimizerSteps is how many optimizer steps the training had made; 0 = as many.
	OptimizerSteps uint64 `json:"optimizer_steps,omitempty"`
	// StepUnknown says that Step is not known, as of what a worker has reported.
	StepUnknown bool `json:"step_unknown,omitempty"`
	// Kind is "loss", "join", "leave", "generation", "pause", "resume", "stop", "park", "mesh",
	// "wait", "change", "route", "policy" or "other".
	Kind  string `json:"kind"`
	Title string `json:"title"`
	Text  string `json:"text"` // the reason
	// Change names the change that it is about; "" = none.
	Change string `json:"change,omitempty"`
}

// ChangeView is a change of the setting or of a route, as its last entry has it.
type ChangeView struct {
	setting.Change
	Name    string  `json:"name"` // such as 3, or r3 of a route
	What    string  `json:"what"`
	Entered float64 `json:"entered"`
	Ended   float64 `json:"ended"` // 0 = it is on trial, or no end is in the ledger
	// Inside says whether what was measured is in the band that was predicted; nil = one of the two
	// is not known.
	Inside *bool `json:"inside,omitempty"`
}

// CoverageView is how often the bands of a policy held what was measured. They are meant to hold it
// in 80 of 100 cases.
type CoverageView struct {
	Policy string `json:"policy"` // "" = what persons have asked for
	Inside int    `json:"inside"`
	Of     int    `json:"of"`
}

// Update is what has come since a view or another update.
type Update struct {
	ID     string       `json:"id"`
	Made   float64      `json:"made"`
	State  State        `json:"state"`
	Notes  []string     `json:"notes"`
	Series []SeriesView `json:"series"` // the new points only, of series that may be new too
	Marks  []Mark       `json:"marks"`
	// Changes are those that are new or have gone on, whole.
	Changes  []ChangeView     `json:"changes"`
	Coverage []CoverageView   `json:"coverage"`
	Newest   *history.Row     `json:"newest,omitempty"`
	Hosts    []history.Host   `json:"hosts"`
	Need     string           `json:"need,omitempty"`
	Live     *control.Job     `json:"live,omitempty"`
	WhyNot   []control.WhyNot `json:"why_not"`
	Ended    []Ended          `json:"ended"`
}
