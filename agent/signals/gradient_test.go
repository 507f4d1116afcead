package signals

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/tensor"
)

// Only what a step averages is taken for its gradient: no losses, no running means, no sums of what
// is compressed, no calls aside of the step.
func TestIsGradient(t *testing.T) {
	for name, change := range map[string]func(c *collective.Call){
		"":             func(*collective.Call) {},
		"far":          func(c *collective.Call) { c.In, c.Far = nil, &collective.Far{In: 64} },
		"last part":    func(c *collective.Call) { c.More, c.Step = false, true },
		"no step":      func(c *collective.Call) { c.More = false },
		"no gradient":  func(c *collective.Call) { c.Tag = arena.NoGradient },
		"sum":          func(c *collective.Call) { c.Reduction = collective.Sum },
		"integers":     func(c *collective.Call) { c.DType = tensor.I32 },
		"short":        func(c *collective.Call) { c.In = c.In[:252] },
		"other member": func(c *collective.Call) { c.Kind = collective.Reduce },
	} {
		c := collective.Call{Kind: collective.AllReduce, DType: tensor.F32, Weight: 8,
			Reduction: collective.Mean, In: make([]byte, 256),
			Flags: collective.Flags{More: true}}
		change(&c)
		want := name == "" || name == "far" || name == "last part"
		if isGradient(&c) != want {
			t.Errorf("%q: taken for a gradient is %v", name, !want)
		}
	}
}
