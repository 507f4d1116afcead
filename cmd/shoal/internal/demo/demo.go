// Package demo has shoal demo: a job that trains on the digits, loses a worker and gains one, and
// shows what happens.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/examples/digits"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
)

// shoal demo, and one worker of it: a process of its own runs Work. The goroutine of the command
// runs what is here; the launcher and the story have others, on which the functions that they are
// given run.

// demoSteps is the default number of steps. It takes a few seconds on two cores, so that one sees
// it train.
const demoSteps = 3000

// demoFlags are the flags of shoal demo. One goroutine uses them, that of the command; run and
// train block until the jobs end.
type demoFlags struct {
	workers int    // at the start
	steps   int    // of the whole training
	python  string // interpreter; "" = the worker in Go
	json    bool   // whether to print JSON objects
}

// NewCommand returns the command shoal demo.
func NewCommand() *cobra.Command {
	var f demoFlags
	cmd := &cobra.Command{
		Use: "demo",
		Short: "Train on real data on this machine, lose a worker, gain two, slow one down, and " +
			"watch",
		Long: cli.Help(`Train a small network on 1,797 handwritten digits on this machine, lose a worker, and gain two.
Then one becomes three times slower, and shoal moves its work to the others by itself. At the end
the demo says whether a step or a sample was lost or counted twice, and whether what shoal had
predicted of that change came true.

Data and workers are part of this program: nothing is downloaded, and no Python is needed. With
--python the NumPy example and then the PyTorch example train the same network, and none is slow.`, cli.ExitCodes, "install"),
		Example: `  shoal demo
  shoal demo -n 2 --json
  shoal demo --python=/usr/bin/python3`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RefuseEmpty(cmd.Flags(), "python"); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&f.workers, "workers", "n", 4, "number of worker processes")
	flags.IntVar(&f.steps, "steps", demoSteps, "training steps, each with 128 images")
	flags.StringVar(&f.python, "python", "",
		"train with NumPy and PyTorch; --python=PATH names the interpreter")
	flags.Lookup("python").NoOptDefVal = "python3"
	flags.BoolVar(&f.json, "json", false,
		"print one JSON object a second, and a last one with the result")
	cmd.AddCommand(newDemoWorkerCommand())
	return cmd
}

// run checks the flags, and then trains with each kind of worker, one after the other.
func (f *demoFlags) run(ctx context.Context, out io.Writer) error {
	if f.workers < 1 || f.workers > job.MaxWorkers {
		return cli.Usagef("-n %d: the number of workers must be from 1 to %d", f.workers,
			job.MaxWorkers)
	}
	if f.steps < 1 {
		return cli.Usagef("--steps %d: the demo takes at least 1 step", f.steps)
	}
	workers, err := f.workerKinds(ctx)
	if err != nil {
		return err
	}
	for _, w := range workers {
		if err := f.train(ctx, w, newDemoView(out, f, w.name)); err != nil {
			return err
		}
	}
	return nil
}

// demoWorker is a program that trains on the digits, with the number of steps as its last argument.
// It can lose and gain workers, and reports what came of it.
type demoWorker struct {
	name    string            // go, numpy or torch
	command []string          // without the number of steps
	env     map[string]string // variables beside those of this process; nil = none
	// canBeSlow is whether a signal makes a worker slow, as slowSignal says.
	canBeSlow bool
}

// workerKinds returns the programs to train with: this one, or with --python those in Python, whose
// files it writes. With --python it runs the interpreter, and waits for it.
func (f *demoFlags) workerKinds(ctx context.Context) ([]demoWorker, error) {
	if f.python != "" {
		return pythonWorkers(ctx, f.python)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program's own file: %w", err)
	}
	return []demoWorker{{name: "go", command: []string{self, "demo", "worker"},
		canBeSlow: true}}, nil
}

