package experiment

import (
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

// In no market are jobs worse off by prices than with fair division, and all conditions hold.
func TestMarkets(t *testing.T) {
	table, err := market.Run(&Input{Data: fstest.MapFS{}, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table.Rows {
		residual, err := strconv.ParseFloat(row[3], 64)
		if err != nil || residual > 1e-6 || strings.HasPrefix(row[5], "-") {
			t.Errorf("%v: %v", row, err)
		}
	}
}
