package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/format"
	"github.com/shoal-ml/shoal/state/format/megatron"
	"github.com/shoal-ml/shoal/state/format/optim"
)

// Adopt prepares an optimizer for a format that goes by the position of parameters, or wants their groups, as Grouped says; for others it does nothing. given are the groups
// that somebody says; without them the checkpoint must tell. notes are for people: what was found in other words than those of the format.
func (c *Checkpoint) Adopt(to string, given []optim.Group) (notes []string, err error) {
	if !Grouped(to) {
		return nil, nil
	}
	if slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool { return t.At != nil }) {
		return nil, nil // Lay says why not
	}
	if notes, err = c.adopt(to, given); err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	return notes, nil
}

func (c *Checkpoint) adopt(to string, given []optim.Group) (notes []string, err error) {
	o, renamed, err := optim.Find(c.Checkpoint, given, c.Files.Read)
	if err != nil {
		return nil, err
	}
	c.called(renamed)
	if to == "megatron" || to == "torch_dist" {
		return c.forMegatron(to, o)
	}
	switch {
	case o == nil, o.From == optim.DeepSpeed, o.From == optim.Megatron && to == "universal": // there it stays behind
		return nil, nil
	case !o.Ordered && to != "universal":
		return nil, fmt.Errorf("the groups of the optimizer are known (%s), and not the order of parameters, by which DeepSpeed goes: %s; say it with --groups, or choose universal, which DeepSpeed loads by names", members(o), o.Why)
	}
	if err := o.Replace(c.Checkpoint); err != nil || !o.Ordered || to == "universal" {
		return nil, err
	}
	return []string{fmt.Sprintf("the optimizer has %s, as %s says; a program that has its parameters in other groups, or in another order, must not load this", members(o), o.Said)}, nil
}

// called notes which tensors a change has given other names, so that a seal still tells of them.
func (c *Checkpoint) called(renamed map[string]string) {
	before := maps.Clone(c.renamed)
	for name, old := range renamed {
		c.renamed[name] = cmp.Or(before[old], old)
	}
}

// members says how many parameters are in each group.
func members(o *optim.Optimizer) string {
	var of []string
	for i := range o.Groups {
		of = append(of, fmt.Sprint(len(o.Groups[i].Params)))
	}
	return plural.Of(len(of), "group") + " of " + strings.Join(of, " and ") + " parameters"
}

// forMegatron prepares for Megatron what another framework has trained.
func (c *Checkpoint) forMegatron(to string, o *optim.Optimizer) (notes []string, err error) {
	another := o != nil && o.From != optim.Megatron
	if another {
		optim.Drop(c.Checkpoint)
		c.bare(o)
		if err := c.Finish(); err != nil {
			return nil, err
		}
	}
	renamed, err := megatron.Fold(c.Checkpoint)
	if err != nil || !another {
		c.called(renamed)
		return nil, err
	}
	c.called(renamed)
	note, err := megatron.Regroup(c.Checkpoint, o.Values(), to == "megatron")
	return []string{note}, err
}

// bare gives the model's tensors the names that the optimizer has for them, where a program has put a word before all of these; and where there are no weights but the
// copies of the optimizer, as after stage 3 of ZeRO, these are the model's.
func (c *Checkpoint) bare(o *optim.Optimizer) {
	has := map[string]int{}
	for i := range c.Tensors {
		has[c.Tensors[i].Name] = i
	}
	all := func(prefix string) bool {
		for _, g := range o.Groups {
			for _, name := range g.Params {
				if _, ok := has[prefix+name]; !ok {
					return false
				}
			}
		}
		return true
	}
	for _, prefix := range []string{"", "model.", "module.", "optimizer.fp32."} {
		if !all(prefix) {
			continue
		}
		for i := range c.Tensors {
			t := &c.Tensors[i]
			if name, ok := strings.CutPrefix(t.Name, prefix); ok && prefix != "" {
				c.called(map[string]string{name: t.Name})
				t.Name = name
			}
		}
		return
	}
}
