package steps

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/shoal-ml/shoal/sense/cables"
	"github.com/shoal-ml/shoal/sense/machine"
	"github.com/shoal-ml/shoal/sense/noise"
)

// MaxNote is the number of bytes of a note at most.
const MaxNote = 2 << 10

// Note is what a host tells of the steps since its last note: sums, so that several add up. The
// zero value tells nothing.
type Note struct {
	Generation uint64  `json:"generation"`     // of the members
	Size       int     `json:"size"`           // members of the job
	Deal       uint32  `json:"deal,omitempty"` // as Step.Deal
	Steps      float64 `json:"steps"`

	// What workers tell: Told counts a worker in a step, and the others are sums over these, in
	// seconds.
	Told      float64 `json:"told,omitempty"`
	Data      float64 `json:"data,omitempty"`
	Compute   float64 `json:"compute,omitempty"`
	Optimizer float64 `json:"optimizer,omitempty"`
	// Losses counts the losses that workers have told, and Loss is their sum.
	Losses float64 `json:"losses,omitempty"`
	Loss   float64 `json:"loss,omitempty"`

	// Timed counts the steps in which the waits of all workers here are known, Seconds is the sum
	// of what these took, and Exposed that of the shortest wait of each, in seconds.
	Timed   float64 `json:"timed,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Exposed float64 `json:"exposed,omitempty"`
	// Ranks are the workers here, ascending, and Waits the sums of what each has waited, in
	// seconds; nil = there are too many.
	Ranks []int     `json:"ranks,omitempty"`
	Waits []float64 `json:"waits,omitempty"`

	Noise noise.Sums `json:"noise"`
	// Machine is what the host tells of its machine; nil = nothing new.
	Machine *machine.Note `json:"machine,omitempty"`
	// Links are the newest rates of the links to other hosts; nil = nothing new.
	Links cables.Rates `json:"links,omitempty"`
}

// Encode returns a note as bytes, at most MaxNote of them: without the waits of workers where they
// do not fit, some hundred of them, and then without the rates of links. A note with a sum that is
// not finite tells nothing.
func (n Note) Encode() []byte {
	n = clone(n)
	for i, w := range n.Waits { // five digits are enough, and shorter
		n.Waits[i], _ = strconv.ParseFloat(strconv.FormatFloat(w, 'g', 5, 64), 64)
	}
	b, err := json.Marshal(n)
	if len(b) > MaxNote {
		n.Ranks, n.Waits = nil, nil
		b, err = json.Marshal(n)
	}
	if len(b) > MaxNote {
		n.Links = nil
		b, err = json.Marshal(n)
	}
	if err != nil {
		return []byte("{}")
	}
	return b
}

// Parse reads a note of another host. An error says what in it cannot be.
func Parse(b []byte) (n Note, err error) {
	if len(b) > MaxNote {
		return Note{}, fmt.Errorf("steps: a note of %d bytes, the limit is %d", len(b), MaxNote)
	}
	if err := json.Unmarshal(b, &n); err != nil {
		return Note{}, fmt.Errorf("steps: a note that cannot be read: %w", err)
	}
	for _, x := range n.numbers()[1:] { // the sum of losses can be any number
		if !(*x >= 0 && *x < 1e12) {
			return Note{}, fmt.Errorf("steps: a note with the sum %v", *x)
		}
	}
	if n.Machine != nil && !n.Machine.Valid() {
		return Note{}, fmt.Errorf("steps: a note of a machine that cannot be: %+v", *n.Machine)
	}
	if len(n.Ranks) != len(n.Waits) || !(math.Abs(n.Loss) < 1e40) ||
		!n.Noise.Valid() || !n.Links.Valid() {
		return Note{}, fmt.Errorf("steps: a note that contradicts itself")
	}
	for i, r := range n.Ranks {
		if r < 0 || r >= n.Size || i > 0 && r <= n.Ranks[i-1] {
			return Note{}, fmt.Errorf("steps: a note of %d members with rank %d", n.Size, r)
		}
	}
	return n, nil
}

// numbers returns pointers to all sums in n but those of the noise: Loss first, and those by worker
// last, for loops over them.
func (n *Note) numbers() []*float64 {
	list := []*float64{&n.Loss, &n.Steps, &n.Told, &n.Data, &n.Compute, &n.Optimizer, &n.Losses,
		&n.Timed, &n.Seconds, &n.Exposed}
	for i := range n.Waits {
		list = append(list, &n.Waits[i])
	}
	return list
}

// clone returns a copy of a note with lists of its own.
func clone(n Note) Note {
	n.Ranks, n.Waits = slices.Clone(n.Ranks), slices.Clone(n.Waits)
	return n
}
