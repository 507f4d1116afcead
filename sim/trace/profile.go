package trace

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Profile is what was measured of an application: what its steps take by placement and batch, and
// what its gradients are like as it trains. The format is that of the simulator of Pollux (Qiao et
// al., OSDI 2021). ReadPoints and ReadEpochs fill it in; the other methods only read it.
type Profile struct {
	App    string
	Points []Point  // by nodes, GPUs and local batch
	Epochs []Epochs // by batch
}

// Point is what a step takes in one setting.
type Point struct {
	Nodes      int     // hosts that the GPUs are on
	GPUs       int     // at least as many as hosts
	LocalBatch int     // samples of a step on one GPU
	Step       float64 // seconds of a step
	Sync       float64 // seconds of these in which gradients are synchronised
}

// Epochs is what was measured of training with one batch, an entry for each epoch.
type Epochs struct {
	Batch int // samples of a step, over all GPUs
	List  []Epoch
}

// Epoch is what was measured at the end of an epoch.
type Epoch struct {
	Progress float64 // steps with the first batch that would have come as far
	Metric   float64
	Sqr, Var float64 // of the gradient with the first batch: squared norm of the mean; variance
}

// mostLocal is the largest local batch that fits into memory by the source of the profiles, where
// it states one. Larger ones were measured on other machines.
var mostLocal = map[string]int{"yolov3": 8}

// ReadPoints adds the settings of a file of placements, whose column placement has a digit for each
// node, or of one of scalability, with columns num_nodes and num_replicas. It returns what was
// found, and fails as ReadCurves does. After an error nothing is added.
func (p *Profile) ReadPoints(r io.Reader, strict bool) ([]Finding, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, err
	}
	at, err := t.columns("local_bsz", "step_time", "sync_time")
	if err != nil {
		return nil, err
	}
	placement, nodes, gpus := t.column("placement"), t.column("num_nodes"), t.column("num_replicas")
	if placement < 0 && (nodes < 0 || gpus < 0) {
		return nil, t.missingColumn("placement", "num_nodes")
	}
	var points []Point
	for _, row := range t.rows {
		x, rule := numbers(row, at, 1<<40)
		point := Point{LocalBatch: int(x[0]), Step: x[1], Sync: x[2]}
		if rule == "" && placement >= 0 {
			point.Nodes, point.GPUs, rule = parsePlacement(row.cells[placement])
		} else if rule == "" {
			n, why := number(row.cells[nodes], mostGPUs)
			g, whyG := number(row.cells[gpus], mostGPUs)
			point.Nodes, point.GPUs, rule = int(n), int(g), cmp.Or(why, whyG)
		}
		most := mostLocal[p.App]
		switch {
		case rule != "":
		case point.Nodes < 1 || point.GPUs < point.Nodes:
			rule = NoGPUs
		case point.Step == 0 || point.LocalBatch < 1:
			rule = NoTime
		case most > 0 && point.LocalBatch > most:
			rule = BeyondMemory
		}
		if rule != "" {
			t.found.add(rule, row.line)
			continue
		}
		points = append(points, point)
	}
	found, err := t.found.list(strict)
	if err == nil && len(points) == 0 {
		err = fmt.Errorf("it has no setting that was measured%s", whyNone(found))
	}
	if err != nil {
		return nil, err
	}
	p.Points = append(p.Points, points...)
	slices.SortStableFunc(p.Points, func(a, b Point) int {
		return cmp.Or(cmp.Compare(a.Nodes, b.Nodes), cmp.Compare(a.GPUs, b.GPUs),
			cmp.Compare(a.LocalBatch, b.LocalBatch))
	})
	return found, nil
}

// numbers returns the numbers of some columns of a row, and the rule that one of them breaks.
func numbers(row row, at []int, most float64) (list []float64, rule Rule) {
	for _, i := range at {
		x, why := number(row.cells[i], most)
		list, rule = append(list, x), cmp.Or(rule, why)
	}
	return list, rule
}

// parsePlacement returns the nodes and GPUs of a placement, a digit for each node.
func parsePlacement(text string) (nodes, gpus int, rule Rule) {
	text = strings.TrimSpace(text)
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, 0, NoNumber
		}
		if c > '0' {
			nodes, gpus = nodes+1, gpus+int(c-'0')
		}
	}
	return nodes, gpus, ""
}

