package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/rundir"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/watch/follow"
)

// shoal logs, and how commands find a run that may be over. One goroutine runs what is here, that
// of the command, so nothing is locked.

// logsFlags are the flags of shoal logs.
type logsFlags struct {
	follow bool // whether to show what comes, until the job ends
	rank   int  // number of the worker to show, not its rank; -1 = all
	json   bool // whether to print JSON objects
}

// NewLogsCommand returns the command shoal logs.
func NewLogsCommand() *cobra.Command {
	var f logsFlags
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Show the output of the workers of a job that runs or has ended",
		Long: cli.Help(`Show the output of the workers of a job that runs or has ended.
Each line begins with the number of its worker, which the worker keeps for life.

JOB is the name of a running job, else of its newest run, or the directory of a run. Of a job on
several hosts, the host that leads the job has the output of all workers since it leads. Where this
machine has several runs of one job, those that are not shown are named.`, cli.ExitCodes, "troubleshooting"),
		Example: `  shoal logs train
  shoal logs train -f                      follow until the job ends
  shoal logs train --rank 2                one worker, as it wrote it
  shoal logs ~/.local/state/shoal/runs/train-3`,
		Args:              cli.Arguments(1, 1),
		ValidArgsFunction: completeRuns,
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.rank < 0 && cmd.Flags().Changed("rank") {
				return cli.Usagef("--rank %d: workers are numbered from 0", f.rank)
			}
			dir, live, silent, err := f.find(cmd.Context(), args[0], cmd.ErrOrStderr())
			if err != nil {
				return err
			}
			l := &logs{logsFlags: f, dir: dir, out: cmd.OutOrStdout(),
				readers: map[int]*logReader{}}
			if err := l.run(cmd.Context(), live); err != nil || !f.follow {
				return err
			}
			return silent // nothing can be followed
		},
	}
	flags := cmd.Flags()
	flags.BoolVarP(&f.follow, "follow", "f", false,
		"show what comes, until the job ends; where it is led")
	flags.IntVar(&f.rank, "rank", -1,
		"only the output of this worker, without its number before the lines")
	flags.Lookup("rank").DefValue = "all"
	flags.BoolVar(&f.json, "json", false, "print one JSON object a line")
	return cmd
}

// find finds the run to show, as findRun does. Of runs that have parts of one job it takes the one
// with the output of the worker of --rank, and names the others in notes, which have output of it,
// or any without --rank; who gives a path has chosen.
func (f *logsFlags) find(ctx context.Context, name string, notes io.Writer) (dir string,
	live *control.Job, silent, err error) {
	dir, live, silent, err = findRun(ctx, name)
	if err != nil || rundir.IsPath(name) {
		return dir, live, silent, err
	}
	var others []string
	for _, other := range runs.Beside(dir) {
		if workers, err := f.workersIn(other); err == nil && len(workers) > 0 {
			others = append(others, other)
		}
	}
	own, err := f.workersIn(dir)
	if err != nil {
		return "", nil, nil, err
	}
	if f.rank >= 0 && len(own) == 0 && len(others) > 0 {
		newest := others[0]
		others = others[1:]
		if dir, live, silent, err = findRun(ctx, newest); err != nil {
			return "", nil, nil, err
		}
	}
	for _, other := range others {
		fmt.Fprintf(notes, "shoal: note: %s has other output of this job: shoal logs %[1]s\n",
			other)
	}
	return dir, live, silent, nil
}

