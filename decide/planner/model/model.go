// Package model reads what a planner must know of a model: its layers, a chain in the order in
// which samples go through them, and what each was measured to take. docs/formats/model.md is the
// format. It is pure.
package model

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/internal/strict"
)

const (
	// Version stands in every Model.
	Version = "model/1"
	// MaxBytes bounds what Parse reads.
	MaxBytes = 64 << 20
	// maxLayers bounds the layers, maxPoints the points, maxDegree the ranks that share a layer,
	// and maxNumber seconds, samples, and bytes of all layers together, so that sums and products
	// of them are exact enough.
	maxLayers, maxPoints, maxDegree, maxNumber = 1 << 16, 1 << 12, 1 << 10, 1 << 50
)

// A Model is a chain of layers with what they were measured to take. Nothing changes it after
// Parse, so any goroutine may use it and what is in it.
type Model struct {
	Shoal  string  `json:"shoal"` // always Version
	Name   string  `json:"name"`
	Layers []Layer `json:"layers"` // in the order in which samples go through them
	Points []Point `json:"points"`
	// Edges says which layers take from which, where it is not each from the one before it; none =
	// it is.
	Edges  []Edge `json:"edges,omitempty"`
	Source string `json:"source,omitempty"` // where the numbers come from, for people
}

// A Layer is a part of the model that is on one pipeline stage.
type Layer struct {
	ID     string `json:"id"`
	Kind   string `json:"kind,omitempty"` // for people, such as the name of its class
	Params int64  `json:"params"`         // bytes of its parameters, as gradients are sent
	// State is the bytes of what stays between steps: parameters, gradients, moments.
	State int64 `json:"state"`
	Out   int64 `json:"out"` // bytes of what it gives to the next layer, for a sample
	// Split says what each of several ranks has of it by tensor parallelism. It has an entry for
	// each degree above 1 of which there is a point.
	Split []Split `json:"split,omitempty"`
}

// A Split is what a rank has of a layer that ranks share by tensor parallelism.
type Split struct {
	TP     int   `json:"tp"`     // ranks
	Params int64 `json:"params"` // as of Layer, of one of them
	State  int64 `json:"state"`
}

// A Point is what the layers were measured to take, on devices of one kind with micro-batches of
// one size.
type Point struct {
	Device  string          `json:"device"`            // kind of device, as a cluster names it
	TP      int             `json:"tp,omitempty"`      // ranks that share each layer; 0 = 1
	Micro   int             `json:"micro"`             // samples of a micro-batch
	Threads int             `json:"threads,omitempty"` // threads of a processor
	Spread  float64         `json:"spread,omitempty"`  // by which part measurements differed
	Formula string          `json:"formula,omitempty"` // of what was not measured, for people
	Layers  map[string]Cost `json:"layers"`            // by ID
}

// A Cost is what a layer takes for a micro-batch, in seconds, and what it keeps.
type Cost struct {
	Forward  float64 `json:"forward"`
	Backward float64 `json:"backward"` // to its input and to its parameters
	// ByWeights is the part of Backward that is for the parameters alone: what need not be done
	// before the gradient of the input goes on. nil = not measured.
	ByWeights *float64 `json:"by_weights,omitempty"`
	Update    float64  `json:"update"` // of a step of the optimizer
	Kept      int64    `json:"kept"`   // bytes from the forward to the backward pass
}

// Parse reads a model. An error says what is wrong, with the layer and the point.
func Parse(text []byte) (*Model, error) {
	if len(text) > MaxBytes {
		return nil, fmt.Errorf("model: %d bytes; it takes up to %d", len(text), MaxBytes)
	}
	var m Model
	if err := strict.Document(text, Version, &m); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	if err := m.validate(); err != nil {
		return nil, fmt.Errorf("model %s: %w", m.Name, err)
	}
	return &m, nil
}

// isUnprintable reports whether a terminal may do something else with a letter than show it.
func isUnprintable(r rune) bool { return !unicode.IsPrint(r) }

// validate returns what is wrong with a model; nil = nothing.
func (m *Model) validate() error {
	switch {
	case len(m.Layers) == 0:
		return fmt.Errorf("it has no layers")
	case len(m.Layers) > maxLayers:
		return fmt.Errorf("%d layers; it takes up to %d", len(m.Layers), maxLayers)
	case len(m.Points) == 0:
		return fmt.Errorf("it has no points: nothing was measured")
	}
	index, sums := map[string]int{}, [3]int64{}
	for i, l := range m.Layers {
		if j, twice := index[l.ID]; twice {
			return fmt.Errorf("layers %d and %d are both called %q", j, i, l.ID)
		}
		if l.ID == "" {
			return fmt.Errorf("layer %d has no id", i)
		}
		if strings.ContainsFunc(l.ID, isUnprintable) {
			return fmt.Errorf("layer %d: its id %q has letters that cannot be shown", i, l.ID)
		}
		index[l.ID] = i
		for k, what := range []string{"params", "state", "out"} {
			n := []int64{l.Params, l.State, l.Out}[k]
			if n < 0 || n > maxNumber-sums[k] {
				return fmt.Errorf("layer %s: %s is %d bytes; it is from 0 to 2^50, also with that "+
					"of the layers before", l.ID, what, n)
			}
			sums[k] += n
		}
		if err := l.validateSplit(); err != nil {
			return fmt.Errorf("layer %s: %w", l.ID, err)
		}
	}
	if err := m.validateEdges(index); err != nil {
		return err
	}
	if len(m.Points) > maxPoints {
		return fmt.Errorf("%d points; it takes up to %d", len(m.Points), maxPoints)
	}
	for i, p := range m.Points {
		if strings.ContainsFunc(p.Formula, isUnprintable) {
			return fmt.Errorf("point %d: its formula %q has letters that cannot be shown", i,
				p.Formula)
		}
		if err := p.validate(m, index); err != nil {
			return fmt.Errorf("point %d (%s, tp %d, micro %d): %w", i, p.Device, p.Degree(),
				p.Micro, err)
		}
		for j, q := range m.Points[:i] {
			if q.Device == p.Device && q.Degree() == p.Degree() && q.Micro == p.Micro {
				return fmt.Errorf("points %d and %d are both of %s, tp %d and micro %d", j, i,
					p.Device, p.Degree(), p.Micro)
			}
		}
	}
	return nil
}

