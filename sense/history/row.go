// Package history is what is kept of the steps of a job: a row for each ten seconds, and for each
// time between two changes of members or setting that is shorter. A Recorder makes rows of steps, a
// row is a line of sense.jsonl, and Compact keeps the file small. docs/formats/sense.md has the
// format. It is pure, as package sense is.
package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/noise"
	"github.com/shoal-ml/shoal/setting"
)

// Row is what is known of some steps that follow each other, with the same members and setting.
// Seconds are those of the host that led. Numbers that are not known are 0, and left out.
type Row struct {
	// Time is when the row was written, in the form of RFC 3339.
	Time string `json:"time,omitempty"`
	// Step is how many steps were committed at the end of the row, and Steps how many of them are
	// of this row.
	Step  uint64 `json:"step"`
	Steps uint64 `json:"steps"`
	// OptimizerSteps is how many optimizer steps the training had made at the end of the row, those
	// before a checkpoint too; 0 = as many as Step.
	OptimizerSteps uint64 `json:"optimizer_steps,omitempty"`
	// Span is the sum of the seconds of all these steps, with all that has held them up.
	Span       float64 `json:"span,omitempty"`
	Generation uint64  `json:"generation"` // of the members, as in the ledger
	Size       int     `json:"size"`       // members
	Batch      uint64  `json:"batch,omitempty"`
	Change     uint64  `json:"change,omitempty"`  // number of the newest change of the setting
	Samples    uint64  `json:"samples,omitempty"` // of all these steps
	// Round is of how many optimizer steps each of Steps was at most, which workers made on their
	// own; 0 = one. The last round of an epoch can be shorter. Seconds, Split and Slack are of one
	// of these steps.
	Round uint32 `json:"round,omitempty"`
	// Seconds is what a whole step takes that no change has disturbed.
	Seconds *Quantiles `json:"seconds,omitempty"`
	Split   *Split     `json:"split,omitempty"`
	// Slack has by rank how many seconds a step the worker waits for the slowest one.
	Slack []float64 `json:"slack,omitempty"`
	Noise *Noise    `json:"noise,omitempty"`
	// Loss is the mean of the losses that workers tell; nil = they tell none.
	Loss *float64 `json:"loss,omitempty"`
	// Gradients is how many bytes of gradients a worker gives to be averaged in a step.
	Gradients uint64 `json:"gradients,omitempty"`
	// Cable is how many bytes a second the cable of a host carries, as far as all-reduces tell.
	Cable float64 `json:"cable,omitempty"`
	// Machines says how busy the machines of hosts were, in the mean of their notes.
	Machines []Machine `json:"machines,omitempty"`
	// Data and Hosts are in the first row of a time with the same members and setting.
	Data  *Data  `json:"data,omitempty"`
	Hosts []Host `json:"hosts,omitempty"`
}

// Quantiles are the median and the deciles of the seconds of some steps.
type Quantiles struct {
	P10    float64 `json:"p10"`
	Median float64 `json:"median"`
	P90    float64 `json:"p90"`
}

// Split is where the time of a step goes, in seconds a step, as sense.Split has it.
type Split struct {
	Data      float64 `json:"data,omitempty"`
	Compute   float64 `json:"compute,omitempty"`
	Exposed   float64 `json:"exposed,omitempty"`
	Optimizer float64 `json:"optimizer,omitempty"`
}

// Noise is the gradient noise scale in samples with the band that holds it in 80 of 100 cases, or
// why it is not known.
type Noise struct {
	Scale *setting.Band `json:"scale,omitempty"` // nil = it is not known
	// Above is whether the estimate was above Scale.High, beyond which a scale cannot be told.
	Above bool   `json:"above,omitempty"`
	Why   string `json:"why,omitempty"`
}

// Data is what the program has stated of its data.
type Data struct {
	Samples uint64 `json:"samples"` // of an epoch
	First   uint64 `json:"first"`   // the batch that the program states
	From    uint64 `json:"from,omitempty"`
	To      uint64 `json:"to,omitempty"` // of the range of batches that it opens; 0 = none
}

// Host is a host and the ranks of its workers.
type Host struct {
	Name  string `json:"name"`
	Ranks []int  `json:"ranks"`
}

// Machine is how busy the machine of a host was.
type Machine struct {
	Host string `json:"host"`
	// Levels says how close the network, the memory, the disk and the processors were to their
	// limits at the end of the row, with a digit from 0 to 4 each, and "-" where it is not known.
	Levels string        `json:"levels"`
	Usage  machine.Usage `json:"usage"`
}

// maxWhy is how many bytes of the reason for an unknown noise scale are kept.
const maxWhy = 120

// NewNoise returns what a row has of an estimate.
func NewNoise(e noise.Estimate) *Noise {
	if !e.Known {
		return &Noise{Why: e.Why[:min(len(e.Why), maxWhy)]}
	}
	b := setting.Band{Low: round(e.Scale.Low), Mid: round(e.Scale.Mid), High: round(e.Scale.High)}
	for _, x := range [...]float64{b.Low, b.Mid, b.High} {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return &Noise{Why: "it is no number"}
		}
	}
	return &Noise{Scale: &b, Above: e.Above}
}

