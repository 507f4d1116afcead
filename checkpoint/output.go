package checkpoint

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/dcp"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/hf"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/tensor"
)

// The formats in which checkpoints are written: one table says for each what it can hold, and how
// its files are described. Nothing here writes a file, and no elements are read but those that a
// format has among its values. One goroutine at a time uses a checkpoint.

// A TargetFormat says in which format a checkpoint is written, and with which choices.
type TargetFormat struct {
	Format string       // one of Formats
	Spec   *layout.Spec // what each rank holds; nil = one rank holds everything
	// File names the file that is written: always for pt, and for hf when it ends in .safetensors.
	File string
	// MaxFileBytes bounds the bytes of tensors in a file of hf. 0 means no bound.
	MaxFileBytes int64
	// TP and PP are ZeRO's numbers of tensor parallel ranks and of pipeline stages. Each pair of
	// them has the data parallel ranks of the spec. 0 means 1.
	TP, PP int
	// StageStarts lists the layers with which ZeRO's pipeline stages begin, without the first
	// stage. nil means the stages of the training run, or those that DeepSpeed would make.
	StageStarts []int
	// EP is ZeRO's number of expert parallel ranks, which are data parallel ranks as well. 0 means
	// 1.
	EP int
	// BF16 says that DeepSpeed trains in bf16. If false, its configuration or the model's type
	// decides.
	BF16 bool
}

// Formats returns the names of the formats that Output can write.
func Formats() (names []string) {
	for _, f := range outputFormats {
		names = append(names, f.name)
	}
	return names
}

// RankFormats returns the names of the formats in which a spec says what each rank holds.
func RankFormats() (names []string) {
	for _, f := range outputFormats {
		if f.ranks {
			names = append(names, f.name)
		}
	}
	return names
}

// Describe returns one line about a format for people; "" for an unknown name.
func Describe(format string) string { return findFormat(format).description }

// NeedsGroups reports whether a format identifies optimizer state by the position of parameters, or
// has groups of parameters that its framework asks for.
func NeedsGroups(format string) bool { return findFormat(format).groups }

// DefaultPreset returns the layout preset that a format has by default; "" if it has none.
func DefaultPreset(format string) string { return findFormat(format).preset }

// An outputFormat is a format in which checkpoints can be written.
type outputFormat struct {
	name        string
	description string // one line for people who choose a format
	ranks       bool   // whether a spec says what each rank holds
	// textOnly says that texts are the only values beside tensors that the format can hold.
	textOnly bool
	groups   bool   // whether the optimizer's state goes by groups of parameters
	preset   string // default layout; "" = none
	// output describes the files of a checkpoint in this format. It reads no tensor.
	output func(c *Checkpoint, f TargetFormat) (*format.Output, error)
}

// outputFormats are all formats that Output knows, in the order in which they are listed.
var outputFormats = []outputFormat{
	{name: "hf",
		description: "safetensors with whole tensors, as Hugging Face's libraries read them: " +
			"a folder, or a file DST.safetensors", textOnly: true, output: outputHF},
	{name: "pt", description: "one file for torch.load", output: outputPT},
	{name: "dcp", description: "torch's distributed checkpoint", ranks: true,
		output: func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			shards, err := c.resolveShards(f.Spec)
			if err != nil {
				return nil, err
			}
			return dcp.Layout(shards, c.Values)
		}},
	{name: "shards", description: "safetensors with parts of tensors, as torch's distributed " +
		"checkpoint writes and reads them", ranks: true, textOnly: true,
		output: func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			shards, err := c.resolveShards(f.Spec)
			if err != nil {
				return nil, err
			}
			texts, kept := c.headerTexts()
			out, err := hf.LayoutShards(shards, texts)
			if err == nil {
				out.Values = kept
			}
			return out, err
		}},
	{name: "ranks",
		description: "shoal's own: a safetensors file for each rank with what lies in its memory",
		ranks:       true, output: func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			return ranks.Layout(f.specOrWhole(), c.Tensors, c.Values)
		}},
	{name: "megatron",
		description: "Megatron-LM's format torch: a folder mp_rank_TT_PPP for each " +
			"rank of --mesh pp=…,tp=…, as the preset megatron-core cuts", ranks: true, groups: true,
		preset: "megatron-core",
		output: outputFolders(func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			return megatron.Layout(f.specOrWhole(), c.Tensors, c.Values)
		})},
	{name: "megatron-distributed", description: "the same, with the state of the optimizer in " +
		"distrib_optim.pt, as its distributed form looks for it", ranks: true, groups: true,
		preset: "megatron-core",
		output: outputFolders(func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			return megatron.LayoutDistributed(f.specOrWhole(), c.Tensors, c.Values, c.Files.Read)
		})},
	{name: "torch_dist", description: "Megatron-Core's torch_dist, for any number of ranks",
		groups: true,
		preset: "megatron-core",
		output: func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			return megatron.LayoutDist(f.specOrWhole(), c.Tensors, c.Values, c.Files.Read)
		}},
	{name: "universal", description: "DeepSpeed's universal checkpoint, for any number of ranks",
		groups: true, output: func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
			return deepspeed.Layout(c.Tensors, c.Values)
		}},
	{name: "zero1", description: "DeepSpeed's ZeRO of stage 1, for the ranks of --mesh " +
		"pp=P,dp=N,tp=T, of which ep=E share the experts", ranks: true, groups: true,
		preset: "zero1", output: outputZero(1)},
	{name: "zero2", description: "the same of stage 2", ranks: true, groups: true, preset: "zero2",
		output: outputZero(2)},
	{name: "zero3", description: "the same of stage 3, for --mesh dp=N,tp=T", ranks: true,
		groups: true,
		preset: "zero3", output: outputZero(3)},
}

