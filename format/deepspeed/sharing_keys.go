package deepspeed

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// This file writes how tensor parallel ranks share parameters: its rules' goroutine, no I/O.

// subParamShape is DeepSpeed's class for the sub-parameters of a parameter.
var subParamShape = pickle.Global{Module: "deepspeed.checkpoint.universal_checkpoint",
	Name: "SubparamShape"}

// cutKeys returns what stands beside a whole parameter in a universal checkpoint, by which
// DeepSpeed cuts it for tensor parallel ranks; without rules it is cut along the first dimension.
func (r *rules) cutKeys(name string, t *format.Tensor) (*pickle.Dict, error) {
	d := &pickle.Dict{}
	s := sharing{unmatched: true}
	if r != nil {
		var err error
		if s, err = r.sharingOf(name); err != nil {
			return nil, err
		}
	}
	switch {
	case s.alike, s.averaged: // all get it whole
	case s.sub != nil:
		sizes, err := s.sub.sizesIn(t.Shape)
		if err != nil {
			return nil, err
		}
		shape := torchzip.IntTuple(s.sub.shape)
		shape[s.sub.dim] = torchzip.IntTuple(sizes)
		state := &pickle.Dict{}
		state.Add("patterns", &pickle.List{Items: []any{s.pattern}})
		state.Add("shape", shape)
		state.Add("partition_dim", int64(s.sub.dim))
		d.Add("sub_param_shape", pickle.New{Class: subParamShape, State: state})
	default:
		d.Add("cat_dim", int64(s.dim))
		if s.blocks > 1 {
			d.Add("param_n_sub_params", int64(s.blocks))
		}
	}
	if s.vocabulary {
		d.Add("vocab_tensor", true)
	}
	// by which AutoEP cuts it
	if r != nil && r.values[expertsKey] != nil && autoExpert.MatchString(name) && len(t.Shape) > 0 {
		d.Add("is_expert_param", true)
		d.Add("ep_num_experts", int64(t.Shape[0]))
	}
	return d, nil
}

// sharingInfo returns universal_checkpoint_info as DeepSpeed has it, of a checkpoint of tps tensor
// parallel ranks that share evenly: dicts have patterns as keys, in which there are dots.
func sharingInfo(values []format.Value, tps int) (*pickle.Dict, error) {
	info, subs := &pickle.Dict{}, &pickle.List{}
	var err error
	for _, v := range values {
		path, ok := strings.CutPrefix(v.Path, infoKey+".")
		if !ok {
			continue
		}
		key, below, deeper := strings.Cut(path, ".")
		switch is := v.Data; {
		case deeper && key == subParamsKey:
			err = addSubParam(subs, below, is)
		case deeper && (key == widthsKey || key == unsupportedKey):
			if key == widthsKey {
				is = widthsOfRanks(is, tps)
			}
			var p any
			if p, err = torchzip.ToPickle(is); err == nil {
				in, there := info.Get(key)
				if !there {
					in = &pickle.Dict{}
					info.Add(key, in)
				}
				in.(*pickle.Dict).Add(below, p)
			}
		default:
			err = torchzip.NestValues(info, []format.Value{{Path: path, Data: is}},
				torchzip.ToPickle)
		}
		if err != nil {
			return nil, fmt.Errorf("value %q: %w; leave out what is no tensor with --no-values",
				v.Path, err)
		}
	}
	if len(subs.Items) > 0 {
		info.Add(subParamsKey, subs)
	}
	return info, nil
}

// addSubParam sets a field of one of a list of dicts. path is NUMBER.FIELD. Shapes become tuples,
// as DeepSpeed's class for them has it.
func addSubParam(subs *pickle.List, path string, is any) error {
	number, field, _ := strings.Cut(path, ".")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n > 1<<20 {
		return fmt.Errorf("%q is no number of a list", number)
	}
	for len(subs.Items) <= n {
		subs.Items = append(subs.Items, &pickle.Dict{})
	}
	p, err := torchzip.ToPickle(is)
	if field == "shape" {
		p = toTuples(p)
	}
	subs.Items[n].(*pickle.Dict).Add(field, p)
	return err
}

// toTuples returns a list as a tuple, and lists in it too; other values as they are.
func toTuples(v any) any {
	list, ok := v.(*pickle.List)
	if !ok {
		return v
	}
	t := pickle.Tuple{}
	for _, x := range list.Items {
		t = append(t, toTuples(x))
	}
	return t
}

// widthsOfRanks returns the widths of sub-parameters for a number of ranks, from those that other
// ranks had.
func widthsOfRanks(v any, tps int) any {
	list, _ := v.([]any)
	var all []any
	for _, x := range list {
		own, _ := parseSizes(x)
		sum := int64(0)
		for _, n := range own {
			sum += int64(n)
		}
		all = append(all, slices.Repeat([]any{sum / int64(tps)}, tps))
	}
	return all
}
