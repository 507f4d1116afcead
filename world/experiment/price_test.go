package experiment

import (
	"testing"
	"testing/fstest"
)

// Where slots are few, the jobs that pay most get them, and no more is made of them than the bound
// says. A job can have the sizes of its curve that are worth it, and the one that it asks for.
func TestPricesOfATrace(t *testing.T) {
	rows := "timestamp,duration,num_gpus,gpu_time,cluster\n"
	for range 40 {
		rows += "2017-10-09 07:01:55,36000.0,48,1728000.0,a\n"
	}
	in := &Input{Seed: 1, Data: fstest.MapFS{
		traceOf(priceCluster): {Data: []byte(rows)},
		"elasticflow-throughputs/A100/tiny.csv": {
			Data: []byte("global_batch_size,16,32,64\n64,1,3,2.5\n")},
	}}
	jobs, err := in.Jobs(traceOf(priceCluster), 96)
	if err != nil {
		t.Fatal(err)
	}
	curves, err := in.Curves("elasticflow-throughputs/A100")
	if err != nil {
		t.Fatal(err)
	}
	bids, asked := bidsOf(jobs, curves, 96, 1)
	for i, b := range bids {
		if len(b.Rates) != 3 || b.Rates[0].Slots != 16 || b.Rates[1].Slots != 32 ||
			b.Rates[2].Slots != 48 || asked[i] != 48 {
			t.Fatalf("job %d: %+v", i, b)
		}
		// A step on 32 GPUs takes a third of a second, and is the least in slot-seconds.
		if least := b.Work * 32 / 3; b.Value < least || b.Value > priceSpan*least ||
			b.Due <= b.Arrived || b.Late <= b.Due {
			t.Errorf("job %d: %+v", i, b)
		}
	}
	table, err := prices.Run(in)
	if err != nil {
		t.Fatal(err)
	}
	if len(table.Rows) != 2 || table.Rows[1][2] <= table.Rows[1][3] || table.Rows[1][2] > "1.000" {
		t.Errorf("rows: %v", table.Rows)
	}
	delete(in.Data.(fstest.MapFS), traceOf(priceCluster))
	if _, err := prices.Run(in); err == nil {
		t.Error("there is no trace, and it says nothing")
	}
}
