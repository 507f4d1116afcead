package state

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/state/layout"
)

// layoutFlags say which rank has what. One goroutine uses them, that of the command; only check
// reads a file, and spec that beside a checkpoint.
type layoutFlags struct {
	mesh, preset, file string // "" = not given
	virtual            int    // number of chunks of layers in each stage of a pipeline

	read *layout.Spec // what the file says; nil = not read
}

// addTo defines the flags, with a prefix where a command has two layouts.
func (l *layoutFlags) addTo(flags *pflag.FlagSet, prefix string) {
	l.addPresetTo(flags, prefix)
	flags.StringVar(&l.file, prefix+"layout", "", "a file that says it instead, in YAML "+
		"(docs/formats/layout.md); shoal state layout writes one to begin with")
}

// addPresetTo defines the flags, except the one for a layout file.
func (l *layoutFlags) addPresetTo(flags *pflag.FlagSet, prefix string) {
	flags.StringVar(&l.mesh, prefix+"mesh", "",
		"the ranks, as axes with their sizes, the last the fastest: pp=2,dp=4,tp=2")
	flags.StringVar(&l.preset, prefix+"preset", "",
		"who has what: hf, megatron-core, fsdp2, zero1, zero2, zero3, or several joined by +")
	l.virtual = 1
	flags.Var(cli.NewAtLeast(&l.virtual, 1, "a number of chunks, 1 or more"),
		prefix+"virtual-stages",
		"with megatron-core: how many chunks of layers each stage of pp has, dealt out round "+
			"and round, as a virtual pipeline has them")
}

// isGiven reports whether any layout is asked for.
func (l *layoutFlags) isGiven() bool { return l.mesh != "" || l.preset != "" || l.file != "" }

// check fails for flags that are wrong whatever the checkpoint is. It reads the file of --layout,
// if that is given.
func (l *layoutFlags) check() (err error) {
	switch {
	case l.virtual > 1 && !strings.Contains(l.preset, "megatron-core"):
		return cli.Usagef("--virtual-stages is of the preset megatron-core; in a layout file it " +
			"is pp=spread(1,LAYERS,chunks=…), which counts those of all stages")
	case l.file != "" && (l.mesh != "" || l.preset != ""):
		return cli.Usagef("a layout file says everything: give either that, or a mesh and a preset")
	case l.mesh != "" && l.preset == "":
		return cli.Usagef("the mesh %s says how many ranks there are, not who has what; add a "+
			"preset, such as megatron-core or fsdp2", l.mesh)
	case l.file != "":
		_, l.read, err = cli.ReadFile(l.file, layout.MaxSpecBytes, layout.Parse)
		return err
	case l.preset == "":
		return nil
	// which cut over dp
	case l.mesh == "" && (strings.Contains(l.preset, "fsdp") || strings.Contains(l.preset, "zero")):
		return cli.Usagef("the preset %s says who has what, not how many ranks there are; add a "+
			"mesh, such as dp=8", l.preset)
	}
	m, err := layout.ParseMesh(l.mesh)
	if err == nil {
		err = layout.CheckPreset(l.preset, m)
	}
	return cli.AsUsage(err)
}

// spec returns the layout that is asked for, for the tensors of c; nil if none is. model tells what
// c does not. The flags are checked.
func (l *layoutFlags) spec(c *checkpoint.Checkpoint, model *modelFlags) (*layout.Spec, error) {
	switch {
	case l.file != "":
		return l.read, nil
	case l.preset == "":
		return nil, nil
	}
	m, err := layout.ParseMesh(l.mesh)
	if err != nil {
		return nil, err
	}
	kvHeads := 0
	if strings.Contains(l.preset, "megatron-core") {
		if kvHeads, err = model.kvHeadCount(c); err != nil {
			return nil, err
		}
	}
	spec, err := layout.Preset(l.preset, m, checkpoint.Catalogue(c.Checkpoint), kvHeads)
	if err == nil {
		err = layout.Interleave(spec, l.virtual)
	}
	return spec, err
}

// sourceFlags say what of a checkpoint is meant, and as what. One goroutine uses them, that of the
// command; only open reads files.
type sourceFlags struct {
	only          []string // patterns of names; nil = all
	strip, rename []string // beginnings of names that go, and rules that rename
	noValues      bool     // whether to leave out what is no tensor
	model         modelFlags

	modelAlone bool   // whether to take the model alone, where no flag says what to take
	renamed    bool   // whether the checkpoint has the names that --strip and --rename give
	took       []bool // for each of only, whether it took a tensor of what was opened so far
	// named are the names of the tensors that were taken and got names of Hugging Face.
	named map[string]bool
	notes []string // what was done without a flag
}

// addTo defines all flags.
func (s *sourceFlags) addTo(flags *pflag.FlagSet) {
	s.addTensorsTo(flags)
	flags.BoolVar(&s.noValues, "no-values", false, "leave out what is no tensor")
}