// validateSplit returns what is wrong with what ranks have of a layer; nil = nothing.
func (l *Layer) validateSplit() error {
	for i, s := range l.Split {
		switch {
		case s.TP < 2 || s.TP > maxDegree:
			return fmt.Errorf("split: a degree of %d; it is from 2 to %d", s.TP, maxDegree)
		case s.Params < 0 || s.Params > l.Params || s.State < 0 || s.State > l.State:
			return fmt.Errorf("split over %d ranks: %d bytes of parameters and %d of state for "+
				"each; the whole layer has %d and %d", s.TP, s.Params, s.State, l.Params, l.State)
		case slices.ContainsFunc(l.Split[:i], func(t Split) bool { return t.TP == s.TP }):
			return fmt.Errorf("split over %d ranks comes twice", s.TP)
		}
	}
	return nil
}

// Rank returns the bytes of parameters and of state of one of so many ranks that share a layer.
// Where the model does not say it, each rank has all of the layer.
func (l *Layer) Rank(tp int) (params, state int64) {
	for _, s := range l.Split {
		if s.TP == tp {
			return s.Params, s.State
		}
	}
	return l.Params, l.State
}

// validate returns what is wrong with a point of a model, whose layers are given by ID.
func (p *Point) validate(m *Model, index map[string]int) error {
	switch {
	case p.Device == "":
		return fmt.Errorf("it does not say of which device it is")
	case p.Micro < 1 || p.Micro > 1<<30:
		return fmt.Errorf("a micro-batch has from 1 to 2^30 samples")
	case p.TP < 0 || p.TP > maxDegree:
		return fmt.Errorf("%d ranks share its layers; they are from 1 to %d", p.TP, maxDegree)
	case !(p.Spread >= 0 && p.Spread <= 10):
		return fmt.Errorf("a spread of %v; it is a part, from 0 to 10", p.Spread)
	}
	for id := range p.Layers {
		if _, is := index[id]; !is {
			ids := make([]string, 0, len(m.Layers))
			for _, l := range m.Layers {
				ids = append(ids, l.ID)
			}
			return fmt.Errorf("the model has no layer %q%s", id, spelling.Meant(id, ids))
		}
	}
	kept := int64(0)
	for _, l := range m.Layers {
		c, is := p.Layers[l.ID]
		if !is {
			return fmt.Errorf("layer %s was not measured", l.ID)
		}
		if p.TP > 1 && !slices.ContainsFunc(l.Split, func(s Split) bool { return s.TP == p.TP }) {
			return fmt.Errorf("layer %s has no split over %d ranks, which says what each of them "+
				"has of it", l.ID, p.TP)
		}
		for what, s := range map[string]float64{"forward": c.Forward, "backward": c.Backward,
			"update": c.Update} {
			if !(s >= 0 && s <= maxNumber) { // NaN is neither
				return fmt.Errorf("layer %s: %s takes %v seconds", l.ID, what, s)
			}
		}
		if w := c.ByWeights; w != nil && !(*w >= 0 && *w <= c.Backward) {
			return fmt.Errorf("layer %s: by_weights is %v of the %v seconds of backward", l.ID, *w,
				c.Backward)
		}
		if c.Kept < 0 || c.Kept > maxNumber-kept {
			return fmt.Errorf("layer %s keeps %d bytes; it is from 0 to 2^50, also with what the "+
				"layers before it keep", l.ID, c.Kept)
		}
		kept += c.Kept
	}
	return nil
}

// Degree returns how many ranks share each layer.
func (p *Point) Degree() int { return max(p.TP, 1) }

// Point returns what was measured on a kind of device with layers that so many ranks share, and
// with a micro-batch; nil = nothing.
func (m *Model) Point(device string, tp, micro int) *Point {
	i := slices.IndexFunc(m.Points, func(p Point) bool {
		return p.Device == device && p.Degree() == tp && p.Micro == micro
	})
	if i < 0 {
		return nil
	}
	return &m.Points[i]
}

// Micros returns the sizes of micro-batches that were measured on a kind of device with layers that
// so many ranks share, ascending.
func (m *Model) Micros(device string, tp int) (list []int) {
	for _, p := range m.Points {
		if p.Device == device && p.Degree() == tp {
			list = append(list, p.Micro)
		}
	}
	slices.Sort(list)
	return list
}

// Degrees returns how many ranks shared layers where something was measured on a kind of device,
// ascending.
func (m *Model) Degrees(device string) (list []int) {
	for _, p := range m.Points {
		if p.Device == device {
			list = append(list, p.Degree())
		}
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// Devices returns the kinds of devices on which something was measured, by name.
func (m *Model) Devices() (list []string) {
	for _, p := range m.Points {
		list = append(list, p.Device)
	}
	slices.Sort(list)
	return slices.Compact(list)
}
