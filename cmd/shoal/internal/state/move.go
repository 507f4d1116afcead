package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/spelling"
	"github.com/shoal-ml/shoal/state/layout"
)

// shoal state reshard and shoal state convert. One goroutine runs what is here, that of the
// command, so nothing is locked. Only run reads and writes checkpoints, and nextStepError looks for
// a folder.

// moveFlags are the flags of shoal state reshard and shoal state convert.
type moveFlags struct {
	layout  layoutFlags
	source  sourceFlags
	format  string   // of DST
	groups  string   // file with the groups of the optimizer; "" = none
	bf16    bool     // whether DeepSpeed will train in bf16
	dtypes  []string // rules that give tensors another element type
	most    int64    // largest size of a file, in bytes; 0 = one file with everything
	seal    bool     // whether to write a manifest too
	json    bool     // whether to print JSON objects
	workers int      // number of cores to use
	tp, pp  int      // for ZeRO, the numbers of tensor parallel ranks and of stages of a pipeline
	ep      int      // for ZeRO, the number of expert parallel ranks
	// stages are, for zero1, the layers with which the stages after the first begin; nil = as SRC.
	stages []int

	given   []optim.Group         // what groups say; nil = none
	casts   []checkpoint.Cast     // what dtypes say; set by run
	rounded checkpoint.CastReport // what cast has done
}

// addTo defines the flags that both commands have.
func (m *moveFlags) addTo(cmd *cobra.Command) {
	flags := cmd.Flags()
	m.layout.addTo(flags, "")
	m.source.addTo(flags)
	flags.Var(cli.NewAtLeast(&m.most, 0, "a number of bytes, or 0 for one file with everything"),
		"max-file-bytes", "for the format hf: the bytes of tensors in a file; 0 is one file")
	flags.StringVar(&m.groups, "groups", "", "for the formats of DeepSpeed and Megatron: a file "+
		"with the groups of the optimizer, where SRC does not tell "+
		"(docs/formats/optimizer-groups.md)")
	flags.IntSliceVar(&m.stages, "stages", nil, "for zero1: with which layers of a pipeline the "+
		"stages after the first begin, such as 4,8,12; by default as SRC's, or for another "+
		"number as DeepSpeed would cut them")
	flags.BoolVar(&m.bf16, "bf16", false, "for zero1, zero2 and zero3: DeepSpeed will train in "+
		"bf16, for which its files have other names; by default as SRC's configuration of "+
		"DeepSpeed or the type of its model say")
	flags.StringArrayVar(&m.dtypes, "dtype", nil, "bf16, f16 or f32: the type to which floats "+
		"are rounded, of all tensors but the optimizer's, or PATTERN=bf16 of those whose names in "+
		"DST match; the last that matches counts")
	flags.BoolVar(&m.seal, "seal", false,
		"write a manifest too, as shoal state seal does; in a bucket there always is one")
	flags.BoolVar(&m.json, "json", false, "print what was written as one JSON object")
	addWorkersFlag(cmd, &m.workers)
}

// addWorkersFlag defines the flag --workers, which sets workers; its default is the number of
// cores.
func addWorkersFlag(cmd *cobra.Command, workers *int) {
	*workers = runtime.NumCPU()
	cmd.Flags().Var(cli.NewAtLeast(workers, 1, "a number of cores, 1 or more"), "workers",
		"how many cores to use")
}

// published is what the help of both commands says of how DST comes to be.
const published = `
DST appears when it is whole and its fingerprints are those of SRC. Until then it grows in
DST.partial, and a command that was stopped goes on there when it is run again.

SRC and DST can be s3://BUCKET/PREFIX; the variables and files of AWS's own tools say where that is.
There a command that was stopped begins anew.`

