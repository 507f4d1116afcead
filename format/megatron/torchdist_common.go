package megatron

// This file lays out common.pt, for a distWriter (torchdist_layout.go): its goroutine, no I/O.
import (
	"fmt"
	"path"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
	"github.com/shoal-ml/shoal/state/layout"
)

// layCommonFile lays out common.pt: arguments, learning rates and the like.
func (w *distWriter) layCommonFile(spec *layout.Spec) error {
	args, err := w.givenArguments(spec)
	if err != nil {
		return err
	}
	args.Set("ckpt_format", distBackend)
	args.Set("no_save_rng", true) // else Megatron looks for random states on the ranks that it has
	args.Set("no_save_optim", len(w.optimizers) == 0)
	content := &pickle.Dict{} // by which Megatron chooses what it looks for
	content.Add("distrib_optim_sharding_type", sharding)
	content.Add("distrib_optim_fully_reshardable_mem_efficient", false)
	content.Add("chained_optim_avoid_prefix", true)
	content.Add("singleton_local_shards", false)
	if !w.keys.stacked {
		content.Add("non_homogeneous_layers", true)
	}
	root := &pickle.Dict{}
	root.Add("args", namespace(args))
	root.Add("checkpoint_version", 3.0)
	root.Add("iteration", max(w.intValue("iteration", 0), 0))
	root.Add("content_metadata", content)
	if err := w.addOptimizers(root); err != nil {
		return err
	}
	var rest []format.Value
	for _, v := range w.values {
		switch key, _, _ := strings.Cut(v.Path, "."); {
		case key == "args", key == "checkpoint_version", key == "iteration",
			key == "content_metadata", key == "model", key == optimizerKey, w.isDropped(v):
		default:
			rest = append(rest, v)
		}
	}
	if err := torchzip.NestValues(root, rest, torchzip.ToPickle); err != nil {
		return err
	}
	s := w.ranks[0]
	var tensors []format.Tensor
	for _, l := range s.stored {
		tensors = append(tensors, l.Tensor)
	}
	name := path.Join(w.dir, CommonName)
	at, err := torchzip.LayoutRoot(w.Output, name, root, tensors)
	for i, l := range s.stored[:len(at)] {
		w.spots[[2]int{l.slot, l.member}] = []location{{name, at[i]}}
	}
	return err
}

// addOptimizers adds to root what optimizers have beside tensors. Megatron takes step counts from
// groups, or from an optimizer's common state; groups it tells apart by their content.
func (w *distWriter) addOptimizers(root *pickle.Dict) error {
	several := &pickle.Dict{}
	for _, o := range w.optimizers {
		inner, groups, at := &pickle.Dict{}, &pickle.List{}, o.prefix
		if o.inner != "" {
			at += optimizerKey + "."
		}
		for i := range len(o.groups) {
			group := &pickle.Dict{}
			if err := torchzip.NestValues(group, o.groups[i].values,
				torchzip.ToPickle); err != nil {
				return err
			}
			if _, said := group.Get("step"); !said && w.made >= 0 {
				group.Add("step", w.made)
			}
			groups.Items = append(groups.Items, group)
			if err := w.addNames(root,
				fmt.Sprintf("%s.%sparam_groups.%d.%s", ourKey, at, i, namesKey),
				o.groups[i].names); err != nil {
				return err
			}
		}
		inner.Add("param_groups", groups)
		if w.made >= 0 {
			state := &pickle.Dict{}
			state.Add("common_step", w.made)
			inner.Add("state", state)
		}
		d := inner
		if o.inner != "" {
			d = &pickle.Dict{}
			d.Add(optimizerKey, inner)
			d.Add(shardingKey, sharding)
		}
		if err := w.addCommonState(w.ranks[0], o, d); err != nil {
			return err
		}
		switch {
		case o.prefix != optimizerKey+".":
			several.Items = append(several.Items, pickle.Item{Key: int64(o.number()), Value: d})
		case len(w.optimizers) > 1:
			return fmt.Errorf("there are %d optimizers, and one is not one of several",
				len(w.optimizers))
		default:
			root.Add(optimizerKey, d)
		}
	}
	if len(several.Items) > 0 {
		root.Add(optimizerKey, several)
	}
	return nil
}

// addNames adds to root the parameters of a group, which only Megatron's other format needs.
func (w *distWriter) addNames(root *pickle.Dict, path string, names []string) error {
	if len(names) == 0 {
		return nil
	}
	list := &pickle.List{}
	for _, name := range names {
		list.Items = append(list.Items, name)
	}
	return root.Put(path, list)
}