// addTensorsTo defines the flags that are about tensors.
func (s *sourceFlags) addTensorsTo(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.only, "only", nil,
		"only tensors whose name matches; ** is anything, * anything but a dot, # a number; "+
			"a dot is also the slash of a job's names, and model. means model.**")
	flags.StringArrayVar(&s.strip, "strip", nil,
		"a beginning of names that is left out, such as state_dict.: --rename state_dict.=")
	flags.StringArrayVar(&s.rename, "rename", nil,
		"OLD=NEW: another beginning of names, such as module.= or model.=")
	s.model.addTo(flags)
}

// open opens a checkpoint, and selects and renames tensors as the flags say. It checks the flags
// before it reads anything, and fails where one of --only takes no tensor. The caller closes the
// checkpoint.
func (s *sourceFlags) open(path string) (*checkpoint.Checkpoint, error) {
	c, err := s.openOneOf(path)
	if err != nil {
		return nil, err
	}
	if err := s.checkOnly(); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// openOneOf is open of a checkpoint beside which others are opened: whether each of --only took a
// tensor of any, checkOnly says.
func (s *sourceFlags) openOneOf(path string) (*checkpoint.Checkpoint, error) {
	match, err := s.matchers()
	if err != nil {
		return nil, err
	}
	if err := s.model.check(); err != nil {
		return nil, err
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	if len(match) > 0 {
		err = s.selectOnly(c, match)
	}
	if s.modelAlone && s.takesAll() {
		s.notes, err = c.ModelAlone()
	}
	for _, r := range s.renames() {
		if err == nil && !s.renamed {
			err = c.Rename(r.from, r.to)
		}
	}
	if err == nil {
		err = s.model.applyNames(c)
	}
	if s.noValues {
		s.model.toldHeads, c.Values = megatron.KVHeads(c.Checkpoint), nil
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// selectOnly drops the tensors of c that none of match takes, which are those of --only, and that
// are not named. It notes which of match took one.
func (s *sourceFlags) selectOnly(c *checkpoint.Checkpoint, match []func(string) bool) error {
	if s.took == nil {
		s.took = make([]bool, len(match))
	}
	return c.Select(func(name string) (keep bool) {
		for i, m := range match {
			if m(name) || s.renamed && m(s.originalName(name)) {
				keep, s.took[i] = true, true
			}
		}
		return keep || s.named[name] || !s.renamed && s.named[s.newName(name)]
	})
}

// take notes the names of the tensors of c, which were taken and got names of Hugging Face.
func (s *sourceFlags) take(c *checkpoint.Checkpoint) {
	s.named = map[string]bool{}
	for i := range c.Tensors {
		s.named[c.Tensors[i].Name] = true
	}
}

// checkOnly fails where one of --only took no tensor of what was opened.
func (s *sourceFlags) checkOnly() error {
	if i := slices.Index(s.took, false); i >= 0 {
		return fmt.Errorf("no tensor has a name that --only %s takes; leave it out, or see "+
			"with shoal state ls how they are called", s.only[i])
	}
	return nil
}

// takesAll reports whether no flag says which tensors to take, or under which names.
func (s *sourceFlags) takesAll() bool {
	return len(s.only)+len(s.strip)+len(s.rename) == 0 && s.model.names == ""
}

// renames lists what --strip and --rename replace, in the order in which they do.
func (s *sourceFlags) renames() (list []struct{ from, to string }) {
	for _, prefix := range s.strip {
		list = append(list, struct{ from, to string }{prefix, ""})
	}
	for _, text := range s.rename {
		from, to, _ := strings.Cut(text, "=")
		list = append(list, struct{ from, to string }{from, to})
	}
	return list
}

// newName returns the name into which --strip and --rename change this one.
func (s *sourceFlags) newName(name string) string {
	for _, r := range s.renames() {
		if rest, ok := strings.CutPrefix(name, r.from); ok {
			name = r.to + rest
		}
	}
	return name
}

// originalName returns the name that --strip and --rename have changed into this one.
func (s *sourceFlags) originalName(name string) string {
	list := s.renames()
	slices.Reverse(list)
	for _, r := range list {
		if rest, ok := strings.CutPrefix(name, r.to); ok {
			name = r.from + rest
		}
	}
	return name
}

// matchers returns what tells the names that --only takes. It fails for flags that are wrong
// whatever the checkpoint is.
func (s *sourceFlags) matchers() (match []func(string) bool, err error) {
	for _, text := range s.only {
		if strings.HasSuffix(text, ".") || strings.HasSuffix(text, "/") {
			text += "**"
		}
		m, err := layout.NewMatcher(text)
		if err != nil {
			return nil, cli.AsUsage(fmt.Errorf("--only: %w", err))
		}
		match = append(match, m)
	}
	for _, text := range s.strip {
		if text == "" {
			return nil, cli.Usagef("--strip takes the beginning of names that is left out")
		}
	}
	for _, text := range s.rename {
		switch from, to, ok := strings.Cut(text, "="); {
		case !ok:
			return nil, cli.Usagef("--rename %s is not of the form OLD=NEW", text)
		case from == to:
			return nil, cli.Usagef("--rename %s leaves every name as it is; leave it out", text)
		}
	}
	return match, nil
}
