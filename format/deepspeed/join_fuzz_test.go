package deepspeed_test

// This file tests with anything what is said of how parameters are shared.
import (
	"math"
	"slices"
	"testing"
	"testing/fstest"

	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
)

// TestJoinAnything has anything stand where patterns and sizes are due: nothing panics, and what is
// read is sound.
func TestJoinAnything(t *testing.T) {
	var anything func(depth int) *rapid.Generator[any]
	anything = func(depth int) *rapid.Generator[any] {
		return rapid.Custom(func(r *rapid.T) any {
			switch n := rapid.IntRange(0, 8).Draw(r, "sort"); {
			case n < 2:
				return int64(rapid.IntRange(-2, 7).Draw(r, "number"))
			case n < 5:
				return rapid.SampledFrom(
					[]string{"norm", "up", "down", "^down$", "n|u", "(", ".*", "", "x"}).Draw(r,
					"pattern")
			case n < 7 && depth > 0:
				items := rapid.SliceOfN(anything(depth-1), 0, 3).Draw(r, "items")
				if n == 5 {
					return pickle.Tuple(items)
				}
				return newList(items...)
			case n == 7 && depth > 0:
				return newDict("patterns", anything(depth-1).Draw(r, "patterns"), "shape",
					anything(depth-1).Draw(r, "shape"), "partition_dim",
					anything(0).Draw(r, "dimension"))
			}
			return rapid.SampledFrom([]any{nil, true, 0.2, 0.4, int64(math.MaxInt64)}).Draw(r,
				"other")
		})
	}
	rapid.Check(t, func(r *rapid.T) {
		s := threeParams()
		for _, key := range []string{"tp_replicated_parameter_patterns",
			"parameter_to_average_patterns", "parameter_with_2_sub_params_cat_dim_0",
			"parameter_with_row_parallelism_patterns",
			"vocabulary_parameter_patterns", "parameter_with_sub_params",
			"autotp_unsupported_parameter_patterns", "sub_param_shard_widths",
			"universal_checkpoint_version", "original_vocab_size",
			"padded_vocab_size", "expert_parameter_patterns"} {
			if rapid.IntRange(0, 2).Draw(r, key) == 0 {
				s.info.(*pickle.Dict).Set(key, anything(3).Draw(r, "is"))
			}
		}
		c, files := mustRead(t, s.write(t))
		if faults := c.Check(files); len(faults) > 0 {
			r.Fatal(faults)
		}
		for i := range c.Tensors {
			formattest.ReadTensor(t, files, &c.Tensors[i])
		}
		if !slices.ContainsFunc(c.Tensors, func(x format.Tensor) bool { return x.Coords != nil }) {
			if out, err := deepspeed.Layout(c.Tensors, c.Values); err == nil {
				mustRead(t, formattest.WriteOutput(t, out, c, files))
			}
		}
	})
}

// FuzzJoin changes what the model states of two ranks say: nothing panics, and what is read is
// sound.
func FuzzJoin(f *testing.F) {
	const first, second = "tag/mp_rank_00_model_states.pt", "tag/mp_rank_01_model_states.pt"
	dir := threeParams().write(f)
	f.Add(dir[first].Data, dir[second].Data)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		changed := fstest.MapFS{}
		for name, file := range dir {
			changed[name] = file
		}
		changed[first], changed[second] = &fstest.MapFile{Data: slices.Clone(a)},
			&fstest.MapFile{Data: slices.Clone(b)}
		formattest.IsSound(changed, deepspeed.Read)
	})
}

// FuzzPatterns has any text as a pattern, which is refused, or fits some names.
func FuzzPatterns(f *testing.F) {
	for _, x := range []string{"norm", `^up$`, `(a|b)*\d+`, "(?i)NORM", "(?!x)", "[[:alpha:]]",
		"a{,2}", "(", `\Z`, "é"} {
		f.Add(x)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fits, err := deepspeed.MatchPattern(text, "norm")
		exact, again := deepspeed.MatchPattern(`^`+text+`$`, "norm")
		if err == nil && again == nil && exact && !fits {
			t.Errorf("%q fits the whole name only", text)
		}
	})
}
