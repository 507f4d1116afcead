package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
)

// stepsOptions are the flags of the program. One goroutine uses them, that of the command; no
// method changes them.
type stepsOptions struct {
	n     int           // number of workers
	bytes string        // sizes of the gradient
	work  time.Duration // for which each worker computes before a call
	json  bool          // whether to print JSON objects
}

// newCommand returns the command of the program.
func newCommand() *cobra.Command {
	var o stepsOptions
	cmd := &cobra.Command{
		Use:   "steps",
		Short: "Measure what it costs while nothing happens that a job can lose workers",
		Long: `Measure what it costs, while nothing happens, that a job can lose workers and gain some.

The workers of a job take turns in two calls: one commits a step, for which samples are dealt, whose inputs are kept until all
have the result and after which the members may change; and one is the same all-reduce of the same memory and no part of a step, as in
a job that takes none. So whatever else the machine does hits both, and where the memory happens to lie, which changes such a call
by up to a fifth, is the same too. Without --work the steps do nothing else, and the share is the largest.`,
		Example: `  go run ./bench/steps
  go run ./bench/steps --work 5ms
  go run ./bench/steps -n 2 --bytes 1MiB --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.n < 1 || o.n > job.MaxWorkers {
				return cli.Usagef("-n %d: the number of processes must be from 1 to %d", o.n,
					job.MaxWorkers)
			}
			sizes, err := cli.ParseSizes(o.bytes, "f32", 4)
			if err != nil {
				return err
			}
			if o.work < 0 {
				return cli.Usagef("--work %s: a time of 0 or more, such as 5ms", o.work)
			}
			return o.run(cmd.Context(), sizes, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&o.n, "workers", "n", 4, "number of processes")
	flags.StringVar(&o.bytes, "bytes", "64KiB,1MiB,16MiB,64MiB",
		"`sizes` of the gradient: whole numbers of B, KiB, MiB, GiB, kB, MB or GB")
	flags.DurationVar(&o.work, "work", 0,
		"`time` for which each worker computes before its gradient is ready")
	flags.BoolVar(&o.json, "json", false, "print one JSON object a size")
	return cmd
}

// run runs a job whose workers make both kinds of call in turn, and prints what rank 0 reports to
// out. It blocks until the job has ended. A goroutine of the launcher prints.
func (o stepsOptions) run(ctx context.Context, sizes []int64, out, stderr io.Writer) (err error) {
	dir, err := os.MkdirTemp("", "shoal-bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program's own file: %w", err)
	}
	command := []string{self, "worker", "--work", o.work.String()}
	for _, bytes := range sizes {
		command = append(command, strconv.FormatInt(bytes, 10))
	}
	show := stepsPrinter{out: out, json: o.json}
	var printing error
	_, err = launcher.Run(ctx, launcher.RunConfig{
		Spec: job.Spec{Name: "bench", Workers: o.n, Command: command},
		Dir:  dir, Stdout: stderr, Stderr: stderr, Kill: cli.SecondSignal(ctx),
		// rank 0 alone reports
		OnReport: func(_ int, m map[string]float64) {
			printing = errors.Join(printing, show.printRow(m))
		},
	})
	return errors.Join(err, printing)
}

// stepsRow is the outcome of one size, and with --json one line of the output. The cost is the
// median difference of two calls that followed each other, as a share of the median call without
// steps, with the bounds of its 95 % confidence interval.
type stepsRow struct {
	Bytes   int64   `json:"bytes"`        // of the gradient
	Pairs   int     `json:"pairs"`        // number of pairs of calls
	PlainUS float64 `json:"plain_us"`     // µs, the median without steps
	StepsUS float64 `json:"steps_us"`     // µs, the median with steps
	Cost    float64 `json:"cost_percent"` // percent
	Low     float64 `json:"cost_low"`     // percent
	High    float64 `json:"cost_high"`    // percent
}

// stepsPrinter writes a table, or one JSON object a row. One goroutine at a time uses it.
type stepsPrinter struct {
	out  io.Writer
	json bool
	rows int
}

// printRow prints a row from the metrics of a report; in a table, the first call prints the heads
// before it.
func (p *stepsPrinter) printRow(m map[string]float64) error {
	r := stepsRow{int64(m["bytes"]), int(m["pairs"]), m["plain_us"], m["steps_us"], m["cost"],
		m["low"], m["high"]}
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	if p.rows == 0 {
		fmt.Fprintf(p.out, "%10s %7s %14s %14s %9s   %s\n", "gradient", "pairs", "without steps",
			"with", "cost", "95 % confidence")
	}
	p.rows++
	line := fmt.Sprintf("%10s %7d %11.1f us %11.1f us %7.2f %%   %.2f .. %.2f %%",
		cli.FormatBytes(r.Bytes), r.Pairs, r.PlainUS, r.StepsUS, r.Cost, r.Low, r.High)
	_, err := fmt.Fprintln(p.out, strings.TrimRight(line, " "))
	return err
}