// findFormat returns the format of a name, and the zero value for an unknown name.
func findFormat(name string) outputFormat {
	for _, f := range outputFormats {
		if f.name == name {
			return f
		}
	}
	return outputFormat{}
}

// metadata is the prefix under which readers of safetensors put the texts of a header.
const metadata = "__metadata__."

// Output describes the files of a checkpoint in a target format. lost is the number of values for
// which that format has no place. For Megatron's formats it may rename tensors of c, for
// DeepSpeed's it adds proofs, which Move tries, and for pt it may take away a value.
func (c *Checkpoint) Output(f TargetFormat) (out *format.Output, lost int, err error) {
	if err := c.checkStructure(); err != nil {
		return nil, 0, err
	}
	to := findFormat(f.Format)
	if to.output == nil {
		return nil, 0, fmt.Errorf("no format %q; known are %s", f.Format,
			strings.Join(Formats(), ", "))
	}
	if !to.textOnly {
		for _, v := range c.Values {
			if u, ok := v.Data.(format.Unread); ok {
				return nil, 0, fmt.Errorf(
					"%s: value %q: %w (or leave out what is no tensor: --no-values)", c.path,
					v.Path, u.Why)
			}
		}
	}
	if out, err = to.output(c, f); err != nil {
		return nil, 0, err
	}
	if err := c.checkComplete(out); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", c.path, err)
	}
	return out, len(c.Values) - len(out.Values), nil
}

// checkComplete fails for a tensor that an output neither holds nor implies: no format drops a
// tensor silently. Step counts are exempt, because they can stand with the groups of an optimizer.
func (c *Checkpoint) checkComplete(out *format.Output) error {
	there := map[string]bool{}
	for i := range out.Tensors {
		there[out.Tensors[i].Name] = true
	}
	for _, p := range out.Implied {
		there[p.Model.Name] = true
	}
	for i := range c.Tensors {
		if name := c.Tensors[i].Name; !there[name] && !strings.HasPrefix(name, "optimizer.step.") {
			return fmt.Errorf("the format has no place for tensor %q; leave it out with --only",
				name)
		}
	}
	return nil
}

// specOrWhole returns the given spec, which is not to be changed, or that of one rank with
// everything.
func (f *TargetFormat) specOrWhole() *layout.Spec {
	if f.Spec != nil {
		return f.Spec
	}
	return &layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}}}
}

// outputFolders returns a function that describes Megatron's folders, with lay. That function
// chains the optimizers in c as Megatron has them for such ranks.
func outputFolders(lay func(*Checkpoint, TargetFormat) (*format.Output, error)) func(*Checkpoint,
	TargetFormat) (*format.Output, error) {
	return func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
		renamed, err := megatron.ChainOptimizers(c.Checkpoint, f.specOrWhole())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.path, err)
		}
		c.recordRenames(renamed)
		return lay(c, f)
	}
}

// outputZero returns a function that describes what DeepSpeed saves for a stage of ZeRO, and adds
// to the tensors of c the proofs of what that implies. ZeRO cuts tensors in its own way, so only
// the size of dp counts in a spec.
func outputZero(stage int) func(*Checkpoint, TargetFormat) (*format.Output, error) {
	return func(c *Checkpoint, f TargetFormat) (*format.Output, error) {
		ranks, err := zeroRanks(c, f)
		if err != nil {
			return nil, err
		}
		out, err := deepspeed.LayoutZero(
			deepspeed.Zero{Stage: stage, DP: ranks, TP: f.TP, PP: f.PP, EP: f.EP,
				Starts: f.StageStarts,
				BF16:   f.BF16}, c.Tensors, c.Values, c.Files.Read)
		if err != nil {
			return nil, err
		}
		implied := map[string]*format.Proof{}
		for _, p := range out.Implied {
			implied[p.Model.Name] = p
		}
		for i := range c.Tensors {
			if t := &c.Tensors[i]; implied[t.Name] != nil {
				t.Proofs = append(t.Proofs, implied[t.Name]) // Move tries it
			}
		}
		return out, nil
	}
}

