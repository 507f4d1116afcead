package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestBenchRefusesFlags checks what is said of flags that cannot be.
func TestBenchRefusesFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-n 0":              "-n 0: the number of processes must be from 1 to",
		"-n 1025":           "-n 1025",
		"--dtype f8":        `--dtype "f8": choose one of f32, f64, i32, i64`,
		"--bytes 4KiB,nine": `"nine" is no size`,
		"--bytes 6": "6 is not a whole number of f32 elements: use a multiple of 4 " +
			"bytes",
		"--bytes 0":             "0 is not a whole number",
		"--bytes 4 --dtype i64": "use a multiple of 8 bytes",
		"--bytes ,":             `"" is no size`,
		"now":                   "takes no arguments",
	} {
		cmd := newBenchAllReduceCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("shoal bench allreduce %s: error %v, want one with %q", args, err, want)
		}
	}
}

// TestBenchCommandOfARank checks the command line that a rank gets.
func TestBenchCommandOfARank(t *testing.T) {
	o := benchOptions{n: 2, dtype: "f64", python: "python3", foreign: true, shared: true}
	got, err := o.workerCommand([]int64{8, 4096})
	want := []string{"python3", "-m", "shoal.bench", "--dtype", "f64", "--foreign", "--shared", "8",
		"4096"}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("command: %v\n%s", err, diff)
	}
}

// TestBenchPayloadCatchesErrors checks that a result that is wrong in one element, or that is right
// but a block too early, is not verified.
func TestBenchPayloadCatchesErrors(t *testing.T) {
	for _, n := range []int{1, 1000, poolSize, poolSize + 1, 3*poolSize - 7} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { checkPayload(t, n) })
	}
}

// checkPayload fails the test unless a payload of n elements accepts the right sum, and refuses one
// that is wrong in an element or lies in the wrong place. It runs on the goroutine of the test.
func checkPayload(t *testing.T, n int) {
	const ranks = 3
	sum, x := make([]float32, n), make([]float32, n)
	var p *payload[float32]
	for rank := range ranks {
		p = newPayload[float32](ranks)
		p.fill(x, rank)
		for i, v := range x {
			sum[i] += v
		}
	}
	if !p.holdsSum(sum) {
		t.Fatal("the right sum is refused")
	}
	for _, at := range []int{0, n / 2, n - 1} {
		sum[at]++
		if p.holdsSum(sum) {
			t.Errorf("a wrong element at %d passes", at)
		}
		sum[at]--
	}
	if n > poolSize {
		copy(sum, sum[1<<12:])
		if p.holdsSum(sum) {
			t.Error("blocks 4096 elements too early pass")
		}
	}
	p.fill(x, 0)
	if p.holdsSum(sum) {
		t.Error("the result of the call before passes")
	}
}

// TestCallCounts checks the bounds of the number of calls.
func TestCallCounts(t *testing.T) {
	for _, c := range []struct {
		bytes, us    int64
		warm, counts int
	}{
		{4, 1, 53, 500}, {1 << 20, 1000, 53, 500}, {1 << 20, 10000, 53, 200}, {16 << 20, 1, 6, 31},
		{1 << 30, 1e6, 3, 8},
	} {
		warm, counts := callCounts(c.bytes, time.Duration(c.us)*time.Microsecond)
		if warm != c.warm || counts != c.counts {
			t.Errorf("callCounts(%d, %d µs) = %d, %d, want %d, %d", c.bytes, c.us, warm, counts,
				c.warm, c.counts)
		}
	}
}

// TestBenchPrinter checks the table, and the objects with --json.
func TestBenchPrinter(t *testing.T) {
	o := benchOptions{n: 2, dtype: "f32", python: "python3"}
	line := newBenchLine(o,
		map[string]float64{"bytes": 4096, "iterations": 500, "median_us": 20.48, "p99_us": 31,
			"verified": 1})

	var out bytes.Buffer
	if err := (&benchPrinter{out: &out, json: true}).printLine(line); err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"n": 2.0, "bytes": 4096.0, "dtype": "f32", "client": "python",
		"memory": "arena", "iterations": 500.0,
		"median_us": 20.48, "p99_us": 31.0, "algbw_GBps": 0.2, "verified": true}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("--json: (-want +got)\n%s", diff)
	}

	out.Reset()
	table := &benchPrinter{out: &out}
	line.Verified, line.Shared = false, true
	for range 2 {
		if err := table.printLine(line); err != nil {
			t.Fatal(err)
		}
	}
	rows := strings.Split(out.String(), "\n")
	if len(rows) != 6 ||
		!strings.Contains(rows[0],
			"2 processes, client python, buffers in arena memory, one shared result") ||
		strings.Join(strings.Fields(rows[3]), " ") != "4 KiB 20.5 µs 31.0 µs 0.20 GB/s 500 NO" {
		t.Errorf("table:\n%s", out.String())
	}
}