// newStateReshardCommand returns the command shoal state reshard.
func newStateReshardCommand() *cobra.Command {
	var m moveFlags
	cmd := &cobra.Command{
		Use:   "reshard SRC DST",
		Short: "Write a checkpoint for another layout",
		Long: cli.Help(`Write a checkpoint for other ranks. SRC is of any format, and DST becomes a folder.

  --format   what DST has
  ranks      a file for each rank, with the memory of the rank as it lies there
  dcp        the parts that each rank needs, as torch's distributed checkpoint reads them
  shards     the same parts in safetensors
  megatron   Megatron-LM's mp_rank folders, in which each rank has all that it loads

In dcp and shards, what several ranks have is written once.
`+published, cli.ExitCodes, "files"),
		Example: `  shoal state reshard checkpoints/step-1000 out --mesh dp=8 --preset fsdp2 --format dcp
  shoal state reshard model.safetensors out --mesh pp=2,tp=4 --preset megatron-core
  shoal state reshard megatron out --format megatron --mesh pp=4,tp=2 --only 'model.**'
  shoal state reshard out other --layout layout.yaml --seal
  shoal state reshard s3://models/llama s3://models/out --mesh tp=8 --preset megatron-core
  shoal state reshard --json step-1000 out --mesh dp=8 --preset fsdp2 | jq -r .fingerprint`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !m.layout.isGiven() {
				return cli.Usagef("say for which layout: --mesh and --preset, or --layout; %s "+
					"--help has examples", cmd.CommandPath())
			}
			if !slices.Contains(checkpoint.RankFormats(), m.format) {
				return cli.Usagef("--format %s has no ranks; reshard writes %s", m.format,
					strings.Join(checkpoint.RankFormats(), ", "))
			}
			return m.run(cmd, args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&m.format, "format", "ranks",
		strings.Join(checkpoint.RankFormats(), ", "))
	m.addTo(cmd)
	return cmd
}

// newStateConvertCommand returns the command shoal state convert.
func newStateConvertCommand() *cobra.Command {
	var m moveFlags
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Write a checkpoint in another format",
		Long: cli.Help(`Write a checkpoint in another format. Names, types and every bit of the tensors stay as they are.

`+formatHelp()+`
With hf, of a checkpoint of Lightning, of a training script or of a job the model alone is taken,
under its own names; --only '**' takes all. Values that are not tensors, such as steps and learning
rates, come along where the format has a place for them: not to safetensors. With --names hf, a
decoder of Megatron gets the names that Hugging Face's transformers load (llama, mistral, qwen2,
qwen3, qwen3_moe, mixtral). The folder still needs a config.json and the tokenizer. The guide says
what each format keeps.
`+published, cli.ExitCodes, "files"),
		Example: `  shoal state convert checkpoints/step-1000 model --format hf
  shoal state convert last.ckpt model --format hf --dtype bf16
  shoal state convert zero model.safetensors --format hf --only module. --strip module.
  shoal state convert model.safetensors model.pt --format pt
  shoal state convert model out --format megatron --mesh pp=2,tp=4
  shoal state convert megatron out --format torch_dist --only 'model.**' --only 'optimizer.**'
  shoal state convert megatron model --format hf --names hf --config config.json
  shoal state convert zero out --format universal
  shoal state convert zero out --format zero3 --mesh dp=6
  shoal state convert runs/step-1000 s3://models/out/model.safetensors --format hf`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.format == "" {
				return cli.Usagef("say in which format: --format %s",
					strings.Join(checkpoint.Formats(), ", "))
			}
			if !slices.Contains(checkpoint.Formats(), m.format) {
				return cli.Usagef("--format %s: shoal writes %s%s", m.format,
					strings.Join(checkpoint.Formats(), ", "),
					spelling.Meant(m.format, checkpoint.Formats()))
			}
			return m.run(cmd, args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&m.format, "format", "", strings.Join(checkpoint.Formats(), ", "))
	m.addTo(cmd)
	return cmd
}

// formatIndent is the column at which the descriptions of formats begin.
const formatIndent = 23

// formatHelp describes the formats that can be written, for the help, in lines of up to 100
// columns.
func formatHelp() string {
	var b strings.Builder
	for _, f := range checkpoint.Formats() {
		name, line := f, ""
		for _, word := range strings.Fields(checkpoint.Describe(f)) {
			if len(line)+1+len(word) > 100-formatIndent {
				fmt.Fprintf(&b, "  %-20s%s\n", name, line)
				name, line = "", ""
			}
			line += " " + word
		}
		fmt.Fprintf(&b, "  %-20s%s\n", name, line)
	}
	return b.String()
}

// check fails for flags that are wrong whatever the checkpoint is. Where no layout is asked for it
// sets that which the format has by default, and for ZeRO takes tp, pp and ep out of the mesh.
func (m *moveFlags) check(flags *pflag.FlagSet) error {
	preset := checkpoint.DefaultPreset(m.format)
	switch {
	case m.layout.isGiven() && preset == "" && !slices.Contains(checkpoint.RankFormats(), m.format):
		return cli.Usagef("--format %s has whole tensors, for no ranks; leave out --mesh, "+
			"--preset and --layout, or write one of %s", m.format,
			strings.Join(checkpoint.RankFormats(), ", "))
	case flags.Changed("max-file-bytes") && m.format != "hf":
		return cli.Usagef("--max-file-bytes is for the format hf; leave it out for %s", m.format)
	case strings.HasPrefix(m.format, "zero") && m.layout.preset != "" &&
		m.layout.preset != m.format:
		return cli.Usagef("--format %s has a layout of its own; leave out --preset, and give "+
			"the ranks alone: --mesh dp=8", m.format)
	case m.stages != nil && m.format != "zero1":
		return cli.Usagef("--stages says with which layers the stages of a pipeline in zero1 "+
			"begin; leave it out for %s", m.format)
	case flags.Changed("bf16") && !strings.HasPrefix(m.format, "zero"):
		return cli.Usagef("--bf16 says how DeepSpeed will train, after which its files zero1, " +
			"zero2 and zero3 are called; to write tensors as bf16 add --dtype bf16 instead")
	case m.groups != "" && !checkpoint.NeedsGroups(m.format):
		return cli.Usagef("--groups says which parameters of the optimizer are in which group, "+
			"and %s goes by names alone; leave it out", m.format)
	case m.layout.file == "" && (m.layout.preset == "" || strings.HasPrefix(m.format, "zero")):
		m.layout.preset = preset
		if strings.HasPrefix(m.format, "zero") {
			var err error
			if m.tp, m.pp, m.ep, err = m.layout.removeModelAxes(); err != nil {
				return cli.AsUsage(err)
			}
		}
	}
	if err := m.layout.check(); err != nil || !strings.HasPrefix(m.format, "zero") ||
		m.layout.file != "" {
		return err
	}
	if m.stages != nil && len(m.stages) != m.pp-1 {
		return cli.Usagef("--stages says with which layers %d stages after the first begin, "+
			"and --mesh has pp=%d", len(m.stages), m.pp)
	}
	mesh, err := layout.ParseMesh(m.layout.mesh)
	if err == nil {
		err = mesh.CheckAxes("dp")
	}
	if err != nil {
		axes := "dp, tp, pp and ep"
		if m.format == "zero3" {
			axes = "dp and tp"
		}
		err = fmt.Errorf("%s has no axes but %s: %w", m.format, axes, err)
	}
	return cli.AsUsage(err)
}

// run writes the checkpoint SRC as DST, and prints what was written. It blocks until all is on the
// disk or in the bucket; it does not undo what it has begun.
func (m *moveFlags) run(cmd *cobra.Command, src, dst string) (err error) {
	if dst == "-" {
		return cli.Usagef("DST is a file or folder, and the output says what was written: to " +
			"call it -, write ./-")
	}
	if err := m.check(cmd.Flags()); err != nil {
		return err
	}
	if err := m.readGroups(); err != nil {
		return err
	}
	if m.casts, err = m.castRules(); err != nil {
		return err
	}
	if err := m.source.model.refuseUnused(cmd.Flags(),
		strings.Contains(m.layout.preset, "megatron-core")); err != nil {
		return err
	}
	m.source.modelAlone = m.format == "hf"
	c, err := m.source.open(src)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.CheckNames(); err != nil {
		return err
	}
	notes, err := c.PrepareOptimizer(m.format, m.given)
	if err != nil {
		return err
	}
	if err := m.cast(c); err != nil {
		return err
	}
	spec, err := m.layout.spec(c, &m.source.model)
	if err != nil {
		return err
	}
	form := checkpoint.TargetFormat{Format: m.format, Spec: spec, File: filepath.Base(dst),
		MaxFileBytes: m.most,
		TP:           m.tp, PP: m.pp, EP: m.ep, StageStarts: m.stages, BF16: m.bf16}
	out, lost, err := c.Output(form)
	if err != nil {
		return err
	}
	cli.FinishOnSignal(cmd.Context())
	ctx, clear := withProgress(cmd)
	r, err := checkpoint.Move(ctx, c, out, dst,
		checkpoint.Options{Workers: m.workers, Seal: m.seal})
	clear()
	if err != nil {
		return errors.Join(err, nextStepError(cmd.Context(), err, dst))
	}
	m.printNotes(cmd.ErrOrStderr(), c, out, lost, notes)
	for _, name := range r.Unreadable {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"shoal: %s could not be read; what it has was taken from replicas\n", name)
	}
	if m.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(m.newMovedJSON(src, dst, c, out, lost, r))
	}
	return printMoved(cmd.OutOrStdout(), src, dst, out, r, m.rounded.Changed())
}

// nextStepError returns an error that says what to do after a command that was stopped, or for
// which the disk was too small; nil after any other failure. It looks whether DST.partial is there.
func nextStepError(ctx context.Context, err error, dst string) error {
	full := durable.Full(err)
	switch {
	case snapshot.IsURL(dst) && ctx.Err() != nil:
		return errors.New("the same command begins anew")
	case snapshot.IsURL(dst) || !full && ctx.Err() == nil:
		return nil
	}
	partial := filepath.Clean(dst) + checkpoint.PartialSuffix
	_, missing := os.Lstat(partial)
	switch {
	case full && missing != nil:
		return errors.New("make room, and run the same command again")
	case full:
		return fmt.Errorf("make room: what is done stays in %s, and the same command goes on there",
			partial)
	case missing != nil:
		return errors.New("nothing was written yet")
	}
	return fmt.Errorf("what is done stays in %s; the same command goes on there", partial)
}
