package policies

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/internal/strict"
	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/history"
	"github.com/shoal-ml/shoal/setting"
)

// The lines that a policy and its launcher exchange, one JSON object each: docs/formats/policy.md
// has them. All functions of this file are pure.

// Protocol is the version of the lines.
const Protocol = 1

// maxLine is the number of bytes of a line of a program at most.
const maxLine = 64 << 10

// hello is the first line of a program.
type hello struct {
	Protocol int      `json:"protocol"`
	Name     string   `json:"name"`
	Levers   []string `json:"levers"`
}

// request asks a program to decide.
type request struct {
	Tick        uint64          `json:"tick"` // number of the request
	Observation observation     `json:"observation"`
	State       json.RawMessage `json:"state"` // what the program returned last; null = nothing
}

// observation is a sense.Observation for programs. Numbers that are not known are absent.
type observation struct {
	Step    uint64        `json:"step"`
	Epoch   uint64        `json:"epoch"`
	Size    int           `json:"size"`
	Seconds float64       `json:"seconds"` // since the head began to observe
	Setting settingNow    `json:"setting"`
	First   uint64        `json:"first_batch"`
	Levers  leversNow     `json:"levers"`
	Rate    *setting.Band `json:"rate,omitempty"` // samples a second
	Noise   *noiseNow     `json:"noise,omitempty"`
	Saves   *savesNow     `json:"saves,omitempty"`
	Split   sense.Split   `json:"split"`
	// Machines are those of hosts, up to maxMachines, as they are in sense.jsonl.
	Machines []history.Machine `json:"machines,omitempty"`
}

// settingNow is a setting for programs.
type settingNow struct {
	Number uint64   `json:"number"`
	Batch  uint64   `json:"batch"`
	Round  uint32   `json:"round,omitempty"`
	Sync   string   `json:"sync,omitempty"`
	Rate   float64  `json:"rate,omitempty"`
	Shares []uint16 `json:"shares,omitempty"`
	Save   uint64   `json:"save,omitempty"`
	Size   uint32   `json:"size,omitempty"`
}

// leversNow are levers for programs; a closed one is absent.
type leversNow struct {
	Batch *setting.Range `json:"batch,omitempty"`
	Size  *setting.Range `json:"size,omitempty"`
	Save  bool           `json:"save,omitempty"`
	Sync  bool           `json:"sync,omitempty"` // with Round of the setting
}

// savesNow is what is known of checkpoints.
type savesNow struct {
	Cost    float64 `json:"cost"`    // seconds of training that one costs
	Writing float64 `json:"writing"` // seconds for which one is written
}

// noiseNow is what is known of the gradient noise scale.
type noiseNow struct {
	Scale float64 `json:"scale"` // in samples
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	Above bool    `json:"above,omitempty"` // the scale is High or more
}

// recentSteps is of how many steps a program is told the rate.
const recentSteps = 64

// maxMachines is of how many machines a program is told, so that a line does not become too long.
const maxMachines = 64

// newRequest returns the request of a number, with what was observed and the state that the program
// has returned last.
func newRequest(tick uint64, o sense.Observation, state []byte) request {
	x := observation{Step: o.Step, Epoch: o.Epoch, Size: o.Size, Seconds: o.Now.Seconds(),
		First: o.First, Split: finiteSplit(o.Split), Setting: settingNow{Number: o.Setting.Number,
			Batch: o.Setting.Batch, Rate: o.Setting.Rate, Shares: o.Setting.Shares,
			Save: o.Setting.Save, Size: o.Setting.Size, Round: o.Setting.Round,
			Sync: o.Setting.Sync}}
	if o.Levers.Batch.IsOpen() {
		x.Levers.Batch = &o.Levers.Batch
	}
	if o.Levers.Size.IsOpen() {
		x.Levers.Size = &o.Levers.Size
	}
	x.Levers.Save, x.Levers.Sync = o.Levers.Save, o.Levers.Auto
	if s := o.Saves; s.Count > 0 && allFinite(s.Cost, s.Writing) {
		x.Saves = &savesNow{s.Cost, s.Writing}
	}
	rate, n := sense.Rate(o.Steps.Between(o.Step-min(o.Step, recentSteps), o.Step))
	if n > 0 && allFinite(rate.Low, rate.Mid, rate.High) {
		x.Rate = &rate
	}
	if s := o.Noise.Scale; o.Noise.Known && allFinite(s.Low, s.Mid, s.High) {
		x.Noise = &noiseNow{Scale: s.Mid, Low: s.Low, High: s.High, Above: o.Noise.Above}
	}
	x.Machines = history.NewMachines(o.Machines[:min(len(o.Machines), maxMachines)])
	if len(state) == 0 || !json.Valid(state) {
		state = []byte("null")
	}
	return request{Tick: tick, Observation: x, State: state}
}

