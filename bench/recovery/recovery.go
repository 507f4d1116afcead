package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/job"
)

// recoveryOptions are the flags of the program. One goroutine uses them, that of the command; no
// method changes them.
type recoveryOptions struct {
	n        int    // number of workers that lose one
	kills    int    // number of workers to kill
	resizes  int    // number of times to go up and down by a worker
	joins    int    // number of losses and arrivals with much state
	spares   int    // number of workers that wait
	gradient string // size of the gradient
	state    string // size of much state
	client   string // go, numpy or torch
	python   string // interpreter
	json     bool   // whether to print JSON objects
}

// smallState is the state of the jobs that are not about state, in bytes.
const smallState = 4 << 10

// newCommand returns the command of the program.
func newCommand() *cobra.Command {
	var o recoveryOptions
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how a job takes the loss and the arrival of workers",
		Long: `Measure what it costs a job that trains on this machine to lose a worker and to gain one.

One job trains all the time. Again and again one of its workers is killed with SIGKILL at a random moment, and a new one is
ordered in its place. A second job goes from 2 workers to 3 and back. A third is like the first, but each of its workers
has --state of parameters. What the slowest worker needs beyond its usual steps counts.

With --spares the jobs keep workers waiting, and one of these takes the place of one that is killed, with no order: each is killed
when one waits.

The workers are in Go, or with --client in Python: with NumPy, or with a model in PyTorch whose parameters and Adam state are
--state, so that its gradient is a third of that.`,
		Example: `  go run ./bench/recovery
  go run ./bench/recovery --client torch --kills 0 --resizes 0 --joins 7
  go run ./bench/recovery --client torch --kills 0 --resizes 0 --spares 1
  go run ./bench/recovery --kills 20 --joins 0 --json`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.n < 2 || o.n >= job.MaxWorkers {
				return cli.Usagef("-n %d: a job that can lose a worker and gain one has 2 to %d",
					o.n, job.MaxWorkers-1)
			}
			if least := min(o.kills, o.resizes, o.joins, o.spares); least < 0 {
				return cli.Usagef("--kills, --resizes, --joins and --spares take 0 or more, not %d",
					least)
			}
			if o.kills+o.resizes+o.joins == 0 {
				return cli.Usagef("--kills, --resizes and --joins are all 0: nothing is measured")
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&o.n, "workers", "n", 4, "number of workers that lose one")
	flags.IntVar(&o.kills, "kills", 200, "workers to kill")
	flags.IntVar(&o.resizes, "resizes", 100, "times to go from 2 workers to 3 and back")
	flags.IntVar(&o.joins, "joins", 5, "losses and arrivals in a job with much state")
	flags.IntVar(&o.spares, "spares", 0,
		"`workers` more that wait to replace those that are killed")
	flags.StringVar(&o.gradient, "gradient", "1MiB", "`size` of the gradient")
	flags.StringVar(&o.state, "state", "1GiB", "`size` of that state")
	flags.StringVar(&o.client, "client", "go", "go, numpy or torch")
	flags.StringVar(&o.python, "python", "python3", "`interpreter` for numpy and torch")
	flags.BoolVar(&o.json, "json", false, "print one JSON object a row")
	return cmd
}

