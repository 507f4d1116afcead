package deepspeed_test

// This file tests random models with experts over random ranks.
import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/deepspeed"
	"github.com/shoal-ml/shoal/format/formattest"
	"github.com/shoal-ml/shoal/format/pickle"
	"github.com/shoal-ml/shoal/format/torchzip"
)

// TestExpertsRandom reads what DeepSpeed saves of experts over random ranks, writes it for others,
// and compares every tensor of every file with what DeepSpeed saves there, which is cut here.
func TestExpertsRandom(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := drawMixed(r)
		from, to := m.drawMesh(r, "source: "), m.drawMesh(r, "")
		c, files := mustRead(t, m.write(t, from))
		if diff := describeDifferences(m.wholeContents(),
			formattest.Contents(t, files, c)); diff != "" {
			for _, x := range c.Tensors {
				if x.WhyPart != "" {
					r.Fatalf("%s stays in parts: %s", x.Name, x.WhyPart)
				}
			}
			r.Fatal(diff)
		}
		if faults := c.Check(files); len(faults) > 0 {
			r.Fatal(faults)
		}
		// which does not tell the order of what is dealt out
		if !m.robin && rapid.Bool().Draw(r, "by way of universal") {
			c, files = mustRead(t, writeUniversal(t, c, files))
		}
		z := deepspeed.Zero{Stage: to.stage, DP: to.dp, TP: to.tp, EP: to.ep, PP: len(to.starts)}
		if z.PP > 1 {
			z.Starts = to.starts[1:]
		} else if len(from.starts) > 1 {
			z.Stage, z.PP, to.stage = 1, 1, 1 // the order in one stage follows from that in several
		}
		dir := writeZeroRanks(t, z, c, files)
		due := m.write(t, to)
		if diff := cmp.Diff(slices.Sorted(maps.Keys(due)),
			slices.Sorted(maps.Keys(dir))); diff != "" {
			r.Fatal(diff)
		}
		for name := range due {
			if name == deepspeed.LatestName {
				continue
			}
			if diff := describeDifferences(fileTensors(t, due, name),
				fileTensors(t, dir, name)); diff != "" {
				r.Errorf("%s: %s", name, diff)
			}
			for _, path := range [][]string{{"param_shapes"}, {"num_experts"},
				{"optimizer_state_dict", "partition_count"},
				{"optimizer_state_dict", "group_paddings"},
				{"optimizer_state_dict", "param_slice_mappings"},
				{"optimizer_state_dict", "base_optimizer_state", "param_groups"}} {
				if path[0] == "param_shapes" && !to.names ||
					path[len(path)-1] == "param_slice_mappings" && m.robin {
					continue
				}
				if want, got := valueText(t, due, name, path),
					valueText(t, dir, name, path); want != got {
					r.Errorf("%s: %v is %s, want %s", name, path, got, want)
				}
			}
		}
		again, other := mustRead(t, dir)
		if diff := describeDifferences(m.wholeContents(),
			formattest.Contents(t, other, again)); diff != "" {
			r.Fatal(diff)
		}
		if faults := again.Check(other); len(faults) > 0 {
			r.Fatal(faults)
		}
	})
}

// TestExpertsOfStages reads experts that one stage of a pipeline has and another has not, and
// writes none such: DeepSpeed hangs with them.
func TestExpertsOfStages(t *testing.T) {
	m := &mixed{layers: []string{"1.moe"}, counts: []int{1}, groups: []int{0, 1, 0, 1},
		params: []evenParam{{name: "0.w", rule: "rest", whole: numberedArray(1, 4, 2)},
			{name: "0.v", rule: "rest", whole: numberedArray(9, 4, 2)},
			{name: "1.w", whole: numberedArray(20, 4, 2)},
			{name: "1.moe" + inLayer + "0.w", whole: numberedArray(40, 4, 2)}}}
	over := mixedOver{stage: 1, dp: 2, tp: 1, ep: 1, parts: true, names: true, starts: []int{0, 1}}
	c, files := mustRead(t, m.write(t, over))
	if diff := describeDifferences(m.wholeContents(),
		formattest.Contents(t, files, c)); diff != "" {
		t.Error(diff)
	}
	const want = "stage 0 of 2 would have no experts (deepspeed.moe), and DeepSpeed itself " +
		"hangs then"
	for _, z := range []deepspeed.Zero{{Stage: 1, DP: 2, PP: 2},
		{Stage: 1, DP: 2, PP: 2, Starts: []int{1}}} {
		if _, err := deepspeed.LayoutZero(z, c.Tensors, c.Values, files.Read); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// describeDifferences says in few words which tensors are not as they should be, given as
// formattest.Contents does; "" if all are.
func describeDifferences(want, got map[string]string) (text string) {
	brief := func(s string) string { return s[:min(len(s), 60)] }
	for name := range want {
		if want[name] != got[name] {
			text += fmt.Sprintf("\n%s is %q, want %q", name, brief(got[name]), brief(want[name]))
		}
	}
	for name := range got {
		if _, due := want[name]; !due {
			text += "\n" + name + " is one too many"
		}
	}
	return text
}

// valueText returns what the pickle of a file has at a path, as a text. It is "nothing" where there
// is no value, and stops the test if the file cannot be read.
func valueText(t *testing.T, dir fstest.MapFS, name string, path []string) string {
	f, err := torchzip.Open(format.NewFiles(dir), name, deepspeed.Globals)
	if err != nil {
		t.Fatal(err)
	}
	v, err := pickle.Get[any](f.Root, path...)
	if err != nil {
		return "nothing"
	}
	return pickleText(v)
}

// pickleText returns a value of a pickle as a text, in which the order of what a group has does not
// count.
func pickleText(v any) string {
	switch v := v.(type) {
	case *pickle.Dict:
		var all []string
		group := false
		for _, item := range v.Items {
			all = append(all, fmt.Sprint(item.Key)+": "+pickleText(item.Value))
			group = group || item.Key == "params"
		}
		if group {
			slices.Sort(all)
		}
		return "{" + strings.Join(all, ", ") + "}"
	case *pickle.List:
		return pickleText(pickle.Tuple(v.Items))
	case pickle.Tuple:
		var all []string
		for _, x := range v {
			all = append(all, pickleText(x))
		}
		return "[" + strings.Join(all, ", ") + "]"
	case *pickle.Object:
		if v.Class.Name == "Size" {
			return pickleText(v.Args[0])
		}
		return pickleText(v.State)
	}
	return fmt.Sprint(v)
}
