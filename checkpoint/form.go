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

// A Form says as what a checkpoint is written.
type Form struct {
	Format string       // one of Formats
	Spec   *layout.Spec // which rank has what; nil for one rank with everything
	File   string       // the name of the file: of pt, and of hf when it ends in .safetensors
	Most   int64        // the bytes of tensors in a file of hf; 0 for no bound
	// of ZeRO, tensor parallel ranks and stages of a pipeline, of which each has data parallel ones
	// as the spec says; 0 is as 1
	TP, PP int
	// of ZeRO, the layers with which stages behind the first begin; nil for those that it was
	// trained on, or that DeepSpeed would make
	Starts []int
	// of ZeRO, expert parallel ranks, which the data parallel ones are at the same time; 0 is as 1
	EP int
	// of ZeRO, whether DeepSpeed trains in bf16, which else its configuration or the model's type
	// says
	BF16 bool
}

// Formats lists what Lay knows, each a line of forms.
func Formats() (names []string) {
	for _, f := range forms {
		names = append(names, f.name)
	}
	return names
}

// RankFormats lists those of Formats in which a spec says what each rank has.
func RankFormats() (names []string) {
	for _, f := range forms {
		if f.ranks {
			names = append(names, f.name)
		}
	}
	return names
}

// About says in a line what a format is.
func About(format string) string { return find(format).about }

// Grouped reports whether the optimizer of a format goes by the position of parameters, or has
// groups that its framework asks for.
func Grouped(format string) bool { return find(format).groups }

// Preset is the preset of a layout that a format has when none is asked for; empty where it has
// none.
func Preset(format string) string { return find(format).preset }

// A form is a format in which checkpoints are written.
type form struct {
	name   string
	about  string // for people who choose one
	ranks  bool   // whether a spec says what is in it for each rank
	texts  bool   // whether it has a place for texts only, of what is no tensor
	groups bool   // whether what it has of an optimizer goes by groups of parameters
	preset string // of the layout, when none is asked for
	lay    func(c *Checkpoint, f Form) (*format.Output, error)
}

var forms = []form{
	{name: "hf", about: "safetensors with whole tensors, as Hugging Face's libraries read them: " +
		"a folder, or a file DST.safetensors", texts: true, lay: layHF},
	{name: "pt", about: "one file for torch.load",
		lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			return torchzip.Layout(f.File, c.Tensors, c.Values)
		}},
	{name: "dcp", about: "torch's distributed checkpoint", ranks: true,
		lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			shards, err := c.shards(f.Spec)
			if err != nil {
				return nil, err
			}
			return dcp.Layout(shards, c.Values)
		}},
	{name: "shards", about: "safetensors with parts of tensors, as torch's distributed " +
		"checkpoint writes and reads them", ranks: true, texts: true,
		lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			shards, err := c.shards(f.Spec)
			if err != nil {
				return nil, err
			}
			texts, kept := c.texts()
			out, err := hf.LayoutShards(shards, texts)
			if err == nil {
				out.Values = kept
			}
			return out, err
		}},
	{name: "ranks",
		about: "shoal's own: a safetensors file for each rank with what lies in its memory",
		ranks: true, lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			return ranks.Layout(f.spec(), c.Tensors, c.Values)
		}},
	{name: "megatron", about: "Megatron-LM's format torch: a folder mp_rank_TT_PPP for each " +
		"rank of --mesh pp=…,tp=…, as the preset megatron-core cuts", ranks: true, groups: true,
		preset: "megatron-core",
		lay: layFolders(func(c *Checkpoint, f Form) (*format.Output, error) {
			return megatron.Layout(f.spec(), c.Tensors, c.Values)
		})},
	{name: "megatron-distributed", about: "the same, with the state of the optimizer in " +
		"distrib_optim.pt, as its distributed form looks for it", ranks: true, groups: true,
		preset: "megatron-core",
		lay: layFolders(func(c *Checkpoint, f Form) (*format.Output, error) {
			return megatron.LayoutDistributed(f.spec(), c.Tensors, c.Values, c.Files.Read)
		})},
	{name: "torch_dist", about: "Megatron-Core's torch_dist, for any number of ranks", groups: true,
		preset: "megatron-core", lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			return megatron.LayoutDist(f.spec(), c.Tensors, c.Values, c.Files.Read)
		}},
	{name: "universal", about: "DeepSpeed's universal checkpoint, for any number of ranks",
		groups: true, lay: func(c *Checkpoint, f Form) (*format.Output, error) {
			return deepspeed.Layout(c.Tensors, c.Values)
		}},
	{name: "zero1", about: "DeepSpeed's ZeRO of stage 1, for the ranks of --mesh " +
		"pp=P,dp=N,tp=T, of which ep=E share the experts", ranks: true, groups: true,
		preset: "zero1", lay: layZero(1)},
	{name: "zero2", about: "the same of stage 2", ranks: true, groups: true, preset: "zero2",
		lay: layZero(2)},
	{name: "zero3", about: "the same of stage 3, for --mesh dp=N,tp=T", ranks: true, groups: true,
		preset: "zero3", lay: layZero(3)},
}

// find returns the form of a name; that of an unknown one is empty.
func find(name string) form {
	for _, f := range forms {
		if f.name == name {
			return f
		}
	}
	return form{}
}