// run measures with one job after the other, and prints the rows to out. It blocks until all jobs
// have ended.
func (o recoveryOptions) run(ctx context.Context, out, stderr io.Writer) error {
	gradient, err := cli.ParseBytes(o.gradient)
	if err != nil || gradient < 4 {
		return cli.Usagef("--gradient: %s is no size of a gradient", o.gradient)
	}
	state, err := cli.ParseBytes(o.state)
	if err != nil {
		return cli.Usagef("--state: %v", err)
	}
	worker, err := o.workerProgram(ctx)
	if err != nil {
		return err
	}
	replace := killAndReplace
	if o.spares > 0 {
		replace = killBesideSpare
	}
	show := recoveryPrinter{out: out, json: o.json}
	for _, part := range []struct {
		times, workers int
		state          int64
		play           func(ctx context.Context, b *recoveryJob, times int) ([]*recoveryRow, error)
	}{{o.kills, o.n, smallState, replace}, {o.resizes, 2, smallState, resizeUpAndDown},
		{o.joins, o.n, state, replace}} {
		if part.times == 0 {
			continue
		}
		b := newRecoveryJob(worker, part.workers, o.spares, gradient, part.state)
		rows, err := b.run(ctx, stderr, func(ctx context.Context) ([]*recoveryRow, error) {
			return part.play(ctx, b, part.times)
		})
		for _, r := range rows { // what is measured counts, however hard it is to end the job
			err = errors.Join(err, show.printRow(r))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// workerProgram returns the program that trains. It takes the elements of the gradient and the
// bytes of the state as its last arguments.
func (o recoveryOptions) workerProgram(ctx context.Context) (program, error) {
	switch o.client {
	case "go":
		self, err := os.Executable()
		if err != nil {
			return program{}, fmt.Errorf("finding this program's own file: %w", err)
		}
		return program{command: []string{self, "worker"}}, nil
	case "numpy", "torch":
		env := cli.PythonEnv()
		return program{command: []string{o.python, "-m", "shoal.bench_recovery", o.client},
			env: env}, cli.CheckPython(ctx, o.python, env, "shoal", o.client)
	}
	return program{}, cli.Usagef("--client %s: it is go, numpy or torch", o.client)
}

// program is what the workers of a measured job run.
type program struct {
	command []string
	env     map[string]string
}

// killAndReplace kills a member and orders a new one, so many times, and returns what a loss costs
// and what the new worker needs. It runs on the goroutine of play, as the two below.
func killAndReplace(ctx context.Context, b *recoveryJob, times int) ([]*recoveryRow, error) {
	recover, known := b.newRow("kill to next commit, beyond a step"),
		b.newRow("  until the loss is known")
	begin, join, pause := b.newRow("order to begin of first step of a new one"),
		b.newRow("  to its end"),
		b.newRow("  what the others wait, beyond 2 steps")
	for range times {
		start, err := b.killMember(ctx)
		if err != nil {
			return nil, err
		}
		changes, err := b.awaitChange(ctx, b.workers-1)
		if err != nil {
			return nil, err
		}
		recover.add(longest(changes, func(c change) time.Duration {
			return c.at.Sub(start) - c.pace
		}))
		known.add(b.lastDecision().Sub(start))
		order, changes, err := b.resize(ctx, b.workers)
		if err != nil {
			return nil, err
		}
		begin.add(longest(changes, func(c change) time.Duration { return c.beganAfter(order) }))
		join.add(longest(changes, func(c change) time.Duration { return c.at.Sub(order) }))
		pause.add(longest(changes, change.pause))
	}
	return []*recoveryRow{recover, known, begin, join, pause}, nil
}

// killBesideSpare kills a member while a spare waits to take the place, so many times, and returns
// what that costs. It runs on the goroutine on which recoveryJob.run calls play, and waits for the
// job.
func killBesideSpare(ctx context.Context, b *recoveryJob, times int) ([]*recoveryRow, error) {
	begin, join, known := b.newRow("kill to begin of first step of a spare"),
		b.newRow("  to its end"),
		b.newRow("  until the job has decided on it")
	pause, pace := b.newRow("  what the others wait, beyond 2 steps"), b.newRow("  a usual step")
	for range times {
		if err := b.waitForSpares(ctx); err != nil {
			return nil, err
		}
		start, err := b.killMember(ctx)
		if err != nil {
			return nil, err
		}
		b.generation++ // without the lost one, which no worker sees
		changes, err := b.awaitChange(ctx, b.workers)
		if err != nil {
			return nil, err
		}
		begin.add(longest(changes, func(c change) time.Duration { return c.beganAfter(start) }))
		join.add(longest(changes, func(c change) time.Duration { return c.at.Sub(start) }))
		known.add(b.lastDecision().Sub(start))
		pause.add(longest(changes, change.pause))
		pace.add(longest(changes, func(c change) time.Duration { return c.pace }))
	}
	return []*recoveryRow{begin, join, known, pause, pace}, nil
}

// resizeUpAndDown adds a worker and releases one, so many times, and returns what that costs the
// workers that stay. It runs on the goroutine on which recoveryJob.run calls play, and waits for
// the job.
func resizeUpAndDown(ctx context.Context, b *recoveryJob, times int) ([]*recoveryRow, error) {
	n := b.workers
	up, down := b.newRow(fmt.Sprintf("%d workers become %d, beyond 2 steps", n, n+1)),
		b.newRow(fmt.Sprintf("%d workers become %d, beyond 2 steps", n+1, n))
	for range times {
		_, changes, err := b.resize(ctx, n+1)
		if err != nil {
			return nil, err
		}
		up.add(longest(changes, change.pause))
		if _, changes, err = b.resize(ctx, n); err != nil {
			return nil, err
		}
		down.add(longest(changes, change.pause))
	}
	return []*recoveryRow{up, down}, nil
}

// recoveryRow is a row of the result. add collects, and printRow sets N and the percentiles, both
// on the goroutine that measures.
type recoveryRow struct {
	What  string    `json:"what"`
	State int64     `json:"state_bytes"`
	N     int       `json:"n"`
	P50   float64   `json:"p50_ms"`
	P99   float64   `json:"p99_ms"`
	Max   float64   `json:"max_ms"`
	ms    []float64 // all that was added, in milliseconds
}

// add adds a measured duration; less than 0 counts as 0.
func (r *recoveryRow) add(d time.Duration) { r.ms = append(r.ms, max(cli.Milliseconds(d), 0)) }

// recoveryPrinter writes a table, or one JSON object a row. The goroutine of the command uses it.
type recoveryPrinter struct {
	out  io.Writer
	json bool
	rows int
}

// printRow computes the percentiles of a row and prints it; in a table, the first call prints the
// heads before it. It sorts r.ms, which is not empty.
func (p *recoveryPrinter) printRow(r *recoveryRow) error {
	slices.Sort(r.ms)
	n := len(r.ms)
	r.N, r.P50, r.P99, r.Max = n, r.ms[n/2], r.ms[(99*n+99)/100-1], r.ms[n-1]
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	if p.rows == 0 {
		fmt.Fprintf(p.out, "%-42s %9s %5s %12s %12s %12s\n", "", "state", "n", "p50", "p99", "max")
	}
	p.rows++
	_, err := fmt.Fprintf(p.out, "%-42s %9s %5d %9.1f ms %9.1f ms %9.1f ms\n", r.What,
		cli.FormatBytes(r.State), r.N, r.P50, r.P99, r.Max)
	return err
}
