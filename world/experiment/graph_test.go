package experiment

import (
	"strings"
	"testing"
	"testing/fstest"
)

// No job is slower by heavy-edge than by best fit; pipelines without replicas and single rings are
// numbered so that nothing is to gain, and pipelines of rings gain on hosts that do not hold them.
func TestGraphs(t *testing.T) {
	table, err := graph.Run(&Input{Data: fstest.MapFS{}, Seed: 5})
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range table.Rows {
		nothing := row[0] == "1" || row[1] == "1" || row[3] == "1.000"
		if strings.HasPrefix(row[5], "-") || nothing != (row[6] == "0.0 %") {
			t.Errorf("%v", row)
		}
	}
}