// zeroRanks returns the number of data parallel ranks of a ZeRO checkpoint.
func zeroRanks(c *Checkpoint, f TargetFormat) (int, error) {
	if f.Spec == nil {
		return 1, nil
	}
	m, err := layout.ParseMesh(f.Spec.Mesh)
	if err == nil {
		err = m.CheckAxes("dp")
	}
	var own *layout.Spec
	if err == nil {
		own, err = layout.Preset(f.Format, m, Catalogue(c.Checkpoint), 0)
	}
	if err != nil {
		return 0, fmt.Errorf("%s is over dp only: %w", f.Format, err)
	}
	if !reflect.DeepEqual(own, f.Spec) {
		return 0, fmt.Errorf("%s has a layout of its own; give it the ranks alone, --mesh %s",
			f.Format, m)
	}
	return m.Ranks(), nil
}

// outputHF describes what f names for the format hf: one file of safetensors, or several with an
// index.
func outputHF(c *Checkpoint, f TargetFormat) (*format.Output, error) {
	if f.MaxFileBytes == 0 {
		f.MaxFileBytes = math.MaxInt64
	}
	texts, kept := c.headerTexts()
	if texts["format"] == "" { // versions of transformers load nothing without it
		if texts == nil {
			texts = map[string]string{}
		}
		texts["format"] = "pt"
	}
	out, err := hf.Layout(c.Tensors, texts, f.MaxFileBytes)
	if err != nil {
		return nil, err
	}
	out.Values = kept
	if strings.HasSuffix(f.File, ".safetensors") {
		err = renameFile(out, f.File)
	}
	return out, err
}

// outputPT describes one file of torch.save. It takes from the values of c for which library a file
// of safetensors is, which says nothing of the state: load_state_dict refuses a dict with that key.
func outputPT(c *Checkpoint, f TargetFormat) (*format.Output, error) {
	c.Values = slices.DeleteFunc(slices.Clone(c.Values), func(v format.Value) bool {
		return v.Path == metadata+"format"
	})
	return torchzip.Layout(f.File, c.Tensors, c.Values)
}

// renameFile gives the one file of an output another name, everywhere in the output.
func renameFile(out *format.Output, name string) error {
	if len(out.Files) != 1 {
		return fmt.Errorf(
			"%s would be %d files; give a folder, or no bound for the bytes of a file", name,
			len(out.Files))
	}
	out.Files[0].Name = name
	for i := range out.Frames {
		out.Frames[i].File = name
	}
	for i := range out.Tensors {
		for k := range out.Tensors[i].Pieces {
			out.Tensors[i].Pieces[k].File = name
		}
	}
	return nil
}

// headerTexts returns the texts that a header of safetensors can hold, by key, and the values that
// they come from; nil if there are none.
func (c *Checkpoint) headerTexts() (texts map[string]string, kept []format.Value) {
	for _, v := range c.Values {
		key, ok := strings.CutPrefix(v.Path, metadata)
		text, is := v.Data.(string)
		if !ok || !is {
			continue
		}
		if texts == nil {
			texts = map[string]string{}
		}
		texts[key] = text
		kept = append(kept, v)
	}
	return texts, kept
}

// shardsOnOneRank returns the shards of one rank that holds everything.
func (c *Checkpoint) shardsOnOneRank() [][]format.Shard {
	shards := make([]format.Shard, len(c.Tensors))
	for i, t := range c.Tensors {
		shards[i] = format.Shard{Name: t.Name, DType: t.DType, Shape: t.Shape, Box: t.Shape.Box()}
	}
	return [][]format.Shard{shards}
}

// resolveShards resolves a spec and returns, for each rank, what that writes: each box goes to the
// rank among its owners that has the fewest bytes to write so far. Without a spec one rank holds
// everything.
func (c *Checkpoint) resolveShards(spec *layout.Spec) ([][]format.Shard, error) {
	if spec == nil {
		return c.shardsOnOneRank(), nil
	}
	l, err := spec.Resolve(Catalogue(c.Checkpoint))
	if err != nil {
		return nil, err
	}
	ranks, bytes := make([][]format.Shard, l.Ranks), make([]int, l.Ranks)
	for i := range l.Families {
		f := &l.Families[i]
		for _, m := range f.Tensors {
			t := &l.Tensors[m]
			for _, cell := range f.Grid.Cells {
				least := -1
				for _, h := range cell.Held {
					for _, r := range l.Sets[l.Slots[f.Slots[h.Slot]].Set] {
						if least < 0 || bytes[r] < bytes[least] {
							least = int(r)
						}
					}
				}
				bytes[least] += cell.Box.Elements() * t.DType.Size()
				ranks[least] = append(ranks[least],
					format.Shard{Name: t.Name, DType: t.DType, Shape: t.Shape, Box: cell.Box})
			}
			if len(f.Grid.Cells) == 0 { // no elements, but a name
				ranks[0] = append(ranks[0],
					format.Shard{Name: t.Name, DType: t.DType, Shape: t.Shape, Box: t.Shape.Box()})
			}
		}
	}
	return ranks, nil
}

// Catalogue returns the tensors of a checkpoint in the form that a layout takes.
func Catalogue(c *format.Checkpoint) (list []layout.Tensor) {
	for _, t := range c.Tensors {
		list = append(list,
			layout.Tensor{Name: t.Name, DType: t.DType, Shape: slices.Clone(tensor.Shape(t.Shape))})
	}
	return list
}
