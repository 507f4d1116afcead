package experiment

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/fstest"
)

// Jobs arrive as those of a trace do, which tells milliseconds, and work for seconds.
func TestWorksArriveAsInTheTrace(t *testing.T) {
	text, arrivals := "submission_time,duration,num_gpu\n", []int64{}
	for i := range 400 {
		text += fmt.Sprintf("%d,60,1\n", 600*i)
		arrivals = append(arrivals, int64(600*i))
	}
	table, err := runWorks(&Input{Data: fstest.MapFS{traceOf(7): {Data: []byte(text)}}, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if want := predictionErrors(arrivals, 0.3, 1); !slices.Equal(table.Rows[1], want) {
		t.Errorf("%v, want %v", table.Rows[1], want)
	}
}

// Where a kind says all, the forest and the median come near what varies within a kind, the last
// work is off by the root of two of it, and the median of all jobs by what kinds differ in.
func TestWorksAreOffByWhatVaries(t *testing.T) {
	arrivals := make([]int64, 1500)
	for i := range arrivals {
		arrivals[i] = int64(i) * 600
	}
	for _, seed := range []uint64{1, 2, 3} {
		row := predictionErrors(arrivals, 0.3, seed)
		for i, c := range []struct{ least, most float64 }{{0.3, 0.55}, {0.29, 0.45}, {0.37, 0.5},
			{0.9, 2.5}} {
			x, err := strconv.ParseFloat(row[i+1], 64)
			if err != nil || x < c.least || x > c.most {
				t.Errorf("seed %d, column %d: %v (%v)", seed, i+1, row, err)
			}
		}
	}
}
