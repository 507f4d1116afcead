package main

import (
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