// findRun finds the directory of a run, and the job if it still runs; live is nil otherwise. It
// asks the launchers of this machine. silent is the error about launchers that do not answer, or do
// not answer for this job, where the run has no result: one of them may have its job, or its own
// lives and cannot be asked from here.
func findRun(ctx context.Context, name string) (dir string, live *control.Job, silent, err error) {
	live, err = findLive(ctx, name)
	var unknown *control.Unknown
	switch {
	case err == nil:
		return live.Dir, live, nil, nil
	case !errors.As(err, &unknown) || len(unknown.Matches) > 1:
		return "", nil, nil, err
	}
	if !rundir.IsPath(name) {
		if dir, err = runs.Newest(name); err != nil {
			if len(unknown.Refused) > 0 || unknown.Silent != nil {
				return "", nil, nil, unknown // it runs, and another host leads it
			}
			return "", nil, nil, notHere(ctx, name, err)
		}
		if dir, err = runOfPooled(ctx, name, dir); err != nil {
			return "", nil, nil, err
		}
	} else if dir, err = filepath.Abs(name); err != nil {
		return "", nil, nil, err
	} else if err := follow.CheckRunDir(dir); err != nil {
		return "", nil, nil, err
	}
	if hasResult(dir) {
		return dir, nil, nil, nil
	}
	switch live, err = control.Find(ctx, dir); {
	case err == nil:
		return dir, live, nil, nil
	case !errors.As(err, &unknown): // it was interrupted, and knows nothing of the launcher
		return "", nil, nil, err
	}
	return dir, nil, follow.WhySilent(dir, unknown), nil
}

// logs shows the output of a run. One goroutine uses it; its methods read files of the run, and
// only run waits for more.
type logs struct {
	logsFlags
	dir     string // directory of the run
	out     io.Writer
	err     error              // the first error of writing to out
	readers map[int]*logReader // by number of the worker
}

// logReader is the output of one worker, as far as it was shown.
type logReader struct {
	tail  tail       // where in its file the next bytes are
	lines proc.Lines // cuts what was read into lines
}

// run shows the output until it has shown all, or with --follow until the job ends. live is nil for
// a job that does not run.
func (l *logs) run(ctx context.Context, live *control.Job) error {
	return cli.Poll(ctx, func() (bool, error) {
		// Asked before the logs are read: what a run that is over has written is all there.
		over := !l.follow || live == nil || hasResult(l.dir) || launcherHasEnded(live)
		if err := l.printNew(); err != nil {
			return false, err
		}
		if over {
			for _, r := range l.readers {
				r.lines.Close()
			}
			if l.rank >= 0 && len(l.readers) == 0 {
				return false, fmt.Errorf("%s has no output of a worker %d; shoal ps JOB lists "+
					"the workers of a running job", l.dir, l.rank)
			}
		}
		return over, l.err
	})
}

// hasResult reports whether a run has ended and said how. It reads a file of the run in dir.
func hasResult(dir string) bool {
	_, err := runs.ReadResult(dir)
	return err == nil
}

// printNew prints to out what the logs hold that was not printed before.
func (l *logs) printNew() error {
	workers, err := l.workersIn(l.dir)
	if err != nil {
		return err
	}
	for _, worker := range workers {
		r := l.readers[worker]
		if r == nil {
			r = &logReader{tail: tail{path: filepath.Join(l.dir, follow.OutputName(worker))},
				lines: proc.Lines{Emit: func(line []byte) {
					l.printLine(worker, line)
				}}}
			l.readers[worker] = r
		}
		err := r.tail.readNew(func(piece []byte) (int, error) {
			if l.rank >= 0 && !l.json {
				return l.out.Write(piece)
			}
			r.lines.Feed(piece, time.Now())
			return len(piece), l.err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// workersIn lists in ascending order the workers that have a log in the directory of a run and that
// --rank selects.
func (f *logsFlags) workersIn(dir string) ([]int, error) {
	list, err := follow.Outputs(dir)
	return slices.DeleteFunc(list, func(worker int) bool {
		return f.rank >= 0 && worker != f.rank
	}), err
}

// printLine prints a line of a worker's output to out. The first error stays in l.err. It does not
// keep line.
func (l *logs) printLine(worker int, line []byte) {
	var err error
	if l.json {
		err = json.NewEncoder(l.out).Encode(struct {
			Worker int    `json:"worker"`
			Line   string `json:"line"`
		}{worker, string(line)})
	} else {
		_, err = fmt.Fprintf(l.out, "[%d] %s\n", worker, line)
	}
	if l.err == nil {
		l.err = err
	}
}