// NewMachines returns what a row has of the machines of a job.
func NewMachines(list []machine.Host) (out []Machine) {
	for _, m := range list {
		out = append(out, Machine{m.Name, m.Levels.String(), m.Usage})
	}
	return out
}

// round returns a number with five digits, which are enough, and shorter in a file.
func round(x float64) float64 {
	y, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 5, 64), 64)
	return y
}

// Encode returns a row as a line with its end; nil if a number in it is none.
func (r *Row) Encode() []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if e.Encode(r) != nil {
		return nil
	}
	return b.Bytes()
}

// Made returns how many optimizer steps a row is of, after the row before it; nil = that is not
// known, and so of rounds of several lengths only as many steps as their samples make.
func (r *Row) Made(before *Row) uint64 {
	if r.Round <= 1 {
		return r.Steps
	}
	most := r.Steps * min(uint64(r.Round), maxCount/r.Steps) // sums do not overflow
	if before != nil && before.Step+r.Steps == r.Step {
		was := before.OptimizerSteps
		if was == 0 && before.Round <= 1 {
			was = before.Step
		}
		if was > 0 && r.OptimizerSteps >= was+r.Steps && r.OptimizerSteps <= was+most {
			return r.OptimizerSteps - was
		}
	}
	if r.Batch == 0 || r.Samples == 0 {
		return most
	}
	return min(max((r.Samples+r.Batch-1)/r.Batch, r.Steps), most)
}

const (
	// MaxLine is how many bytes a line has at most that is read.
	MaxLine = 4 << 20
	// maxSize is how many members a row has at most that is read.
	maxSize = 1 << 20
	// maxCount is up to which number steps and samples are read, so that sums do not overflow.
	maxCount = 1 << 53
	// maxSeconds is up to how many seconds are read.
	maxSeconds = 1e12
)

// Parse reads a line. Keys that it does not know are of a newer version, and ignored. An error says
// what in it cannot be.
func Parse(line []byte) (r Row, err error) {
	if len(line) > MaxLine {
		return Row{}, fmt.Errorf("a line of %d bytes, the limit is %d", len(line), MaxLine)
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Row{}, fmt.Errorf("it is no JSON object of this format: %w", err)
	}
	if err := r.validate(); err != nil {
		return Row{}, err
	}
	return r, nil
}

// validate returns what in a row that was read cannot be; nil = nothing.
func (r *Row) validate() error {
	switch {
	case r.Steps < 1 || r.Steps > r.Step || r.Step > maxCount:
		return fmt.Errorf("%d steps up to step %d", r.Steps, r.Step)
	case r.Size < 1 || r.Size > maxSize:
		return fmt.Errorf("%d members", r.Size)
	case r.OptimizerSteps > maxCount || r.Batch > maxCount || r.Samples > maxCount ||
		r.Gradients > maxCount:
		return fmt.Errorf("a count above %d", maxCount)
	case len(r.Slack) != 0 && len(r.Slack) != r.Size:
		return fmt.Errorf("the slack of %d of %d members", len(r.Slack), r.Size)
	}
	times := append([]float64{r.Span}, r.Slack...)
	if q := r.Seconds; q != nil {
		if !(0 < q.P10 && q.P10 <= q.Median && q.Median <= q.P90) {
			return fmt.Errorf("steps of %v, %v and %v seconds", q.P10, q.Median, q.P90)
		}
		times = append(times, q.P90)
	}
	if s := r.Split; s != nil {
		times = append(times, s.Data, s.Compute, s.Exposed, s.Optimizer)
	}
	for _, x := range times {
		if !(x >= 0 && x <= maxSeconds) {
			return fmt.Errorf("a time of %v seconds", x)
		}
	}
	if n := r.Noise; n != nil && n.Scale != nil {
		if b := n.Scale; !(0 < b.Low && b.Low <= b.Mid && b.Mid <= b.High && b.High <= maxCount) {
			return fmt.Errorf("a noise scale of %v", b)
		}
	}
	for _, m := range r.Machines {
		if !m.Usage.Valid() {
			return fmt.Errorf("a machine of host %q that cannot be: %+v", m.Host, m.Usage)
		}
	}
	if !(r.Cable >= 0 && r.Cable <= 1e15) {
		return fmt.Errorf("a cable of %v bytes a second", r.Cable)
	}
	if d := r.Data; d != nil && (d.Samples > maxCount || d.First > maxCount || d.To > maxCount ||
		d.From > d.To) {
		return fmt.Errorf("data of %d samples, batch %d, range %d–%d", d.Samples, d.First, d.From,
			d.To)
	}
	return validateHosts(r.Hosts, r.Size)
}

// validateHosts returns what in the hosts of so many members cannot be; nil = nothing.
func validateHosts(hosts []Host, size int) error {
	if hosts == nil {
		return nil
	}
	seen, count := make([]bool, size), 0
	for _, h := range hosts {
		for _, rank := range h.Ranks {
			if rank < 0 || rank >= size || seen[rank] {
				return fmt.Errorf("rank %d of %d members on host %q", rank, size, h.Name)
			}
			seen[rank] = true
			count++
		}
		if len(h.Ranks) == 0 {
			return fmt.Errorf("host %q without members", h.Name)
		}
	}
	if count != size {
		return fmt.Errorf("the hosts of %d of %d members", count, size)
	}
	return nil
}