// metadata is where readers of safetensors put the texts of a header.
const metadata = "__metadata__."

// Lay lays a checkpoint out anew. lost says for how many values there is no place in it.
func (c *Checkpoint) Lay(f Form) (out *format.Output, lost int, err error) {
	if err := c.whole(); err != nil {
		return nil, 0, err
	}
	to := find(f.Format)
	if to.lay == nil {
		return nil, 0, fmt.Errorf("no format %q; known are %s", f.Format,
			strings.Join(Formats(), ", "))
	}
	if !to.texts {
		for _, v := range c.Values {
			if u, ok := v.Is.(format.Unread); ok {
				return nil, 0, fmt.Errorf(
					"%s: value %q: %w (or leave out what is no tensor: --no-values)", c.path,
					v.Path, u.Why)
			}
		}
	}
	if out, err = to.lay(c, f); err != nil {
		return nil, 0, err
	}
	if err := c.carried(out); err != nil {
		return nil, 0, fmt.Errorf("%s: %w", c.path, err)
	}
	return out, len(c.Values) - len(out.Values), nil
}

// carried fails for a tensor that is neither in an output nor implied by what is there: no format
// leaves one out without a word. Numbers of steps can stand with the groups of an optimizer.
func (c *Checkpoint) carried(out *format.Output) error {
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

// spec is the one that was given, or one rank with everything.
func (f *Form) spec() *layout.Spec {
	if f.Spec != nil {
		return f.Spec
	}
	return &layout.Spec{Shoal: layout.Version, Rules: []layout.Rule{{Match: "**"}}}
}

// layFolders lays out Megatron's folders, for which the optimizers are those that Megatron has over
// such ranks.
func layFolders(lay func(*Checkpoint, Form) (*format.Output, error)) func(*Checkpoint,
	Form) (*format.Output, error) {
	return func(c *Checkpoint, f Form) (*format.Output, error) {
		renamed, err := megatron.Chain(c.Checkpoint, f.spec())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.path, err)
		}
		c.called(renamed)
		return lay(c, f)
	}
}

// layZero lays out what DeepSpeed saves in a stage. It cuts in its own way, so of a spec only the
// size of dp counts.
func layZero(stage int) func(*Checkpoint, Form) (*format.Output, error) {
	return func(c *Checkpoint, f Form) (*format.Output, error) {
		ranks, err := zeroRanks(c, f)
		if err != nil {
			return nil, err
		}
		out, err := deepspeed.LayoutZero(
			deepspeed.Zero{Stage: stage, DP: ranks, TP: f.TP, PP: f.PP, EP: f.EP, Starts: f.Starts,
				BF16: f.BF16}, c.Tensors, c.Values, c.Files.Read)
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

// zeroRanks is over how many data parallel ranks a checkpoint of ZeRO is to be.
func zeroRanks(c *Checkpoint, f Form) (int, error) {
	if f.Spec == nil {
		return 1, nil
	}
	m, err := layout.ParseMesh(f.Spec.Mesh)
	if err == nil {
		err = m.Within("dp")
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

func layHF(c *Checkpoint, f Form) (*format.Output, error) {
	if f.Most == 0 {
		f.Most = math.MaxInt64
	}
	texts, kept := c.texts()
	if c.apart && texts["format"] == "" { // versions of transformers load nothing without it
		if texts == nil {
			texts = map[string]string{}
		}
		texts["format"] = "pt"
	}
	out, err := hf.Layout(c.Tensors, texts, f.Most)
	if err != nil {
		return nil, err
	}
	out.Values = kept
	if strings.HasSuffix(f.File, ".safetensors") {
		err = renameFile(out, f.File)
	}
	return out, err
}

// renameFile gives the one file of an output another name.
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

// texts returns what a header of safetensors has room for, and the values that these are.
func (c *Checkpoint) texts() (texts map[string]string, kept []format.Value) {
	for _, v := range c.Values {
		key, ok := strings.CutPrefix(v.Path, metadata)
		text, is := v.Is.(string)
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

// together is everything on one rank.
func (c *Checkpoint) together() [][]format.Shard {
	shards := make([]format.Shard, len(c.Tensors))
	for i, t := range c.Tensors {
		shards[i] = format.Shard{Name: t.Name, DType: t.DType, Shape: t.Shape, Box: t.Shape.Box()}
	}
	return [][]format.Shard{shards}
}

// shards resolves a spec and gives each box to that of its ranks that has the least to write so
// far. Without a spec everything is on one rank.
func (c *Checkpoint) shards(spec *layout.Spec) ([][]format.Shard, error) {
	if spec == nil {
		return c.together(), nil
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
				best := -1
				for _, h := range cell.Held {
					for _, r := range l.Sets[l.Slots[f.Slots[h.Slot]].Set] {
						if best < 0 || bytes[r] < bytes[best] {
							best = int(r)
						}
					}
				}
				bytes[best] += cell.Box.Elements() * t.DType.Size()
				ranks[best] = append(ranks[best],
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

// Catalogue lists the tensors of a checkpoint as a layout wants them.
func Catalogue(c *format.Checkpoint) (list []layout.Tensor) {
	for _, t := range c.Tensors {
		list = append(list,
			layout.Tensor{Name: t.Name, DType: t.DType, Shape: slices.Clone(tensor.Shape(t.Shape))})
	}
	return list
}