// train runs one job until it ends, while other goroutines print its progress to view, and make it
// lose and gain workers. It waits for these goroutines. The launcher calls its functions from
// several goroutines at once.
func (f *demoFlags) train(ctx context.Context, w demoWorker, view *demoView) error {
	beside := group.New(ctx)
	beside.Go("progress", view.run)
	story := &demoStory{workers: f.workers, steps: f.steps, tell: view.printAbove,
		slows: w.canBeSlow, joins: map[int]time.Duration{}}
	auto := job.AutoOff
	if w.canBeSlow {
		auto = job.AutoAct
	}
	result, err := launcher.Run(ctx, launcher.RunConfig{
		Spec: job.Spec{Name: "demo-" + w.name, Workers: f.workers,
			Command: append(w.command, strconv.Itoa(f.steps)), Env: w.env, Auto: auto},
		Stdout: io.Discard, // the logs in the run's directory have it
		Stderr: view,
		Kill:   cli.SecondSignal(ctx),
		OnStart: func(_, dir string) {
			view.setStarted(dir, time.Now())
			beside.Go("story", func(ctx context.Context) error { return story.play(ctx, dir) })
		},
		OnJoin: func(worker int, _ string) {
			if worker < f.workers {
				view.setJoined(time.Now())
			}
		},
		OnEvent: func(e agent.Event) {
			if e.Change != nil {
				story.addChange(*e.Change)
			}
		},
		OnReport: func(worker int, metrics map[string]float64) {
			if _, progress := metrics["loss"]; progress {
				view.setProgress(metrics, time.Now())
			} else {
				story.addReport(worker, metrics)
				view.setSize(metrics)
			}
		},
	})
	beside.Stop(nil)
	if went := beside.Wait(); err == nil {
		err = went
	}
	if err != nil {
		view.endLine()
		return err
	}
	return view.printOutcome(result.Seconds, story.outcome())
}

// newDemoWorkerCommand returns the hidden command that shoal demo starts as a worker.
func newDemoWorkerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "worker STEPS",
		Short:  "One worker of the demo (started by shoal demo)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			steps, err := strconv.Atoi(args[0])
			if err != nil {
				return cli.Usagef("STEPS is %q, not a whole number", args[0])
			}
			return Work(cmd.Context(), steps, cmd.OutOrStdout())
		},
	}
}

// Work trains on the digits as one worker of the demo, for so many steps, in the process of that
// worker: it joins the job, blocks until the training ends, and leaves the job. It prints its
// progress to out. It becomes slow when slowSignal comes.
func Work(ctx context.Context, steps int, out io.Writer) (err error) {
	signals, beside := make(chan os.Signal, 1), group.New(ctx)
	signal.Notify(signals, slowSignal)
	defer signal.Stop(signals)
	held := pace{}
	beside.Go("slow", func(ctx context.Context) error { return held.slowDown(ctx, signals) })
	defer func() {
		beside.Stop(nil)
		err = errors.Join(err, beside.Wait())
	}()
	j, err := client.Join(ctx)
	if err != nil {
		return err
	}
	config := digits.Default()
	config.Steps, config.Computed = steps, held.sleepToPace
	config.Audit = &digits.Audit{Changed: func(c digits.Change) error {
		return j.Report(map[string]float64{"step": float64(c.Step), "workers": float64(c.Size),
			"generation": float64(c.Generation),
			"at_us":      float64(c.At.UnixMicro()), "pace_us": float64(c.Pace.Microseconds())})
	}}
	_, err = digits.Train[float32](ctx, j, config, func(p digits.Progress) error {
		fmt.Fprintf(out, "step %d  loss %.4f  accuracy %.1f %%\n", p.Step, p.Loss, 100*p.Accuracy)
		return j.Report(p.Metrics())
	})
	if err != nil {
		return err // a worker that fails does not say that it leaves
	}
	found := config.Audit.Findings()
	if found.Made == 0 {
		return j.Close()
	}
	err = j.Report(map[string]float64{"step": float64(found.Step),
		"samples_lost": float64(found.Lost), "samples_repeated": float64(found.Repeated),
		"samples_handed_on": float64(found.HandedOn), "steps_lost": float64(found.StepsLost),
		"steps_unequal": float64(found.Unequal), "digest": float64(found.Digest)})
	return errors.Join(err, j.Close())
}
