package main

import (
	"math"
	"strings"
	"testing"
)

// The same seeds give the same tables, with a line for each predictor, with and without late
// binding, and one for work that stays equal.
func TestSameTables(t *testing.T) {
	m := measurement{seed: 3, seeds: 1, seconds: 20, ahead: 1}
	var first, again strings.Builder
	for _, out := range []*strings.Builder{&first, &again} {
		if err := m.run(out); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != again.String() {
		t.Errorf("%s\nand then\n%s", first.String(), again.String())
	}
	want := len(disturbances) * (1 + 2*len(predictors))
	if n := strings.Count(first.String(), "±"); n != 2*want {
		t.Errorf("%d lines in\n%s", n/2, first.String())
	}
}

// Flags of which no measurement can come are refused, and so are arguments.
func TestWrongFlagsAreRefused(t *testing.T) {
	right := measurement{seed: 3, seeds: 1, seconds: 20, ahead: 1}
	if err := right.check(nil); err != nil {
		t.Error(err)
	}
	wrong := map[string]measurement{"-seeds -1": right, "-seconds NaN": right, "-ahead -3": right}
	for name, m := range wrong {
		switch name {
		case "-seeds -1":
			m.seeds = -1
		case "-seconds NaN":
			m.seconds = math.NaN()
		default:
			m.ahead = -3
		}
		if err := m.check(nil); err == nil || !strings.HasPrefix(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := right.check([]string{"more"}); err == nil {
		t.Error("an argument is taken")
	}
}
