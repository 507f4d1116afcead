package spp_test

import (
	"bufio"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/decide/planner/spp"
)

// instance is a problem with links that are all alike, as scripts/plan-milp.py reads it.
type instance struct {
	Seconds []float64 `json:"seconds"`
	Out     []float64 `json:"out"`
	Params  []float64 `json:"params"`
	Devices int       `json:"devices"`
	Stages  int       `json:"stages"`
	Micro   int       `json:"micro"`
}

// problem returns an instance as Partition takes it.
func (x *instance) problem() *spp.Problem {
	p := &spp.Problem{Seconds: x.Seconds, Devices: x.Devices, Micro: x.Micro}
	p.Transfer = func(layer, a, b, c int) float64 {
		return x.Out[layer-1] / float64(min(b-a, c-b))
	}
	p.Tail = func(i, j, a, b int) float64 {
		sum := 0.0
		for _, s := range x.Params[i:j] {
			sum += s
		}
		return sum * float64(b-a-1) / float64(b-a)
	}
	return p
}

// TestMILP compares plans with those of an integer programme, which PLAN_MILP, a Python with SciPy,
// solves.
func TestMILP(t *testing.T) {
	python := os.Getenv("PLAN_MILP")
	if python == "" {
		t.Skip("PLAN_MILP names no Python with SciPy; make plan-oracles sets it")
	}
	if err := exec.Command(python, "-c", "from scipy.optimize import milp").Run(); err != nil {
		t.Skipf("%s has no scipy.optimize.milp, which the package python3-scipy has: %v", python,
			err)
	}
	const cases = 240
	random := rand.New(rand.NewPCG(6, 6))
	var all []instance
	var text strings.Builder
	for range cases {
		x := instance{Devices: 1 + random.IntN(6), Micro: 1 + random.IntN(8)}
		x.Stages = 1 + random.IntN(min(4, x.Devices))
		slow, heavy := float64(random.IntN(3)), float64(random.IntN(30))
		for range x.Stages + random.IntN(6) {
			x.Seconds = append(x.Seconds, float64(random.IntN(20)))
			x.Out = append(x.Out, math.Round(slow*10*random.Float64()))
			x.Params = append(x.Params, math.Round(heavy*random.Float64()))
		}
		line, err := json.Marshal(x)
		if err != nil {
			t.Fatal(err)
		}
		text.Write(line)
		text.WriteByte('\n')
		all = append(all, x)
	}
	cmd := exec.Command(python, "../../../scripts/plan-milp.py")
	cmd.Stdin, cmd.Stderr = strings.NewReader(text.String()), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(strings.NewReader(string(out)))
	for i := range all {
		var want *float64
		if !lines.Scan() {
			t.Fatalf("%d of %d instances were solved", i, cases)
		}
		if err := json.Unmarshal(lines.Bytes(), &want); err != nil {
			t.Fatal(err)
		}
		got := spp.Partition(all[i].problem(), all[i].Stages, math.Inf(1))
		if (got == nil) != (want == nil) {
			t.Errorf("%+v: %+v, and the programme has %v", all[i], got, want)
		} else if got != nil {
			if g := got.Guarantee(all[i].Micro); math.Abs(g-*want) > 1e-5*(1+*want) {
				t.Errorf("%+v: %+v guarantees %v, and the programme has %v", all[i], got, g, *want)
			}
		}
	}
	t.Logf("%d instances", cases)
}
