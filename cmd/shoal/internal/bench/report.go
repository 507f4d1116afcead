package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What shoal bench prints of what rank 0 has reported. newBenchLine is pure.

// benchLine is the outcome of one size, and with --json one line of the output.
type benchLine struct {
	N             int     `json:"n"`                // number of processes
	Bytes         int64   `json:"bytes"`            // size of the tensor
	DType         string  `json:"dtype"`            // element type
	Client        string  `json:"client"`           // go or python
	Memory        string  `json:"memory"`           // arena or foreign
	Shared        bool    `json:"shared,omitempty"` // one result for all processes
	Iterations    int     `json:"iterations"`       // calls that count
	MedianUS      float64 `json:"median_us"`        // µs of a call on its slowest rank
	P99US         float64 `json:"p99_us"`           // µs, the 99th percentile
	BandwidthGBps float64 `json:"algbw_GBps"`       // bytes of the tensor / median, in GB/s
	Verified      bool    `json:"verified"`         // whether every element of every sum was right
}

// newBenchLine returns the line of one size from the flags and from what rank 0 reported.
func newBenchLine(o benchOptions, metrics map[string]float64) benchLine {
	l := benchLine{
		N: o.n, DType: o.dtype, Client: "go", Memory: "arena", Shared: o.shared,
		Bytes: int64(metrics["bytes"]), Iterations: int(metrics["iterations"]),
		MedianUS: metrics["median_us"], P99US: metrics["p99_us"],
		Verified: metrics["verified"] == 1,
	}
	if o.python != "" {
		l.Client = "python"
	}
	if o.foreign {
		l.Memory = "foreign"
	}
	if l.MedianUS > 0 {
		l.BandwidthGBps = float64(l.Bytes) / l.MedianUS / 1e3
	}
	return l
}

// benchPrinter writes lines as they come: a table, or one JSON object a line. One goroutine at a
// time uses it; its methods wait for out.
type benchPrinter struct {
	out  io.Writer
	json bool // whether to write JSON
	rows int  // number of rows that were written
}

// printLine prints one line; in a table, the first call prints the heads before it.
func (p *benchPrinter) printLine(l benchLine) error {
	if p.json {
		return json.NewEncoder(p.out).Encode(l)
	}
	if p.rows == 0 {
		result := ""
		if l.Shared {
			result = ", one shared result"
		}
		fmt.Fprintf(p.out,
			"all-reduce, sum of %s, %d processes, client %s, buffers in %s memory%s\n\n", l.DType,
			l.N, l.Client, l.Memory, result)
		p.printRow("size", "median", "p99", "bandwidth", "calls", "verified")
	}
	p.rows++
	verified := "yes"
	if !l.Verified {
		verified = "NO"
	}
	return p.printRow(cli.FormatBytes(l.Bytes), plural.Seconds(1e-6*l.MedianUS),
		plural.Seconds(1e-6*l.P99US),
		strconv.FormatFloat(l.BandwidthGBps, 'f', 2, 64)+" GB/s", strconv.Itoa(l.Iterations),
		verified)
}

// printRow prints one row of the table. cells are six.
func (p *benchPrinter) printRow(cells ...any) error {
	_, err := fmt.Fprintf(p.out, "%10s %12s %12s %13s %7s  %s\n", cells...)
	return err
}
