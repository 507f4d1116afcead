package state

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/layout"
)

// moveFlags are those of reshard and convert.
type moveFlags struct {
	layout  layoutFlags
	source  sourceFlags
	format  string
	groups  string // a file
	bf16    bool
	most    int64
	seal    bool
	json    bool
	workers int
	tp, pp  int // of ZeRO: tensor parallel ranks, and stages of a pipeline
	ep      int // of ZeRO: expert parallel ranks
	stages  []int
}

func (m *moveFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	m.layout.add(flags, "")
	m.source.add(flags)
	flags.Var(cli.NewAtLeast(&m.most, 0, "a number of bytes, or 0 for one file with everything"),
		"max-file-bytes", "for the format hf: the bytes of tensors in a file; 0 is one file")
	flags.StringVar(&m.groups, "groups", "", "for the formats of DeepSpeed and Megatron: a file "+
		"with the groups of the optimizer, where SRC does not tell "+
		"(docs/formats/optimizer-groups.md)")
	flags.IntSliceVar(&m.stages, "stages", nil, "for zero1: with which layers of a pipeline the "+
		"stages behind the first begin, such as 4,8,12; by default as SRC's, or for another "+
		"number as DeepSpeed would cut them")
	flags.BoolVar(&m.bf16, "bf16", false, "for zero1, zero2 and zero3: DeepSpeed will train in "+
		"bf16, for which its files have other names; by default as SRC's configuration of "+
		"DeepSpeed or the type of its model say")
	flags.BoolVar(&m.seal, "seal", false,
		"write a manifest too, as shoal state seal does; in a bucket there always is one")
	flags.BoolVar(&m.json, "json", false, "print what was written as one JSON object")
	addWorkers(cmd, &m.workers)
}

func addWorkers(cmd *cobra.Command, workers *int) {
	*workers = runtime.NumCPU()
	cmd.Flags().Var(cli.NewAtLeast(workers, 1, "a number of cores, 1 or more"), "workers",
		"how many cores to use")
}

const published = `DST appears when it is whole and its fingerprints are those of SRC; until then it grows in DST.partial. A command that was
stopped, however, goes on where it was when it is run again.

SRC and DST can be s3://BUCKET/PREFIX, or with the name of a file behind; AWS_ENDPOINT_URL_S3, AWS_PROFILE, AWS_ACCESS_KEY_ID and the other
variables and files of AWS's own tools say where that is and who asks. There DST always gets a manifest, which is written last: until then DST/.partial
(of a file, DST.partial) says that it is not whole, and no command of shoal takes it. A command that fails or is stopped by Ctrl-C removes what it has sent.
One that was killed cannot; run again it removes that and begins anew. Nothing is put on the disk for it, and parts of 400 MiB at most are in memory.`