// ReadEpochs adds what was measured of training with a batch. It returns what was found, and fails
// as ReadCurves does. After an error nothing is added.
func (p *Profile) ReadEpochs(batch int, r io.Reader, strict bool) ([]Finding, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, err
	}
	at, err := t.columns("progress", "metric", "grad_sqr", "grad_var")
	if err != nil {
		return nil, err
	}
	e := Epochs{Batch: batch}
	for _, row := range t.rows {
		x, rule := numbers(row, at, math.MaxFloat64)
		if rule != "" {
			t.found.add(rule, row.line)
			continue
		}
		e.List = append(e.List, Epoch{x[0], x[1], x[2], x[3]})
	}
	if n := len(e.List); n > 1 && e.List[n-1].Metric < e.List[0].Metric {
		t.found.add(LowerIsBetter, 0)
	}
	found, err := t.found.list(strict)
	if err == nil && len(e.List) == 0 {
		err = fmt.Errorf("it has no epoch%s", whyNone(found))
	}
	if err != nil {
		return nil, err
	}
	p.Epochs = append(p.Epochs, e)
	slices.SortStableFunc(p.Epochs, func(a, b Epochs) int { return cmp.Compare(a.Batch, b.Batch) })
	return found, nil
}

// errOutside is that of settings beyond all that were measured.
var errOutside = errors.New("nothing was measured there: settings are interpolated between " +
	"measured ones, and never beyond them")

// StepTime returns the seconds of a step and, of these, of synchronising, with GPUs on some nodes.
// Between measured local batches and numbers of GPUs on as many nodes it interpolates; beyond them
// it fails. More than 16 nodes count as 16. Several placements of as many GPUs on as many nodes
// count as their mean.
func (p *Profile) StepTime(nodes, gpus int, local float64) (step, sync float64, err error) {
	nodes = min(nodes, 16)
	below, above := -1, math.MaxInt
	for _, x := range p.Points {
		if x.Nodes == nodes && x.GPUs <= gpus {
			below = max(below, x.GPUs)
		}
		if x.Nodes == nodes && x.GPUs >= gpus {
			above = min(above, x.GPUs)
		}
	}
	if below < 0 || above == math.MaxInt {
		return 0, 0, errOutside
	}
	stepLow, syncLow, err := p.alongBatch(nodes, below, local)
	if err != nil || above == below {
		return stepLow, syncLow, err
	}
	stepHigh, syncHigh, err := p.alongBatch(nodes, above, local)
	part := float64(gpus-below) / float64(above-below)
	return stepLow + float64(part*(stepHigh-stepLow)), syncLow + float64(part*(syncHigh-syncLow)),
		err
}

// alongBatch returns the seconds of a step, and of these of synchronising, on so many GPUs of some
// nodes, which was measured, with a local batch that need not have been.
func (p *Profile) alongBatch(nodes, gpus int, local float64) (step, sync float64, err error) {
	var low, high Point // the nearest local batches, with the means of all placements
	var lows, highs int
	for _, x := range p.Points {
		if x.Nodes != nodes || x.GPUs != gpus {
			continue
		}
		if b := float64(x.LocalBatch); b <= local {
			if x.LocalBatch > low.LocalBatch {
				low, lows = Point{LocalBatch: x.LocalBatch}, 0
			}
			low.Step, low.Sync, lows = low.Step+x.Step, low.Sync+x.Sync, lows+1
		}
		if b := float64(x.LocalBatch); b >= local {
			if highs == 0 {
				high.LocalBatch = x.LocalBatch
			}
			if x.LocalBatch == high.LocalBatch { // points are sorted by it
				high.Step, high.Sync, highs = high.Step+x.Step, high.Sync+x.Sync, highs+1
			}
		}
	}
	if lows == 0 || highs == 0 {
		return 0, 0, errOutside
	}
	step, sync = low.Step/float64(lows), low.Sync/float64(lows)
	if low.LocalBatch == high.LocalBatch {
		return step, sync, nil
	}
	part := (local - float64(low.LocalBatch)) / float64(high.LocalBatch-low.LocalBatch)
	return step + float64(part*(high.Step/float64(highs)-step)),
		sync + float64(part*(high.Sync/float64(highs)-sync)), nil
}

// At returns what was measured in the epoch in which training came to a progress, or in the last
// one where it never did.
func (e *Epochs) At(progress float64) Epoch {
	i := slices.IndexFunc(e.List, func(x Epoch) bool { return x.Progress >= progress })
	if i < 0 {
		i = len(e.List) - 1
	}
	return e.List[i]
}

// Gain returns how many steps with the first batch a step with a batch counts for, at an epoch that
// was measured with the first batch: (var + sqr) / (var / scale + sqr). scale is the batch over the
// first one.
func (e Epoch) Gain(scale float64) float64 {
	if e.Var+e.Sqr == 0 {
		return 1
	}
	return (e.Var + e.Sqr) / (e.Var/scale + e.Sqr)
}
