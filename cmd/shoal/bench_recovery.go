package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/api"
	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/node"
)

// recoveryOptions are the flags of `shoal bench recovery`.
type recoveryOptions struct {
	n        int
	kills    int
	resizes  int
	joins    int
	gradient string
	state    string
	json     bool
}

func newBenchRecoveryCommand() *cobra.Command {
	var o recoveryOptions
	cmd := &cobra.Command{
		Use:   "recovery",
		Short: "Measure how a job takes the loss and the arrival of workers",
		Long: `Measure what it costs a job that trains on this machine to lose a worker and to gain one.

One job trains all the time. Again and again one of its workers is killed with SIGKILL at a random moment, and a new one is
ordered in its place. A second job goes from 2 workers to 3 and back. The workers of a third one, with --state of
parameters, get company. A change costs what the slowest worker needs beyond its usual steps.`,
		Example: `  shoal bench recovery
  shoal bench recovery --kills 20 --joins 0 --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.n < 2 || o.n >= job.MaxWorkers {
				return usageError("-n %d: a job that can lose a worker and gain one has 2 to %d", o.n, job.MaxWorkers-1)
			}
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&o.n, "workers", "n", 4, "number of workers that lose one")
	flags.IntVar(&o.kills, "kills", 200, "workers to kill")
	flags.IntVar(&o.resizes, "resizes", 100, "times to go from 2 workers to 3 and back")
	flags.IntVar(&o.joins, "joins", 5, "workers that join a job with much state")
	flags.StringVar(&o.gradient, "gradient", "1MiB", "size of the gradient")
	flags.StringVar(&o.state, "state", "1GiB", "state of the job that --joins is about")
	flags.BoolVar(&o.json, "json", false, "print one JSON object a row")
	return cmd
}

func (o recoveryOptions) run(ctx context.Context, out, stderr io.Writer) error {
	gradient, err := parseBytes(o.gradient)
	if err != nil || gradient < 4 {
		return usageError("--gradient: %s is no size of a gradient", o.gradient)
	}
	state, err := parseBytes(o.state)
	if err != nil {
		return usageError("--state: %v", err)
	}
	show := recoveryPrinter{out: out, json: o.json}
	for _, part := range []struct {
		times, workers int
		state          int64
		play           func(context.Context, *recoveryJob) ([]recoveryRow, error)
	}{{o.kills, o.n, 4 << 10, o.kill}, {o.resizes, 2, 4 << 10, o.resize}, {o.joins, 3, state, o.join}} {
		if part.times == 0 {
			continue
		}
		rows, err := runRecovery(ctx, part.workers, gradient, part.state, stderr, part.play)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if err := show.print(r); err != nil {
				return err
			}
		}
	}
	return nil
}

// kill measures losses, and what the worker that replaces a lost one needs.
func (o recoveryOptions) kill(ctx context.Context, b *recoveryJob) ([]recoveryRow, error) {
	recover, known := recoveryRow{What: "kill to next commit, beyond a step"}, recoveryRow{What: "  of it, until the loss is known"}
	join, pause := recoveryRow{What: "order to first step of the new"}, recoveryRow{What: "  what the others waited"}
	for range o.kills {
		if err := wait(ctx, rand.N(20*time.Millisecond)); err != nil {
			return nil, err
		}
		if err := b.job.Refresh(ctx); err != nil {
			return nil, err
		}
		start, err := killOne(b.job.Workers)
		if err != nil {
			return nil, err
		}
		changes, err := b.changed(ctx, o.n-1)
		if err != nil {
			return nil, err
		}
		recover.add(slowest(changes, func(c change) time.Duration { return c.at.Sub(start) - c.pace }))
		known.add(b.lastEvent().Sub(start))
		order, changes, err := b.resizeTo(ctx, o.n, o.n)
		if err != nil {
			return nil, err
		}
		join.add(slowest(changes, func(c change) time.Duration { return c.at.Sub(order) }))
		pause.add(slowest(changes, change.pause))
	}
	return []recoveryRow{recover, known, join, pause}, nil
}

// resize measures what changes of the size cost the workers that stay.
func (o recoveryOptions) resize(ctx context.Context, b *recoveryJob) ([]recoveryRow, error) {
	up, down := recoveryRow{What: "2 workers become 3"}, recoveryRow{What: "3 workers become 2"}
	for range o.resizes {
		_, changes, err := b.resizeTo(ctx, 3, 3)
		if err != nil {
			return nil, err
		}
		up.add(slowest(changes, change.pause))
		if _, changes, err = b.resizeTo(ctx, 2, 2); err != nil {
			return nil, err
		}
		down.add(slowest(changes, change.pause))
	}
	return []recoveryRow{up, down}, nil
}

// join measures workers that join a job with much state.
func (o recoveryOptions) join(ctx context.Context, b *recoveryJob) ([]recoveryRow, error) {
	join, pause := recoveryRow{What: "order to first step, " + o.state + " of state"}, recoveryRow{What: "  what the others waited"}
	for range o.joins {
		order, changes, err := b.resizeTo(ctx, 4, 4)
		if err != nil {
			return nil, err
		}
		join.add(slowest(changes, func(c change) time.Duration { return c.at.Sub(order) }))
		pause.add(slowest(changes, change.pause))
		if _, _, err := b.resizeTo(ctx, 3, 3); err != nil {
			return nil, err
		}
	}
	return []recoveryRow{join, pause}, nil
}

// change is what a worker reported of a change of the members: when it had made the first step after it, and how long that
// step, the next and a usual one took.
type change struct {
	seat             int
	generation       uint64
	at               time.Time
	took, next, pace time.Duration
	first            bool // this worker's first step
}

// pause is what a change cost a worker that was there before and after.
func (c change) pause() time.Duration {
	if c.first {
		return 0
	}
	return max(c.took-c.pace, 0) + max(c.next-c.pace, 0)
}

func slowest(changes []change, of func(change) time.Duration) (most time.Duration) {
	for _, c := range changes {
		most = max(most, of(c))
	}
	return most
}

// killOne kills one of the members and says when.
func killOne(workers []api.JobWorker) (time.Time, error) {
	members := slices.DeleteFunc(slices.Clone(workers), func(w api.JobWorker) bool { return !w.Running || w.Rank < 0 })
	if len(members) == 0 {
		return time.Time{}, errors.New("the job has no members left")
	}
	w := members[rand.IntN(len(members))]
	now := time.Now()
	if err := syscall.Kill(w.PID, syscall.SIGKILL); err != nil {
		return now, fmt.Errorf("killing worker %d: %w", w.Worker, err)
	}
	return now, nil
}

// recoveryJob is a job whose members change, seen from outside.
type recoveryJob struct {
	job        *control.Job
	generation uint64
	reports    chan change
	events     chan time.Time
	event      time.Time
}

// runRecovery trains while play changes the members, and ends the job when it is done.
func runRecovery(ctx context.Context, n int, gradient, state int64, stderr io.Writer, play func(context.Context, *recoveryJob) ([]recoveryRow, error)) (rows []recoveryRow, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own file: %w", err)
	}
	dir, err := os.MkdirTemp("", "shoal-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b := &recoveryJob{reports: make(chan change, 1024), events: make(chan time.Time, 1024)}
	tool := group.New(ctx)
	_, err = node.Run(tool.Context(), node.RunConfig{
		Spec: job.Spec{Name: "bench", Workers: n, Command: []string{self, "bench", "recovery-worker", strconv.FormatInt(gradient/4, 10), strconv.FormatInt(state, 10)}},
		Dir:  dir, Stdout: stderr, Stderr: quietly{stderr}, Kill: hurry(ctx),
		OnReport: func(seat int, m map[string]float64) { b.reports <- newChange(seat, m) },
		OnEvent: func(e node.Event) {
			if e.Generation > 1 {
				b.events <- time.Now()
			}
		},
		OnStart: func(_, dir string) {
			tool.Go("the measurement", func(ctx context.Context) (err error) {
				if b.job, err = control.Find(ctx, dir); err != nil {
					return err
				}
				if _, err = b.changed(ctx, n); err == nil {
					rows, err = play(ctx, b)
				}
				return errors.Join(err, b.job.Stop(context.WithoutCancel(ctx), err != nil, "shoal bench"))
			})
		},
	})
	tool.Stop(nil)
	return rows, errors.Join(tool.Wait(), err)
}

func newChange(seat int, m map[string]float64) change {
	us := func(name string) time.Duration { return time.Duration(m[name]) * time.Microsecond }
	return change{seat: seat, generation: uint64(m["generation"]), at: time.UnixMicro(int64(m["at_us"])),
		took: us("took_us"), next: us("next_us"), pace: us("pace_us"), first: m["took_us"] == 0}
}

// changed waits until so many workers have told of the next generation.
func (b *recoveryJob) changed(ctx context.Context, workers int) ([]change, error) {
	b.generation++
	var changes []change
	for len(changes) < workers {
		select {
		case c := <-b.reports:
			if c.generation == b.generation {
				changes = append(changes, c)
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return changes, nil
}

// lastEvent is when the launcher last heard that the membership had decided something.
func (b *recoveryJob) lastEvent() time.Time {
	for len(b.events) > 0 {
		b.event = <-b.events
	}
	return b.event
}

func (b *recoveryJob) resizeTo(ctx context.Context, n, reports int) (order time.Time, changes []change, err error) {
	order = time.Now()
	if err = b.job.Resize(ctx, n, "shoal bench"); err == nil {
		changes, err = b.changed(ctx, reports)
	}
	return order, changes, err
}

// recoveryRow is a row of the result.
type recoveryRow struct {
	What string    `json:"what"`
	N    int       `json:"n"`
	P50  float64   `json:"p50_ms"`
	P99  float64   `json:"p99_ms"`
	Max  float64   `json:"max_ms"`
	ms   []float64 // all
}

func (r *recoveryRow) add(d time.Duration) { r.ms = append(r.ms, max(milliseconds(d), 0)) }

// recoveryPrinter writes a table, or one JSON object a row.
type recoveryPrinter struct {
	out  io.Writer
	json bool
	rows int
}

func (p *recoveryPrinter) print(r recoveryRow) error {
	slices.Sort(r.ms)
	n := len(r.ms)
	r.N, r.P50, r.P99, r.Max = n, r.ms[n/2], r.ms[(99*n+99)/100-1], r.ms[n-1]
	if p.json {
		return json.NewEncoder(p.out).Encode(r)
	}
	if p.rows == 0 {
		fmt.Fprintf(p.out, "%-42s %5s %12s %12s %12s\n", "", "n", "p50", "p99", "max")
	}
	p.rows++
	_, err := fmt.Fprintf(p.out, "%-42s %5d %9.1f ms %9.1f ms %9.1f ms\n", r.What, r.N, r.P50, r.P99, r.Max)
	return err
}

// wait lets time pass.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// quietly passes on all but what the launcher notes of the job, a line of which comes with every change.
type quietly struct{ to io.Writer }

func (q quietly) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("shoal: ")) {
		return len(line), nil
	}
	return q.to.Write(line)
}