func newStateReshardCommand() *cobra.Command {
	var m moveFlags
	cmd := &cobra.Command{
		Use:   "reshard SRC DST",
		Short: "Write a checkpoint for another layout",
		Long: `Write a checkpoint anew for other ranks: SRC is of any format, DST a folder with a file for each rank of the layout.

The format ranks has what lies in the memory of each rank, as it lies there; dcp and shards have the boxes of the whole
tensors that a rank needs, as torch's distributed checkpoint reads them. What several ranks have is written once. megatron has Megatron-LM's
mp_rank folders, in which every rank has all that it loads.

` + published,
		Example: `  shoal state reshard checkpoints/step-1000 out --mesh dp=8 --preset fsdp2 --format dcp
  shoal state reshard model.safetensors out --mesh pp=2,tp=4 --preset megatron-core
  shoal state reshard megatron out --format megatron --mesh pp=4,tp=2 --only 'model.**' --only 'optimizer.**'
  shoal state reshard out other --layout layout.yaml --seal
  shoal state reshard s3://models/llama s3://models/llama-tp8 --mesh tp=8 --preset megatron-core
  shoal state reshard --json checkpoints/step-1000 out --mesh dp=8 --preset fsdp2 | jq -r .fingerprint`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !m.layout.given() {
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
	m.add(cmd)
	return cmd
}

func newStateConvertCommand() *cobra.Command {
	var m moveFlags
	cmd := &cobra.Command{
		Use:   "convert SRC DST",
		Short: "Write a checkpoint in another format",
		Long: `Write a checkpoint in another format:

` + formats() + `
Names, element types and every bit of the tensors stay as they are. What is no tensor (steps, learning rates) comes along, except to
safetensors, which have no place for it, and but for the groups of another format's optimizer to universal. pt is one dict, in which the keys
of dicts in dicts are joined by dots, and has what torch.load takes with weights_only; what becomes something else, as arrays of NumPy do, is said. In Megatron's files tensors have
Megatron's names, joined, cut and numbered as it does, and random numbers, which belong to ranks, stay behind: load megatron with
--no-load-rng, torch_dist as it is. In megatron rows of the vocabulary are filled up. DeepSpeed loads zero1, zero2 and zero3 by position and over
as many ranks as they are written for, universal by names and over any number, but experts with an expert parallel size of 1 only. To zero3 the
model's copy of the master weights stays behind.

--names hf goes the other way: a decoder of Megatron, in whichever format, gets the names that Hugging Face's transformers load (llama, mistral, qwen2, qwen3,
qwen3_moe, mixtral), q, k, v, gate and up by themselves, without the rows that fill up the vocabulary; so does its optimizer. How many heads and rows there are
say Megatron's arguments, the model's --config, or --kv-heads and --vocab-size. The folder still needs a config.json and the tokenizer: shoal writes neither.

` + published,
		Example: `  shoal state convert checkpoints/step-1000 model --format hf --only 'model.**' --max-file-bytes 5000000000
  shoal state convert zero/global_step100 model.safetensors --format hf --only 'module.**' --rename module.=
  shoal state convert model.safetensors model.pt --format pt
  shoal state convert model out --format megatron --mesh pp=2,tp=4
  shoal state convert megatron out --format torch_dist --only 'model.**' --only 'optimizer.**'
  shoal state convert megatron model --format hf --names hf --config config.json --only 'model.**'
  shoal state convert zero out --format universal
  shoal state convert zero out --format zero3 --mesh dp=6
  shoal state convert runs/step-1000 s3://models/out/model.safetensors --format hf --only 'model.**'`,
		Args: cli.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.format == "" {
				return cli.Usagef("say in which format: --format %s",
					strings.Join(checkpoint.Formats(), ", "))
			}
			if !slices.Contains(checkpoint.Formats(), m.format) {
				return cli.Usagef("--format %s: shoal writes %s%s", m.format,
					strings.Join(checkpoint.Formats(), ", "), cli.DidYouMean(m.format, checkpoint.Formats()))
			}
			return m.run(cmd, args[0], args[1])
		},
	}
	cmd.Flags().StringVar(&m.format, "format", "", strings.Join(checkpoint.Formats(), ", "))
	m.add(cmd)
	return cmd
}

// formats lists those that can be written.
func formats() string {
	var b strings.Builder
	for _, f := range checkpoint.Formats() {
		fmt.Fprintf(&b, "  %-20s %s\n", f, checkpoint.Describe(f))
	}
	return b.String()
}

// check fails where the flags cannot be meant, and takes the layout that the format has where none
// is asked for.
func (m *moveFlags) check(flags *pflag.FlagSet) error {
	preset := checkpoint.Preset(m.format)
	switch {
	case m.layout.given() && preset == "" && !slices.Contains(checkpoint.RankFormats(), m.format):
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
	case m.groups != "" && !checkpoint.Grouped(m.format):
		return cli.Usagef("--groups says which parameters of the optimizer are in which group, "+
			"and %s goes by names alone; leave it out", m.format)
	case m.layout.file == "" && m.layout.preset == "":
		m.layout.preset = preset
		if strings.HasPrefix(m.format, "zero") {
			var err error
			if m.tp, m.pp, m.ep, err = m.layout.takeModel(); err != nil {
				return cli.AsUsage(err)
			}
		}
	}
	if err := m.layout.check(); err != nil || !strings.HasPrefix(m.format, "zero") ||
		m.layout.file != "" {
		return err
	}
	if m.stages != nil && len(m.stages) != m.pp-1 {
		return cli.Usagef("--stages says with which layers %d stages behind the first begin, "+
			"and --mesh has pp=%d", len(m.stages), m.pp)
	}
	mesh, err := layout.ParseMesh(m.layout.mesh)
	if err == nil {
		err = mesh.Within("dp")
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

// run moves SRC to DST.
func (m *moveFlags) run(cmd *cobra.Command, src, dst string) error {
	if err := m.check(cmd.Flags()); err != nil {
		return err
	}
	c, err := m.source.open(src)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.CheckNames(); err != nil {
		return err
	}
	notes, err := m.adopt(c)
	if err != nil {
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
	cli.Gently(cmd.Context())
	p := newProgress(cmd.ErrOrStderr())
	r, err := checkpoint.Move(cmd.Context(), c, out, dst,
		checkpoint.Options{Workers: m.workers, Seal: m.seal, Progress: p.show})
	p.clear()
	if err != nil {
		return errors.Join(err, goOn(cmd.Context(), err, dst))
	}
	m.tell(cmd.ErrOrStderr(), c, out, lost, notes)
	for _, name := range r.Unreadable {
		fmt.Fprintf(cmd.ErrOrStderr(),
			"shoal: %s could not be read; what it has was taken from replicas\n", name)
	}
	if m.json {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(m.moved(src, dst, c, out, lost, r))
	}
	return sayMoved(cmd.OutOrStdout(), src, dst, out, r)
}

// goOn says what to do after a command that was stopped, or for which the disk was too small.
func goOn(ctx context.Context, err error, dst string) error {
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

// progress shows how far a command is, on a terminal.
type progress struct {
	out     io.Writer
	started time.Time
	shown   time.Time
}

func newProgress(out io.Writer) *progress {
	p := &progress{started: time.Now()}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			p.out = out
		}
	}
	return p
}

// show is called by one goroutine at a time.
func (p *progress) show(done, all int64) {
	now := time.Now()
	if p.out == nil || now.Sub(p.shown) < 100*time.Millisecond {
		return
	}
	p.shown = now
	rate := float64(done) / now.Sub(p.started).Seconds()
	fmt.Fprintf(p.out, "\r\x1b[K%5.1f %%, %.2f of %.2f GB, %.2f GB/s, %.0f s left",
		100*float64(done)/float64(all), float64(done)/1e9, float64(all)/1e9, rate/1e9,
		float64(all-done)/rate)
}

func (p *progress) clear() {
	if p.out != nil {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
}
