// Package plan is the command shoal plan: files and printing around decide/planner.
package plan

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/decide/planner"
	"github.com/shoal-ml/shoal/decide/planner/deployment"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/layout"
)

// shoal plan. One goroutine runs what is here, that of the command, so nothing is locked. It reads
// files, and computes for as long as a search takes.

// flags are those of shoal plan.
type flags struct {
	cluster string  // file of the machines; "" = those of job
	job     string  // running job; "" = cluster says the machines
	batch   int     // samples of a step; 0 = as the job has
	workers int     // how many take part; 0 = one at each place
	mesh    string  // the mesh to judge; "" = the best is chosen
	from    string  // file of the last plan, with which the search begins; "" = with none
	out     string  // file that the plan is written to; "" = none
	space   string  // which plans are compared
	work    float64 // about how many seconds of a processor go into the proof
	trace   string  // file that a timeline of the step is written to; "" = none
	json    bool    // whether to print the plan as JSON
}

// spaces are the values of --space.
var spaces = map[string]planner.Space{"mesh": planner.SpaceMesh, "any": planner.SpaceAny}

// NewCommand returns the command shoal plan.
func NewCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "plan MODEL --cluster FILE --batch N | plan MODEL --job JOB | plan zoo",
		Short: "Choose how a model is deployed over machines, with a proof of how good that is",
		Long: cli.Help(`Choose how a model is deployed over machines: how many replicas and pipeline stages, which layers
are on each stage, the samples of a micro-batch, and how many of them each stage holds. The command
says what a step takes, and proves how far this plan is from the best possible one at most.

MODEL is a file with the layers of the model and what each was measured to take
(docs/formats/model.md), or a well-known model by formula, such as zoo:llama-8b, or
zoo:llama-8b@4096 with samples of so many tokens; shoal plan zoo lists those. The file of the
cluster has hosts, devices and links (docs/formats/cluster.md). With --job these are the ones of a
running job, with what it has measured of them. Devices may be of several kinds.`,
			cli.ExitCodes, "plans"),
		Example: `  shoal plan gpt.model.json --cluster cluster.json --batch 96
  shoal plan gpt.model.json --cluster cluster.json --batch 96 --mesh "dp=2,pp=2(9/5;micro=4)"
  shoal plan zoo:llama-8b --cluster cluster.json --batch 1024
  shoal plan gpt.model.json --job gpt -o gpt.deployment.json   for the hosts of a running job
  shoal plan gpt.model.json --job gpt --from old.deployment.json   its hosts have changed
  shoal reshape gpt --plan gpt.deployment.json                 the job follows the plan
  shoal plan check gpt.deployment.json --job gpt               and takes as long as promised?`,
		Args: cli.Arguments(1, 1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "zoo" {
				return printZoo(cmd.OutOrStdout(), cmd.Flags())
			}
			err := cli.RefuseEmpty(cmd.Flags(), "cluster", "job", "mesh", "from", "out", "trace")
			if err != nil {
				return err
			}
			if err := f.validate(cmd.Flags()); err != nil {
				return err
			}
			return f.run(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	set := cmd.Flags()
	set.StringVar(&f.cluster, "cluster", "", "the file with hosts, devices and links")
	set.StringVar(&f.job, "job", "", "plan for the hosts and links of this running job")
	set.IntVar(&f.batch, "batch", 0,
		"samples of a step, over all workers (default with --job: as the job has)")
	set.IntVar(&f.workers, "workers", 0,
		"how many workers take part (default as many as the hosts have places for)")
	set.StringVar(&f.mesh, "mesh", "", "judge this mesh, and choose none")
	set.StringVar(&f.from, "from", "",
		"the last plan, for other machines: say at once what becomes of it, and search on from it")
	set.StringVar(&f.space, "space", "mesh",
		"which plans to compare: mesh, those that shoal.train runs; any, also stages with own "+
			"numbers of replicas")
	set.Float64Var(&f.work, "work", 1,
		"how much work goes into the proof, in about seconds of a processor; 0 = next to none")
	set.StringVarP(&f.out, "out", "o", "", "write the plan to this file, for shoal reshape --plan")
	set.StringVar(&f.trace, "trace", "",
		"write a timeline of the step to this file, for ui.perfetto.dev or chrome://tracing")
	set.BoolVar(&f.json, "json", false, "print the plan as a JSON object")
	cmd.AddCommand(newCheckCommand(), newImportCommand())
	return cmd
}

// checkOutputs fails where a file that is written would replace one that is read, or another that
// is written, and where none can be. model is the file with the model. The last plan may be
// replaced by the next one.
func (f *flags) checkOutputs(model string) error {
	same := cli.RefuseSame([][4]string{{"-o", f.out, "--cluster", f.cluster},
		{"-o", f.out, "the model", model}, {"-o", f.out, "--trace", f.trace},
		{"--trace", f.trace, "--cluster", f.cluster}, {"--trace", f.trace, "the model", model},
		{"--trace", f.trace, "--from", f.from}})
	return cmp.Or(same, cli.CheckOutput("-o", f.out), cli.CheckOutput("--trace", f.trace))
}

// validate fails for flags that say too little, or contradict each other; set knows which of them
// were given.
func (f *flags) validate(set *pflag.FlagSet) error {
	switch {
	case f.cluster == "" && f.job == "":
		return cli.Usagef("say on which machines: --cluster FILE, or --job JOB for those of a " +
			"running job")
	case f.cluster != "" && f.job != "":
		return cli.Usagef("--cluster and --job both say on which machines: give one of them")
	case f.batch < 1 && (f.job == "" || set.Changed("batch")):
		return cli.Usagef("say how many samples a step has: --batch 96")
	case f.workers < 1 && set.Changed("workers"):
		return cli.Usagef("--workers=%d: at least one takes part", f.workers)
	case !(f.work >= 0 && f.work <= deployment.MostWork):
		return cli.Usagef("--work=%v: it is from 0 to %d", f.work, deployment.MostWork)
	case spaces[f.space] == 0 && f.space != "mesh":
		return cli.Usagef("--space=%s: there are mesh and any", f.space)
	case f.mesh != "" && f.space != "mesh":
		return cli.Usagef("--mesh is judged as it is: leave out --space")
	case f.mesh != "" && f.from != "":
		return cli.Usagef("--mesh is judged as it is: leave out --from")
	case f.mesh != "" && set.Changed("work"):
		return cli.Usagef("--mesh is judged as it is, without a search: leave out --work")
	case f.mesh != "" && f.workers > 0:
		return cli.Usagef("--mesh and --workers both say how many workers take part")
	case f.mesh != "":
		_, err := layout.ParseMesh(f.mesh)
		return cli.AsUsage(err)
	}
	return nil
}

// run reads the files, plans, and prints the plan. It fails for files that are none, and where no
// plan can be.
func (f *flags) run(ctx context.Context, out io.Writer, file string) error {
	if err := f.checkOutputs(file); err != nil {
		return err
	}
	clusterText, c, err := f.readMachines(ctx)
	if err != nil {
		return err
	}
	modelText, m, err := readModel(file, c, f.job)
	if err != nil {
		return err
	}
	request := planner.Request{Model: m, Cluster: c, Batch: f.batch, Workers: f.workers,
		Space: spaces[f.space], Work: int(f.work * planner.Second)}
	if request.Work == 0 {
		request.Work = -1
	}
	// keep writes a plan to the file for it, if there is one, and returns its text.
	keep := func(d *deployment.Deployment) ([]byte, error) {
		d.Model, d.Cluster = deployment.Hash(modelText), deployment.Hash(clusterText)
		text, err := json.MarshalIndent(d, "", " ")
		if err != nil {
			return nil, err
		}
		text = append(text, '\n')
		if f.out != "" {
			err = durable.Write(f.out, text)
		}
		return text, err
	}
	if f.from != "" {
		if request.From, err = f.first(out, request, keep); err != nil {
			return err
		}
	}
	var r *planner.Result
	done := cli.ExitOnSignal(ctx) // since nothing, or a whole first plan, is written
	if f.mesh == "" {
		r, err = planner.Solve(request)
	} else {
		r, err = planner.Judge(request, f.mesh)
	}
	if done(); err != nil {
		return err
	}
	text, err := keep(r.Best)
	if err != nil {
		return err
	}
	if f.trace != "" {
		trace, err := r.Timeline.Trace(r.Rows)
		if err != nil {
			return err
		}
		if err := durable.Write(f.trace, trace); err != nil {
			return err
		}
	}
	if f.json {
		_, err = out.Write(text)
		return err
	}
	if err := printPlan(out, r); err != nil {
		return err
	}
	return printAssumed(out, c)
}

// first makes the last plan, in a file, fit for the machines of a request, keeps what that becomes,
// and says so for people. It returns its mesh; "" = no such plan fits.
func (f *flags) first(out io.Writer, r planner.Request,
	keep func(*deployment.Deployment) ([]byte, error)) (mesh string, err error) {
	_, last, err := cli.ReadFile(f.from, deployment.MaxBytes, deployment.Parse)
	if err != nil {
		return "", err
	}
	if last.Mesh == "" {
		return "", cli.Usagef("--from %s: the stages of this plan are no mesh: take one that "+
			"shoal.train runs", f.from)
	}
	text := "none near the last plan fits: all others are looked at"
	if first, err := planner.Repair(r, last.Mesh); err == nil {
		if _, err := keep(first.Best); err != nil {
			return "", err
		}
		mesh = first.Best.Mesh
		text = fmt.Sprintf("%s on %s of %s: %s a step; nothing is proved of it yet", mesh,
			plural.Of(first.Workers, "worker"), first.Devices,
			seconds(first.Best.Predicted.Seconds))
	}
	if !f.json {
		_, err = fmt.Fprintf(out, "first       %s\n", text)
	}
	return mesh, err
}

// printPlan prints a plan for people.
func printPlan(out io.Writer, r *planner.Result) error {
	d, p := r.Best, r.Best.Predicted
	var b strings.Builder
	fmt.Fprintf(&b, "plan        %s on %s of %s\n", describeMesh(d), plural.Of(r.Workers, "worker"),
		r.Devices)
	if d.Runs.WhyNot != "" {
		fmt.Fprintf(&b, "runs        not by shoal.train, because %s\n", d.Runs.WhyNot)
	}
	if d.Hosts != nil {
		fmt.Fprintf(&b, "hosts       ranks fill them in this order: %s\n",
			strings.Join(d.Hosts, ", "))
	}
	fmt.Fprintf(&b, "predicted   %s a step (%s to %s), %s samples/s; stages wait %.1f %%, "+
		"all-reduce %s, update %s\n", seconds(p.Seconds), seconds(p.Low), seconds(p.High),
		plural.Number(float64(d.Batch)/p.Seconds, 4),
		100*p.Bubble, seconds(p.AllReduce), seconds(p.Update))
	if p.Formula != "" {
		fmt.Fprintf(&b, "            by formula, not measured: %s\n", p.Formula)
	}
	if d.Certificate.Bound > 0 {
		fmt.Fprintf(&b, "proved      nothing in this space takes less than %s: gap %.1f %%\n",
			seconds(d.Certificate.Bound), 100*d.Certificate.Gap)
	} else {
		b.WriteString("proved      nothing: each layer takes no time on some kind of device\n")
	}
	for i, step := range d.Certificate.Proof {
		title := "ruled out"
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(&b, "%-11s %s\n", title, stepText(step))
	}
	if g := r.Guarantee; g != nil {
		fmt.Fprintf(&b, "guaranteed  at most (M + 4N - 4)·C + A = (%d + 4·%d - 4)·%s + %s "+
			"= %s\n", g.Micro, g.Stages, seconds(g.Slowest), seconds(g.Tail), seconds(g.Seconds))
	}
	fmt.Fprintf(&b, "memory      %s\n", memoryText(r))
	fmt.Fprintf(&b, "binds       %s\n", r.Binds)
	if len(r.Helps) > 0 {
		fmt.Fprintf(&b, "helps       %s\n", helpText(r.Helps))
	}
	for i, x := range r.Rejected {
		title := "rejected"
		if i > 0 {
			title = ""
		}
		fmt.Fprintf(&b, "%-11s %s: %s (%+.1f %%); %s\n", title, x.Mesh, seconds(x.Seconds),
			100*(x.Seconds/p.Seconds-1), x.Why)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// describeMesh writes the mesh of a plan, or its stages where they are none.
func describeMesh(d *deployment.Deployment) string {
	if d.Mesh != "" {
		return d.Mesh
	}
	list := make([]string, len(d.Stages))
	for i, s := range d.Stages {
		list[i] = fmt.Sprintf("%d to %d ×%d", s.First, s.First+s.Layers-1, s.Replicas)
	}
	return fmt.Sprintf("layers %s, with micro-batches of %d,", strings.Join(list, ", "), d.Micro)
}

// seconds writes a time for people.
func seconds(s float64) string { return plural.Seconds(s) }
