package trace

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Curve is the measured speed of a model with a batch, by the number of GPUs. ReadCurves makes it;
// later nothing changes it, so any goroutine may call its methods.
type Curve struct {
	Model  string
	Batch  int       // samples of a step, over all GPUs
	Sizes  []int     // numbers of GPUs that were measured, ascending; at least one
	Speeds []float64 // steps a second on so many; above 0
}

// mostSize is the largest number of GPUs of a curve.
const mostSize = 1 << 20

// ReadCurves reads the table of speeds of a model, a line for each batch and a column for each
// number of GPUs. Cells where nothing was measured are left out, and so are lines without any
// speed. It fails for a file that is no such table, and, where that is asked for, for one with a
// defect.
func ReadCurves(model string, r io.Reader, strict bool) ([]Curve, []Finding, error) {
	t, err := readTable(r)
	if err != nil {
		return nil, nil, err
	}
	batch := t.column("global_batch_size")
	if batch < 0 {
		return nil, nil, t.missingColumn("global_batch_size")
	}
	sizes := make([]int, len(t.head))
	order := []int{}
	for i, name := range t.head {
		if i == batch {
			continue
		}
		n, err := strconv.Atoi(name)
		if err != nil || n < 1 || n > mostSize || slices.Contains(sizes[:i], n) {
			return nil, nil, fmt.Errorf("line 1: column %q is no number of GPUs, or there twice",
				name)
		}
		sizes[i] = n
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int) int { return sizes[a] - sizes[b] })
	var curves []Curve
	for _, row := range t.rows {
		curve, rule := t.parseCurve(row, model, batch, order, sizes)
		if rule != "" {
			t.found.add(rule, row.line)
		} else if len(curve.Sizes) > 0 {
			curves = append(curves, curve)
		}
	}
	found, err := t.found.list(strict)
	if err != nil {
		return nil, nil, err
	}
	if len(curves) == 0 {
		return nil, nil, fmt.Errorf("it has no line with a batch and a speed%s", whyNone(found))
	}
	return curves, found, nil
}

// parseCurve returns the curve of a row, or the rule by which it is left out. order has the columns
// with speeds, by their sizes.
func (t *table) parseCurve(row row, model string, batch int,
	order, sizes []int) (c Curve, rule Rule) {
	samples, rule := number(row.cells[batch], 1<<40)
	if rule != "" {
		return c, rule
	}
	c = Curve{Model: model, Batch: int(samples)}
	for _, i := range order {
		text := strings.ToLower(strings.TrimSpace(row.cells[i]))
		if text == "" || text == "nan" {
			t.found.add(NotMeasured, row.line)
			continue
		}
		speed, rule := number(text, mostCount)
		switch {
		case rule != "":
			return c, rule
		case speed == 0:
			t.found.add(NotMeasured, row.line)
			continue
		}
		if n := len(c.Speeds); n > 0 && speed < c.Speeds[n-1] {
			t.found.add(Falls, row.line)
		}
		c.Sizes, c.Speeds = append(c.Sizes, sizes[i]), append(c.Speeds, speed)
	}
	return c, ""
}

// At returns the steps a second on so many GPUs. Between sizes that were measured it interpolates
// in the logarithm of the size; beyond them it knows nothing.
func (c *Curve) At(gpus int) (speed float64, known bool) {
	i, exact := slices.BinarySearch(c.Sizes, gpus)
	switch {
	case exact:
		return c.Speeds[i], true
	case i == 0 || i == len(c.Sizes):
		return 0, false
	}
	low, high := c.Sizes[i-1], c.Sizes[i]
	part := portable.Log2(float64(gpus)/float64(low)) / portable.Log2(float64(high)/float64(low))
	return c.Speeds[i-1] + float64(part*(c.Speeds[i]-c.Speeds[i-1])), true
}
