package experiment

import (
	"strings"
	"testing"
	"testing/fstest"
)

// What a chain costs is at least the optimum and, for idle replicas that are kept, at most twice
// that; behind its guard the learned scaling stays within two hundredths of the step.
func TestScaleOfATrace(t *testing.T) {
	rows := "timestamp,duration,num_gpus,gpu_time,cluster\n" +
		strings.Repeat("2017-10-09 07:01:55,66.0,1,66.0,a\n", 3) +
		"2017-10-09 08:30:00,66.0,1,66.0,a\n2017-10-09 08:31:00,60.0,1,60.0,a\n"
	in := &Input{Data: fstest.MapFS{"philly/philly.csv.gz": {Data: []byte(rows)}}, Seed: 1}
	table, err := chain.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(chainStarts)*len(chainEach) + 1; len(table.Rows) != n ||
		table.Rows[n-1][0] != "all" {
		t.Fatalf("%d rows: %v", len(table.Rows), table.Rows)
	}
	// Three requests at first and two an hour and a half later, which are 17 slots: three replicas
	// are started, and with the dearest start all the same for the two.
	stages := stagesOf(36, 1)
	needs := append(append([][]int{{3}}, make([][]int, 17)...), []int{2})
	for i := range needs[1:18] {
		needs[i+1] = []int{0}
	}
	keep, step, learned, _, err := scaleStages(stages, needs, 1)
	if err != nil || keep < 1 || keep > 2 || step < 1 || learned > 1.02 {
		t.Errorf("%v, %v and %v times the optimum, %v", keep, step, learned, err)
	}
}