// finiteSplit returns a split without what is no finite number, as if nobody had told it.
func finiteSplit(s sense.Split) sense.Split {
	for _, x := range []*float64{&s.Data, &s.Compute, &s.Exposed, &s.Optimizer, &s.Seconds} {
		if !allFinite(*x) {
			*x = 0
		}
	}
	if !allFinite(s.Slack...) {
		s.Slack = nil
	}
	return s
}

// allFinite reports whether all of the numbers are finite.
func allFinite(list ...float64) bool {
	for _, x := range list {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return false
		}
	}
	return true
}

// answer is what a program wants.
type answer struct {
	Tick    uint64          `json:"tick"`
	Change  *change         `json:"change"` // null = nothing
	Because string          `json:"because"`
	State   json.RawMessage `json:"state"`
	Error   string          `json:"error"` // why the program cannot decide; "" = it has
}

// change is what a program wants changed; parts that are absent stay.
type change struct {
	Batch  *uint64  `json:"batch"`
	Rate   *float64 `json:"rate"`
	Shares []uint16 `json:"shares"`
	Size   *uint32  `json:"size"`
	Save   *uint64  `json:"save"`
	Round  *uint32  `json:"round"`
	Sync   *string  `json:"sync"`
}

// levers are what a program can decide about.
var levers = []string{"batch", "rate", "shares", "size", "save", "round", "sync"}

// readHello reads the first line of a program.
func readHello(line []byte) (hello, error) {
	var h hello
	if err := strict.JSON(line, &h); err != nil {
		return h, fmt.Errorf("its first line is none of a policy: %w", err)
	}
	switch {
	case h.Protocol != Protocol:
		return h, fmt.Errorf("it speaks protocol %d of policies, this shoal protocol %d: use the "+
			"shoal of one version for both", h.Protocol, Protocol)
	case h.Name == "" || len(h.Name) > 50:
		return h, fmt.Errorf("its name %.60q has not 1 to 50 bytes", h.Name)
	case !isPrintable(h.Name):
		return h, fmt.Errorf("its name %q is not one line of what can be printed", h.Name)
	case len(h.Levers) == 0:
		return h, fmt.Errorf("it names no lever: say what it decides about, such as batch")
	}
	for i, name := range h.Levers {
		if !slices.Contains(levers, name) {
			return h, fmt.Errorf("no lever is called %.60q: there are %s", name,
				strings.Join(levers, ", "))
		}
		if slices.Contains(h.Levers[:i], name) {
			return h, fmt.Errorf("it names the lever %s twice: leave one out", name)
		}
	}
	return h, nil
}

// isPrintable reports whether all of a text can be printed in one line.
func isPrintable(text string) bool {
	return utf8.ValidString(text) &&
		!strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// readAnswer reads the answer to a request. It returns the decision and the new state, and false
// with an older tick: that is an answer that came too late.
func readAnswer(line []byte, tick uint64, o sense.Observation) (d decide.Decision, state []byte,
	ours bool, err error) {
	var a answer
	if err := strict.JSON(line, &a); err != nil {
		return d, nil, true, fmt.Errorf("its answer cannot be read: %w", err)
	}
	switch {
	case a.Tick == 0: // requests count from 1
		return d, nil, true, fmt.Errorf("its answer has no tick: it is to repeat that of the "+
			"request, which is %d", tick)
	case a.Tick < tick:
		return d, nil, false, nil
	case a.Tick > tick:
		return d, nil, true, fmt.Errorf("it answers request %d, and was asked request %d", a.Tick,
			tick)
	case a.Error != "":
		return d, nil, true, fmt.Errorf("it failed: %.500s", a.Error)
	case len(a.State) > decide.MaxPolicyState:
		return d, nil, true, fmt.Errorf("its state has %d bytes, the limit is %d", len(a.State),
			decide.MaxPolicyState)
	case len(a.Because) > 4*setting.MaxText:
		return d, nil, true, fmt.Errorf("its reason has %d bytes, the limit is %d", len(a.Because),
			4*setting.MaxText)
	}
	d.Because = cmp.Or(a.Because, "it has given no reason")
	if c := a.Change; c != nil {
		to := decide.Target{Setting: o.Setting}
		if c.Batch != nil {
			to.Setting.Batch = *c.Batch
		}
		if c.Rate != nil {
			to.Setting.Rate = *c.Rate
		}
		if c.Shares != nil {
			to.Setting.Shares = c.Shares
		}
		if c.Size != nil {
			to.Setting.Size = *c.Size
		}
		if c.Save != nil {
			to.Setting.Save = *c.Save
		}
		if c.Sync != nil {
			to.Setting.Sync = *c.Sync
			if *c.Sync == setting.Ssgd {
				to.Setting.Round = 1
			}
		}
		if c.Round != nil {
			to.Setting.Round = *c.Round
		}
		d.To = &to
	}
	return d, a.State, true, nil
}
