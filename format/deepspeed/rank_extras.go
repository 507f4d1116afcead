package deepspeed

import (
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/pickle"
)

// addRankExtras adds to the checkpoint, for the reader, what the optimizer of a data parallel
// rank, one of dps, keeps beside flat buffers. Values, such as learning rates, are those of the
// first rank, as universal checkpoints have them. Tensors that are no numbers are parts of their
// rank: some optimizers have matrices in a list, and nobody says of which parameters they are. It
// reads tensors that could be numbers, on the reader's goroutine.
func (r *reader) addRankExtras(mp, dp, dps int, one *rank) error {
	state, err := pickle.Get[*pickle.Dict](one.file.Root, "optimizer_state_dict")
	if err != nil {
		return err
	}
	part, odd, keys := format.Checkpoint{}, format.Checkpoint{}, optimizerKeys(one.bufferStage)
	for _, item := range state.Items {
		key, _ := item.Key.(string)
		if key == "" || key == "param_slice_mappings" || slices.Contains(keys[:], key) {
			continue
		}
		if err := one.file.Flatten(&part, stateKey+"."+key, item.Value); err != nil {
			return err
		}
	}
	if groups, err := pickle.Get[*pickle.List](state, keys[1], "param_groups"); err == nil {
		if err := one.file.Flatten(&part, stateKey+".param_groups", groups); err != nil {
			return err
		}
	}
	for _, item := range one.uncut.Items {
		if err := one.file.Flatten(&odd, stateKey+"."+item.Key.(string), item.Value); err != nil {
			return err
		}
	}
	if mp > 0 || dp > 0 {
		part.Values, odd.Values = nil, nil
	}
	r.Values = slices.Concat(r.Values, part.Values, odd.Values)
	for _, t := range part.Tensors {
		if is, err := t.Number(r.files.Read); err != nil {
			odd.Tensors = append(odd.Tensors, t)
		} else if mp == 0 && dp == 0 {
			r.Values = append(r.Values, format.Value{Path: t.Name, Data: is})
		}
	}
	for _, t := range odd.Tensors {
		if stages := r.mp / r.tp; stages > 1 {
			t.Coords = format.Coords{{Axis: "pp", Index: mp / r.tp, Of: stages}}
		}
		t.Coords = append(append(t.Coords, r.rankCoords(mp)...),
			format.Coord{Axis: "dp", Index: dp, Of: dps})
		t.WhyPart = "DeepSpeed's optimizer keeps it for no parameter that it names"
		r.Tensors = append(r.Tensors, t)
	}
	return nil
}
