// Package bench has shoal bench: what users measure of their own machine. The benchmarks of the
// project itself are programs in the folder bench.
package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/launcher"
	"github.com/shoal-ml/shoal/tensor"
)

// shoal bench. The goroutine of the command runs what is here, and waits for the jobs that runBench
// runs; the launcher calls what it is given for reports on others.

// defaultBenchSizes is the default of --bytes.
const defaultBenchSizes = "4KiB,64KiB,1MiB,16MiB,64MiB,256MiB"

// benchDTypes are the element types in which a benchmark can check every element of a sum.
var benchDTypes = []string{"f32", "f64", "i32", "i64"}

// benchOptions are the flags of `shoal bench allreduce`. No method changes them.
type benchOptions struct {
	n       int    // number of processes
	bytes   string // sizes of the tensor, with commas between them
	dtype   string // element type, one of benchDTypes
	python  string // interpreter; "" = the Go client
	foreign bool   // whether the buffers lie outside the arena
	shared  bool   // whether all processes have one result
	json    bool   // whether to print JSON objects
}

// NewCommand returns the command shoal bench.
func NewCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure this machine",
		Long:  cli.Help(`Measure what shoal does on this machine.`, cli.ExitCodes, "train"),
		Example: `  shoal bench allreduce
  shoal bench allreduce -n 4
  shoal bench allreduce --python`,
		Args: cobra.ArbitraryArgs,
		RunE: cli.RunGroup,
	}
	cmd.AddCommand(newBenchAllReduceCommand(), newBenchWorkerCommand())
	return cmd
}

// newBenchAllReduceCommand returns the command shoal bench allreduce.
func newBenchAllReduceCommand() *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "allreduce",
		Short: "Measure the all-reduce of N processes on this machine",
		Long: cli.Help(`Measure the time of a sum all-reduce of N processes on this machine, for each size.
The buffers get new random data before each call, and every element of the result is checked.

A call takes as long as on its slowest rank. The number of calls follows from size and speed.`, cli.ExitCodes, "train"),
		Example: `  shoal bench allreduce
  shoal bench allreduce -n 4 --bytes 4KiB,1MiB,256MiB
  shoal bench allreduce --python --bytes 4096 --json
  shoal bench allreduce --python=/usr/bin/python3`,
		Args: cli.NoArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cli.RefuseEmpty(cmd.Flags(), "python"); err != nil {
				return err
			}
			sizes, err := o.validate()
			if err != nil {
				return err
			}
			return runBench(cmd.Context(), o, sizes, cmd.ErrOrStderr(),
				&benchPrinter{out: cmd.OutOrStdout(), json: o.json})
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVarP(&o.n, "workers", "n", 2, "number of processes")
	flags.StringVar(&o.bytes, "bytes", defaultBenchSizes,
		"`sizes` of the tensor: whole numbers of B, KiB, MiB, GiB, kB, MB or GB")
	flags.StringVar(&o.dtype, "dtype", "f32", "element `type`: "+strings.Join(benchDTypes, ", "))
	flags.StringVar(&o.python, "python", "",
		"measure from Python: the `interpreter`, which needs NumPy and the package shoal")
	flags.Lookup("python").NoOptDefVal = "python3"
	flags.BoolVar(&o.foreign, "foreign", false,
		"buffers in the process's own memory, copied in and out, instead of the arena")
	flags.BoolVar(&o.shared, "shared", false, "the result in memory that all processes map and "+
		"only the agent writes, instead of in place")
	flags.BoolVar(&o.json, "json", false, "print one JSON object a size")
	return cmd
}

// validate checks the flags and returns the sizes in bytes.
func (o benchOptions) validate() ([]int64, error) {
	if o.n < 1 || o.n > job.MaxWorkers {
		return nil, cli.Usagef("-n %d: the number of processes must be from 1 to %d", o.n,
			job.MaxWorkers)
	}
	if !slices.Contains(benchDTypes, o.dtype) {
		return nil, cli.Usagef("--dtype %q: choose one of %s", o.dtype,
			strings.Join(benchDTypes, ", "))
	}
	dtype, err := tensor.ParseDType(o.dtype)
	if err != nil {
		return nil, err
	}
	return cli.ParseSizes(o.bytes, o.dtype, int64(dtype.Size()))
}

// workerCommand returns the command line that every rank runs.
func (o benchOptions) workerCommand(sizes []int64) ([]string, error) {
	command := []string{o.python, "-m", "shoal.bench"}
	if o.python == "" {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program's own file: %w", err)
		}
		command = []string{self, "bench", "allreduce-worker"}
	}
	command = append(command, "--dtype", o.dtype)
	if o.foreign {
		command = append(command, "--foreign")
	}
	if o.shared {
		command = append(command, "--shared")
	}
	for _, bytes := range sizes {
		command = append(command, strconv.FormatInt(bytes, 10))
	}
	return command, nil
}

// runBench runs the workers and blocks until they end; it prints to p what rank 0 reports, as it
// comes, on a goroutine of the launcher. stderr gets what the workers print. The files of the run
// are removed, unless a worker has failed. It fails where a result was wrong or a size is missing.
// The end of ctx stops the workers.
func runBench(ctx context.Context, o benchOptions, sizes []int64, stderr io.Writer,
	p *benchPrinter) error {
	command, err := o.workerCommand(sizes)
	if err != nil {
		return err
	}
	var env map[string]string
	if o.python != "" {
		env = cli.PythonEnv()
		if err := cli.CheckPython(ctx, o.python, env, "shoal", "numpy"); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "shoal-bench-")
	if err != nil {
		return err
	}
	var lines []benchLine
	var printing error
	_, err = launcher.Run(ctx, launcher.RunConfig{
		Spec:   job.Spec{Name: "bench", Workers: o.n, Command: command, Env: env},
		Dir:    dir,
		Stdout: stderr, // the workers have nothing to say; the result stays clean
		Stderr: stderr,
		Kill:   cli.SecondSignal(ctx),
		// rank 0 alone reports, so never two at once
		OnReport: func(_ int, metrics map[string]float64) {
			lines = append(lines, newBenchLine(o, metrics))
			printing = errors.Join(printing, p.printLine(lines[len(lines)-1]))
		},
	})
	if err == nil || ctx.Err() != nil { // the logs are worth keeping only when a worker failed
		err = errors.Join(err, os.RemoveAll(dir))
	}
	if err = errors.Join(err, printing); err != nil {
		return err
	}
	if len(lines) != len(sizes) {
		return fmt.Errorf(
			"the workers measured %d of %d sizes and then ended: the lines above say why",
			len(lines), len(sizes))
	}
	for _, l := range lines {
		if !l.Verified {
			return fmt.Errorf("wrong results at %s: please report this as a bug of shoal, with "+
				"this machine's processor", cli.FormatBytes(l.Bytes))
		}
	}
	return nil
}
