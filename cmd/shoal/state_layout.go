package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/shoal-ml/shoal/checkpoint"
	"github.com/shoal-ml/shoal/state/format/hf"
	"github.com/shoal-ml/shoal/state/format/megatron"
	"github.com/shoal-ml/shoal/state/layout"
)

// layoutFlags say which rank has what.
type layoutFlags struct {
	mesh, preset, file string
	kvHeads            int
}

// add defines the flags, with a prefix where a command has two layouts.
func (l *layoutFlags) add(flags *pflag.FlagSet, prefix string) {
	flags.StringVar(&l.mesh, prefix+"mesh", "", "the ranks, as axes with their sizes, the last the fastest: pp=2,dp=4,tp=2")
	flags.StringVar(&l.preset, prefix+"preset", "", "who has what: hf, megatron-core, fsdp2, zero1, zero2, zero3, or several joined by +")
	flags.StringVar(&l.file, prefix+"layout", "", "a file that says it instead, in YAML (docs/formats/layout.md)")
	if prefix == "" {
		flags.IntVar(&l.kvHeads, "kv-heads", 0, "heads of k and v in a layer, which megatron-core needs; by default as the model's config.json or Megatron's arguments say")
	}
}

func (l *layoutFlags) given() bool { return l.mesh != "" || l.preset != "" || l.file != "" }

// spec is the layout that was asked for, of the tensors of a checkpoint; nil when none was.
func (l *layoutFlags) spec(c *checkpoint.Checkpoint) (*layout.Spec, error) {
	switch {
	case l.file != "" && (l.mesh != "" || l.preset != ""):
		return nil, usageError("a layout file says everything: give either that, or a mesh and a preset")
	case l.file != "":
		text, err := os.ReadFile(l.file)
		if err != nil {
			return nil, err
		}
		return layout.Parse(text)
	case l.mesh != "" && l.preset == "":
		return nil, usageError("the mesh %s says how many ranks there are, not who has what; add a preset, such as megatron-core or fsdp2", l.mesh)
	case l.preset == "":
		return nil, nil
	}
	m, err := layout.ParseMesh(l.mesh)
	if err != nil {
		return nil, err
	}
	if l.kvHeads == 0 && strings.Contains(l.preset, "megatron-core") {
		if l.kvHeads, err = hf.KVHeads(c.Files); err != nil {
			return nil, fmt.Errorf("%w; say with --kv-heads how many heads of k and v a layer has", err)
		}
		if l.kvHeads == 0 {
			l.kvHeads = megatron.KVHeads(c.Checkpoint)
		}
		if l.kvHeads == 0 {
			return nil, usageError("megatron-core interleaves heads of q, k and v, and the checkpoint has no config.json and no arguments of Megatron that tell how many there are; add --kv-heads")
		}
	}
	return layout.Preset(l.preset, m, checkpoint.Catalogue(c.Checkpoint), l.kvHeads)
}

// sourceFlags say what of a checkpoint is meant.
type sourceFlags struct {
	only, rename []string
	noValues     bool
}

func (s *sourceFlags) add(flags *pflag.FlagSet) {
	flags.StringArrayVar(&s.only, "only", nil, "only tensors whose name matches; ** is anything, * anything but a dot, # a number")
	flags.StringArrayVar(&s.rename, "rename", nil, "OLD=NEW: another beginning of names, such as module.= or model.=")
	flags.BoolVar(&s.noValues, "no-values", false, "leave out what is no tensor")
}

// open opens a checkpoint and leaves of it what was asked for.
func (s *sourceFlags) open(path string) (*checkpoint.Checkpoint, error) {
	var match []func(string) bool
	for _, text := range s.only {
		m, err := layout.Matcher(text)
		if err != nil {
			return nil, err
		}
		match = append(match, m)
	}
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	if len(match) > 0 {
		err = c.Select(func(name string) bool {
			return slices.ContainsFunc(match, func(m func(string) bool) bool { return m(name) })
		})
	}
	for _, text := range s.rename {
		from, to, ok := strings.Cut(text, "=")
		if !ok {
			err = usageError("--rename %s is not of the form OLD=NEW", text)
		}
		if err == nil {
			err = c.Rename(from, to)
		}
	}
	if s.noValues {
		c.Values = nil
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}
