package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/megatron"
	"github.com/shoal-ml/shoal/format/optim"
	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/tensor"
)

// How the state of an optimizer is prepared for a format that has it by groups of parameters:
// tensors get the names that the format gives them, and groups come from the user or the
// checkpoint. The methods change the tensors and values that the checkpoint lists, so they are for
// one goroutine at a time; elements are read only where the groups are found.

// PrepareOptimizer prepares an optimizer for a format that identifies parameters by position, or
// needs their groups, as NeedsGroups says; for other formats it does nothing. given are the groups
// that the user states; without them the checkpoint must tell. notes tell the user what was
// inferred.
func (c *Checkpoint) PrepareOptimizer(to string, given []optim.Group) (notes []string, err error) {
	if !NeedsGroups(to) {
		return nil, nil
	}
	if slices.ContainsFunc(c.Tensors, func(t format.Tensor) bool { return t.Coords != nil }) {
		return nil, nil // Output explains why not
	}
	if notes, err = c.prepareOptimizer(to, given); err != nil {
		return nil, fmt.Errorf("%s: %w", c.path, err)
	}
	return notes, nil
}

// prepareOptimizer is PrepareOptimizer for a format with groups; its errors do not name the
// checkpoint.
func (c *Checkpoint) prepareOptimizer(to string, given []optim.Group) (notes []string, err error) {
	if err := c.joinOptimizers(to); err != nil {
		return nil, err
	}
	o, renamed, err := optim.FindGroups(c.Checkpoint, given, c.Files.Read)
	if err != nil {
		return nil, err
	}
	c.recordRenames(renamed)
	if DefaultPreset(to) == "megatron-core" {
		return c.prepareForMegatron(to, o)
	}
	if err := c.renameForDeepSpeed(); err != nil {
		return nil, err
	}
	switch {
	// These formats keep the optimizer as it is, or leave it out.
	case o == nil, o.Source == optim.DeepSpeed, o.Source == optim.Megatron && to == "universal":
		return nil, nil
	case !o.Ordered && to != "universal":
		return nil, fmt.Errorf("the groups of the optimizer are known (%s), and not the order "+
			"of parameters, by which DeepSpeed goes: %s; say it with --groups, or choose "+
			"universal, which DeepSpeed loads by names", groupSizes(o), o.WhyUnordered)
	}
	if err := o.ReplaceIn(c.Checkpoint); err != nil || !o.Ordered || to == "universal" {
		return nil, err
	}
	return []string{fmt.Sprintf("the optimizer has %s, as %s says; a program that has its "+
			"parameters in other groups, or in another order, must not load this", groupSizes(o),
			o.Where)},
		nil
}

// trainedState matches the names of optimizer state of a parameter in all formats, without the
// scaler of f16 gradients.
var trainedState = pattern.New(`^optimizer\.([^.]+)\.(.+)$`)

// renameForDeepSpeed gives tensors the names that a checkpoint of DeepSpeed has when it is read
// again, as its manifest lists them. A parameter in f32 without an optimizer copy serves as its own
// copy.
func (c *Checkpoint) renameForDeepSpeed() error {
	has, state := map[string]int{}, map[string]bool{}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		has[t.Name] = i
		if m := trainedState.FindStringSubmatch(t.Name); m != nil && m[1] != "grad_scaler" {
			state[m[2]] = true
		}
	}
	prefix := ""
	for name := range has {
		if strings.HasPrefix(name, deepSpeedModel) {
			prefix = deepSpeedModel
			break
		}
		if param, ok := strings.CutPrefix(name, "model."); ok && state[param] {
			prefix = "model."
		}
	}
	tensors := slices.Clone(c.Tensors)
	for i := range tensors {
		t := &tensors[i]
		name, ok := strings.CutPrefix(t.Name, prefix)
		if !ok || trainedState.MatchString(t.Name) {
			continue
		}
		if prefix != deepSpeedModel {
			c.recordRenames(map[string]string{deepSpeedModel + name: t.Name})
			t.Name = deepSpeedModel + name
		}
		if _, there := has["optimizer.fp32."+name]; state[name] && !there && t.DType == tensor.F32 {
			master := *t
			master.Name = "optimizer.fp32." + name
			c.recordRenames(map[string]string{master.Name: t.Name})
			tensors = append(tensors, master)
		}
	}
	c.Tensors = tensors
	return c.Finish()
}

// deepSpeedModel is the prefix of the model's tensors in checkpoints of DeepSpeed.
const deepSpeedModel = "module."

// recordRenames records the old name of each renamed tensor, by its new name, so that a seal still
// covers them.
func (c *Checkpoint) recordRenames(renamed map[string]string) {
	before := maps.Clone(c.renamed)
	for name, old := range renamed {
		c.renamed[name] = cmp.Or(before[old], old)
	}
}

// groupSizes says in words how many parameters each group has.
func groupSizes(o *optim.Optimizer) string {
	var of []string
	for i := range o.Groups {
		of = append(of, fmt.Sprint(len(o.Groups[i].Params)))
	}
	return plural.Of(len(of), "group") + " of " + strings.Join(of, " and ") + " parameters"
}

// joinOptimizers joins Megatron's separate optimizer for experts with the other one, for formats
// that have one optimizer.
func (c *Checkpoint) joinOptimizers(to string) error {
	several := slices.ContainsFunc(c.Values, func(v format.Value) bool {
		return strings.HasPrefix(v.Path, "optimizer.1.")
	})
	if !several || DefaultPreset(to) == "megatron-core" || to == "universal" {
		return nil
	}
	renamed, err := megatron.ChainOptimizers(c.Checkpoint, (&TargetFormat{}).specOrWhole())
	c.recordRenames(renamed)
	return err
}

// prepareForMegatron gives the tensors and groups of another framework the form that Megatron
// reads.
func (c *Checkpoint) prepareForMegatron(to string, o *optim.Optimizer) (notes []string, err error) {
	another := o != nil && o.Source != optim.Megatron
	if another {
		optim.DropGroups(c.Checkpoint)
		c.stripModelPrefix(o)
		if err := c.Finish(); err != nil {
			return nil, err
		}
	}
	renamed, err := megatron.FoldOptimizer(c.Checkpoint)
	if err != nil || !another {
		c.recordRenames(renamed)
		return nil, err
	}
	c.recordRenames(renamed)
	note, err := megatron.RegroupOptimizer(c.Checkpoint, o.ValuesByParam(), to != "torch_dist")
	return []string{note}, err
}

// stripModelPrefix gives the model's tensors the names that the optimizer has for them, where a
// program has put a prefix before all of them. Where only the optimizer's copies exist, as after
// ZeRO stage 3, the copies become the model's tensors.
func (c *Checkpoint) stripModelPrefix(o *optim.Optimizer) {
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
				c.recordRenames(map[string]string{name: t.Name})
				t.Name = name
			}
		}
		return
	}
}
