package predict_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/sense/predict"
)

// newLast returns a predictor that says what was last.
func newLast() predict.Predictor { return &predict.Last{} }

// The levels are those of Lube, with a dash for what is not measured, or not a number.
func TestLevels(t *testing.T) {
	d := predict.NewDetector(1, newLast)
	if got := d.Levels().String(); got != "----" {
		t.Errorf("before the first sample: %q", got)
	}
	for want, use := range map[string]predict.Use{
		"0123": {0.49, 0.5, 0.7, 0.85},
		"4404": {0.95, 1, -1, 7},
		"-0-0": {math.NaN(), 0, math.Inf(1), 0.2},
	} {
		if d.Add(use); d.Levels().String() != want {
			t.Errorf("%v: levels %q, want %q", use, d.Levels(), want)
		}
	}
}

// A resource is the bottleneck once it has stayed saturated for three samples, and no more as soon
// as it is not, or is not measured. Of two that take turns at being used most, both stay saturated.
func TestLateBinding(t *testing.T) {
	d := predict.NewDetector(3, newLast)
	const none = predict.Resource(-1)
	step := 0
	add := func(disk, cpu float64, want predict.Resource, samples int) {
		t.Helper()
		step++
		d.Add(predict.Use{0.1, 0.2, disk, cpu})
		got, found := d.Bottleneck()
		if found != (want != none) || found && (got.Resource != want || got.Samples != samples ||
			got.Predictor != "last value") {
			t.Errorf("sample %d, disk %v, cpu %v: %+v, %v; want %d for %d samples", step, disk,
				cpu, got, found, want, samples)
		}
	}
	add(0.9, 0.1, none, 0)
	add(0.9, 0.1, none, 0)
	add(0.2, 0.1, none, 0) // it was a spike
	add(0.9, 0.97, none, 0)
	add(0.98, 0.96, none, 0)
	add(0.96, 0.97, predict.CPU, 3)
	add(0.98, 0.97, predict.Disk, 4)
	add(math.NaN(), 0.97, predict.CPU, 5)
	add(0.99, 0.97, predict.CPU, 6)
	add(0.99, 0.97, predict.CPU, 7)
	add(0.99, 0.97, predict.Disk, 3)
	add(0.1, 0.8, none, 0)
}

// With every predictor, a resource that begins to be used up is the bottleneck in the end, and one
// that is half used never is.
func TestBottleneckByEveryPredictor(t *testing.T) {
	for k, p := range everyKind() {
		rng := rand.New(rand.NewPCG(8, uint64(k)))
		d := predict.NewDetector(4, func() predict.Predictor { return everyKind()[k] })
		for i := range 400 {
			cpu := 0.3
			if i >= 200 {
				cpu = 0.96
			}
			noise := 0.02 * rng.NormFloat64()
			d.Add(predict.Use{0.5 + noise, math.NaN(), 0.5 - noise, cpu + noise})
			got, found := d.Bottleneck()
			if found && (i < 200 || got.Resource != predict.CPU) || i == 399 && !found {
				t.Errorf("%s, sample %d: %+v, %v", p.Name(), i, got, found)
				break
			}
		}
	}
}

// When one resource is used up in bursts of a few samples, and then for good, a detector that binds
// late is never wrong about the bursts and finds the end; one that does not is wrong each time.
func TestLateBindingAblation(t *testing.T) {
	early, late := predict.NewDetector(1, newLast), predict.NewDetector(8, newLast)
	wrong, lateWrong := 0, 0
	for i := range 200 {
		disk := 0.2
		if i%20 < 5 || i >= 160 {
			disk = 0.99
		}
		for _, d := range []*predict.Detector{early, late} {
			d.Add(predict.Use{0, 0, disk, 0.3})
			_, found := d.Bottleneck()
			switch {
			case found && i < 160 && d == early:
				wrong++
			case found && i < 160:
				lateWrong++
			case !found && i == 199:
				t.Errorf("a resource that is used up for 40 samples is not found")
			}
		}
	}
	if wrong != 40 || lateWrong != 0 {
		t.Errorf("wrong in %d samples without late binding, and in %d with it; want 40 and 0",
			wrong, lateWrong)
	}
}
